"""DIGIT-5: the ten digits in five domains, everything in colour at 32×32.

SVHN, USPS, MNIST-M and MNIST come from the Hub or local copies. The fifth domain of the benchmark,
SynthDigits (Ganin and Lempitsky, ICML 2015), is used if the data folder has it as
``synthdigits/CLASS/IMAGE``. It is not on the Hub, so otherwise digits rendered here from the fonts
that come with matplotlib stand in for it, under the name ``fontdigits``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from pfedfda.data.decoding import Progress
from pfedfda.data.hub import HubDataset, data_folder
from pfedfda.data.sources import Dataset, Folder, Source
from pfedfda.errors import InputError
from pfedfda.seeding import numpy_generator

SIZE = 32
FONT_DIGITS = 6000
# Upright and slanted letters with and without serifs; symbol fonts have no digits.
FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "cmr10",
    "cmb10",
    "cmss10",
    "cmtt10",
)


@dataclass(frozen=True)
class FontDigits:
    """Digits drawn in random fonts, colours, sizes and angles, some with neighbours beside them.

    Parameters
    ----------
    count
        How many.
    """

    count: int = FONT_DIGITS

    def key(self) -> dict[str, Any]:
        """Return the name, the version of the drawing, and the number."""
        return {"source": "fontdigits", "version": 1, "count": self.count}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Draw the digits; the same ones every time."""
        from matplotlib import get_data_path

        folder = Path(get_data_path()) / "fonts" / "ttf"
        paths = [str(folder / f"{name}.ttf") for name in FONTS]
        labels = np.arange(self.count) % 10
        images = np.stack([_draw(int(label), paths, row) for row, label in enumerate(labels)])
        return Dataset(images, labels, tuple("0123456789"))


@dataclass(frozen=True)
class Digit5:
    """All five domains; the groups are the domains.

    Parameters
    ----------
    data_dir
        The folder of local copies; by default what ``PFEDFDA_DATA`` names.
    """

    data_dir: Path | None = None

    def domains(self) -> dict[str, Source]:
        """Return the sources of the domains by name."""
        names = {
            "svhn": ("ufldl-stanford/svhn", "cropped_digits"),
            "usps": ("flwrlabs/usps", None),
            "mnist-m": ("Mike0307/MNIST-M", None),
            "mnist": ("ylecun/mnist", None),
        }
        sources: dict[str, Source] = {
            domain: HubDataset(
                repository, config, image_size=SIZE, colour=True, data_dir=self.data_dir
            )
            for domain, (repository, config) in names.items()
        }
        folder = data_folder(self.data_dir)
        if folder is not None and (folder / "synthdigits").is_dir():
            sources["synthdigits"] = Folder(folder / "synthdigits", SIZE)
        else:
            sources["fontdigits"] = FontDigits()
        return sources

    def key(self) -> dict[str, Any]:
        """Return the keys of all domains."""
        keys = {name: source.key() for name, source in self.domains().items()}
        return {"source": "digit5", "version": 1, "domains": keys}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Load the domains one after the other."""
        images, labels, groups = [], [], []
        domains = self.domains()
        for number, (name, source) in enumerate(domains.items()):
            part = source.load(progress)
            if len(part.class_names) != 10:
                raise InputError(f"The domain {name} has {len(part.class_names)} classes, not 10.")
            if part.inputs.shape[1:] != (SIZE, SIZE, 3):
                raise InputError(f"The domain {name} has images of {part.inputs.shape[1:]}.")
            images.append(part.inputs)
            labels.append(part.labels)
            groups.append(np.full(len(part.labels), number))
        return Dataset(
            np.concatenate(images),
            np.concatenate(labels),
            tuple("0123456789"),
            np.concatenate(groups),
            tuple(domains),
        )


def _draw(digit: int, fonts: list[str], row: int) -> NDArray[np.uint8]:
    """Draw one digit with neighbours, as on a sign or a house."""
    random = numpy_generator("fontdigits", row)
    back = random.integers(0, 256, 3)
    fore = random.integers(0, 256, 3)
    while np.abs(fore - back).sum() < 180:  # it must be legible
        fore = random.integers(0, 256, 3)
    font = ImageFont.truetype(fonts[random.integers(len(fonts))], int(random.integers(20, 31)))
    canvas = Image.new("RGB", (2 * SIZE, 2 * SIZE), tuple(int(v) for v in back))
    pen = ImageDraw.Draw(canvas)
    step = font.getlength("0") + float(random.uniform(0, 4))
    centre = SIZE + random.uniform(-2, 2, size=2)
    for place in (-1, 0, 1):
        shown = digit if place == 0 else int(random.integers(10))
        if place == 0 or random.random() < 0.5:
            position = (float(centre[0]) + place * step, float(centre[1]))
            colour = tuple(int(v) for v in fore)
            pen.text(position, str(shown), fill=colour, font=font, anchor="mm")
    turned = canvas.rotate(
        float(random.uniform(-15, 15)),
        Image.Resampling.BICUBIC,
        fillcolor=tuple(int(v) for v in back),
    )
    cut = turned.crop((SIZE // 2, SIZE // 2, SIZE // 2 + SIZE, SIZE // 2 + SIZE))
    cut = cut.filter(ImageFilter.GaussianBlur(float(random.uniform(0, 0.8))))
    noisy = np.asarray(cut).astype(np.float64) + random.normal(0, random.uniform(0, 12), (1,))
    noisy += random.normal(0, random.uniform(0, 10), (SIZE, SIZE, 3))
    return noisy.clip(0, 255).astype(np.uint8)
