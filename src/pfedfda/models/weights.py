"""Starting from pretrained weights."""

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from pfedfda.errors import InputError

UNREADABLE = (
    OSError,
    SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RuntimeError,  # RecursionError is one
)
"""What reading tensors and descriptions that somebody else has written may raise."""


class Fit(NamedTuple):
    """What of a file went into a model."""

    loaded: list[str]
    """Tensors of the model that were loaded."""
    missing: list[str]
    """Tensors of the model that the file does not have."""
    unused: list[str]
    """Tensors of the file that fit nothing, by name or by shape."""

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        for what, names in (("not in the file", self.missing), ("do not fit", self.unused)):
            if names:
                more = ", …" if len(names) > 3 else ""
                parts.append(f"{len(names)} {what} ({', '.join(names[:3])}{more})")
        return ", ".join(parts)


def load_weights(model: nn.Module, path: Path) -> Fit:
    """Copy tensors of a safetensors file into a model, by name and shape, and tell what fitted.

    Names are those of the model (``body.…``, ``head.…``) or of its body alone.
    """
    own = model.state_dict()
    loaded, unused = [], []
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                target = name if name in own else f"body.{name}"
                shape = tuple(file.get_slice(name).get_shape())
                if target not in own or tuple(own[target].shape) != shape:
                    unused.append(name)
                    continue
                with torch.no_grad():
                    own[target].copy_(file.get_tensor(name))
                loaded.append(target)
    except (OSError, SafetensorError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"The weights {path} cannot be read ({reason}).") from error
    if not loaded:
        raise InputError(
            f"The weights {path} fit nothing: the model has tensors such as {next(iter(own))!r} of "
            f"shape {tuple(next(iter(own.values())).shape)}, and the file has "
            f"{', '.join(unused[:3]) or 'none'}."
        )
    return Fit(loaded, [name for name in own if name not in loaded], unused)
