"""A federation seen differently: the same clients, with corrupted images."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.corruptions import corrupt
from pfedfda.data.federation import ClientData
from pfedfda.data.shift import Shift, frost_photos
from pfedfda.seeding import numpy_generator


@dataclass(frozen=True)
class ShiftedView:
    """All images of every client, corrupted in one way.

    Parameters
    ----------
    shift
        The corruption and its severity.
    seed
        Determines the noise, with the client and the corruption.
    data_dir
        The folder in which photographs for the corruption frost are looked for.
    """

    shift: Shift
    seed: int
    data_dir: Path | None = None

    def of(self, client_id: int, data: ClientData) -> ClientData:
        """Return the data of a client as they look in this view.

        Test images have random numbers of their own: how many training images there are makes no
        difference to them.
        """
        name, severity = self.shift
        train, test = (
            numpy_generator("new-client", self.seed, client_id, name, *use)
            for use in ((), ("test",))
        )
        photos = _photos(self.data_dir)
        return data._replace(
            train_inputs=corrupt(data.train_inputs, name, severity, train, photos),
            test_inputs=corrupt(data.test_inputs, name, severity, test, photos),
        )


@lru_cache(maxsize=1)
def _photos(data_dir: Path | None) -> list[NDArray[np.uint8]] | None:
    """Return the photographs of frost; a process reads them once."""
    return frost_photos(data_dir)
