"""Compare batch sizes, learning rates and networks on small federations of photos.

Makes two folders of images from the local copies that PFEDFDA_DATA names, in mixed sizes and kinds
of files as people have them, and runs methods on them with all settings named; accuracies are those
on validation images:

    PFEDFDA_DATA=DATA python experiments/small_data.py FOLDER [--networks]
"""

import argparse
import io
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

import pfedfda

Images = dict[str, list[bytes]]
CIFAR_ROWS = 12_000


def write(folder: Path, images: Images, per_class: int, sites: int, largest: int) -> Path:
    """Write images as ``site/class/image``, with sides from 64 pixels on, and wider ones."""
    random = np.random.default_rng(0)
    for name, encoded in images.items():
        chosen = [encoded[i] for i in random.permutation(len(encoded))[:per_class]]
        for number, content in enumerate(chosen):
            side = int(random.integers(64, largest + 1))
            margin = int(side * random.uniform(1, 1.3)) - side
            image = Image.open(io.BytesIO(content)).convert("RGB")
            pixels = np.asarray(image.resize((side, side), Image.Resampling.BICUBIC))
            margins = ((0, 0), (margin // 2, margin - margin // 2), (0, 0))
            suffix, options = (".jpg", {"quality": 92}) if random.random() < 0.7 else (".png", {})
            path = folder / f"site-{'abcde'[number % sites]}" / name / f"{number:04}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.pad(pixels, margins, mode="reflect")).save(path, **options)
    return folder


def read(files: list[Path], image: str, rows: int | None = None) -> dict[int, list[bytes]]:
    """Return encoded images by label."""
    found: dict[int, list[bytes]] = {}
    for file in files:
        table = pq.read_table(file).slice(0, rows).to_pydict()
        for content, label in zip(table[image], table["label"], strict=True):
            found.setdefault(label, []).append(content["bytes"])
    return found


def make_photos(data: Path, folder: Path) -> Path:
    """Write 288 photos of four classes of CIFAR-10, at three sites."""
    files = [data / "uoft-cs/cifar10/plain_text/train-00000-of-00001.parquet"]
    cifar = read(files, "img", CIFAR_ROWS)
    names = {"airplane": 0, "car": 1, "frog": 6, "horse": 7}
    return write(folder / "photos", {k: cifar[v] for k, v in names.items()}, 72, 3, 160)


def make_ten(data: Path, folder: Path) -> Path:
    """Write 600 photos of ten classes of TinyImageNet, at five sites."""
    tiny = read(sorted((data / "zh-plus/tiny-imagenet/default").glob("*.parquet")), "image")
    return write(folder / "ten", {f"c{k}": tiny[k] for k in sorted(tiny)[5::20]}, 60, 5, 128)


def main() -> None:
    """Make the folders that are missing, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", action="store_true", help="also ResNet18, which takes long")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    data = Path(os.environ["PFEDFDA_DATA"])
    networks = ("cifar-cnn", "resnet18") if arguments.networks else ("cifar-cnn",)
    for name, make in (("photos", make_photos), ("ten", make_ten)):
        folder = arguments.folder / name
        if not folder.exists():
            make(data, arguments.folder)
        federation = pfedfda.FederationConfig(source=str(folder), validation_share=0.25)
        for model in networks:
            for method in ("pfedfda", "fedavg"):
                for lr in (0.01, 0.03):
                    for batch_size in (10, 20, 50):
                        result = pfedfda.run(
                            method, federation, rounds=arguments.rounds, model=model, lr=lr,
                            batch_size=batch_size, eval_every=0, workers=0, quiet=True,
                            output=arguments.folder / "runs",
                        )  # fmt: skip
                        print(
                            f"{name} {model} {method} lr {lr} batch {batch_size}: "
                            f"accuracy {result.mean_accuracy:.3f}, "
                            f"{result.seconds['total']:.0f} s",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
