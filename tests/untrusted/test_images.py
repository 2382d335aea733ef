"""Images of others: .npz files and folders that are damaged or malicious."""

import io
import os
import re
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from pfedfda.cli import main
from pfedfda.data import FederationConfig, decoding, open_source, prepare
from pfedfda.errors import InputError
from tests.conftest import write_image
from tests.untrusted.refusals import damaged, is_refused, little_memory, peak_memory

pytestmark = pytest.mark.timeout(120)
IN_ONE_FOLDER = [HealthCheck.function_scoped_fixture]
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (12, 9, 9), dtype=np.uint8)
LABELS = np.arange(12) % 3


def packed(compress: bool = False, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def load(path: Path) -> None:
    open_source(str(path)).load()


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, suppress_health_check=IN_ONE_FOLDER)
@given(data=st.data(), compress=st.booleans())
def test_a_damaged_npz_is_read_or_refused(
    tmp_path: Path, data: st.DataObject, compress: bool
) -> None:
    names = np.array(["a", "b", "c"])
    whole = packed(compress, images=IMAGES, labels=LABELS, clients=LABELS, class_names=names)
    path = tmp_path / "images.npz"
    path.write_bytes(data.draw(damaged(whole)))
    is_refused(load, path)


WRONG_ARRAYS: dict[str, dict[str, Any]] = {
    "an empty archive": {},
    "no labels": {"images": IMAGES},
    "pickled objects": {"images": IMAGES, "labels": np.array([{}] * 12, dtype=object)},
    "floats as labels": {"images": IMAGES, "labels": LABELS / 2},
    "labels below zero": {"images": IMAGES, "labels": LABELS - 1},
    "a label of 2^62": {"images": IMAGES, "labels": np.where(LABELS == 2, 2**62, LABELS)},
    "a label of 2^64-1": {"images": IMAGES, "labels": np.full(12, 2**64 - 1, np.uint64)},
    "labels of another shape": {"images": IMAGES, "labels": LABELS.reshape(3, 4)},
    "one number as image": {"images": np.uint8(1), "labels": np.int64(0)},
    "no samples": {"images": IMAGES[:0], "labels": LABELS[:0]},
    "images without pixels": {"images": IMAGES[:, :0], "labels": LABELS},
    "complex images": {"images": IMAGES * 1j, "labels": LABELS},
    "not a number": {"X": np.full((12, 3), np.nan), "y": LABELS},
    "infinite in single precision": {"X": np.full((12, 3), 1e300), "y": LABELS},
    "dates": {"X": np.zeros((12, 3), "M8[s]"), "y": LABELS},
    "endless images": {"images": np.zeros((3, 1, 5000), np.uint8), "labels": LABELS[:3]},
    "structures": {"images": IMAGES, "labels": np.zeros(12, [("a", "i8")])},
    "dates as clients": {"images": IMAGES, "labels": LABELS, "clients": np.zeros(12, "M8[s]")},
    "too few names": {"images": IMAGES, "labels": LABELS, "class_names": np.array(["a"])},
}


@pytest.mark.parametrize("what", WRONG_ARRAYS)
def test_wrong_arrays_are_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "images.npz"
    path.write_bytes(packed(**WRONG_ARRAYS[what]))
    with little_memory():
        assert is_refused(load, path)


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "content",
    [
        header("(10000000000, 28, 28)"),
        header("(-1, 28, 28)"),
        header("(4611686018427387904, 4, 4)"),
        header("(1000000000000000,)", "<U0"),
        header("(1000000000000000,)", "|V0"),
        header("(12, 9, 9)", "|O") + b"cos\nsystem\n(S'false'\ntR." * 50,
        header("(" * 5000),
        b"\x93NUMPY\x09\x00" + b" " * 100,
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100,
        b"",
        b"GARBAGE" * 10,
    ],
    ids=lambda content: str(content[10:75]),
)
@pytest.mark.parametrize("name", ["images", "class_names"])
def test_headers_that_lie_are_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / "images.npz"
    arrays = {"images": IMAGES, "labels": LABELS, "class_names": np.array(["a", "b", "c"])}
    with zipfile.ZipFile(path, "w") as archive:
        for array_name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            whole = content if array_name == name else buffer.getvalue()
            archive.writestr(f"{array_name}.npy", whole)
    with little_memory():
        assert is_refused(load, path)


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    size = 3_000_000_000
    buffer = io.BytesIO()
    np.save(buffer, LABELS)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("labels.npy", buffer.getvalue())
        with archive.open("images.npy", "w", force_zip64=True) as file:
            file.write(header(f"({size // 784}, 28, 28)"))
            zeros = bytes(50_000_000)
            for _ in range(2):  # enough: the directory is made to claim the rest
                file.write(zeros)
    content = bytearray(path.read_bytes())
    real = 2 * 50_000_000 + len(header(f"({size // 784}, 28, 28)"))
    claimed = content.replace(struct.pack("<L", real), struct.pack("<L", size))
    assert claimed != content
    path.write_bytes(claimed)
    with little_memory(), pytest.raises(InputError, match=r"would take 3,000,"):
        load(path)


LOAD = "from pfedfda.data import open_source, decoding; decoding.image_suffixes()"


def test_a_million_samples_of_one_pixel_are_refused(tmp_path: Path) -> None:
    """Their images are small, but labels and clients become numbers and names of many bytes."""
    path = tmp_path / "images.npz"
    count = 60_000_000
    zeros = bytes(count)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("images.npy", header(f"({count}, 1, 1)") + zeros)
        for name in ("labels", "clients"):
            archive.writestr(f"{name}.npy", header(f"({count},)") + zeros)
    assert path.stat().st_size < 1_000_000
    grown, printed = peak_memory(LOAD, "open_source(sys.argv[1]).load()", str(path))
    assert re.search(r"images.npz has [\d,]+ bytes and would take .* 536,870,912", printed)
    assert grown < 200e6


def test_a_few_bytes_of_many_class_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    count = 25_000_000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in (("images", IMAGES), ("labels", LABELS)):
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{name}.npy", buffer.getvalue())
        archive.writestr("class_names.npy", header(f"({count},)", "<U1") + bytes(4 * count))
    grown, printed = peak_memory(LOAD, "open_source(sys.argv[1]).load()", str(path))
    assert "images.npz" in printed
    assert grown < 200e6


def test_a_header_that_never_ends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        size = 400_000_000
        archive.writestr("labels.npy", header("(12,)", "<i8") + bytes(96))
        content = b"\x93NUMPY\x02\x00" + struct.pack("<I", size) + b" " * size
        archive.writestr("images.npy", content)
    del content
    grown, printed = peak_memory(LOAD, "open_source(sys.argv[1]).load()", str(path))
    assert "images.npz" in printed
    assert grown < 200e6


def test_an_honest_file_may_be_compressed_and_large(tmp_path: Path) -> None:
    """Up to half a gigabyte at any rate: 25,000 drawings of 105×105 that are nearly empty."""
    images = np.zeros((25_000, 105, 105), np.uint8)
    images[:, 50] = 255
    path = tmp_path / "images.npz"
    path.write_bytes(packed(True, images=images, labels=np.arange(25_000) % 50))
    assert images.nbytes > 20 * path.stat().st_size
    assert open_source(str(path)).load().inputs.shape == (25_000, 105, 105, 1)


def test_too_many_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    labels = np.arange(100_001)
    path.write_bytes(packed(images=np.zeros((len(labels), 1, 1), np.uint8), labels=labels))
    with pytest.raises(InputError, match=r"100,001 classes.* at most 100,000"):
        load(path)


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    path.write_bytes(packed(images=IMAGES, labels=LABELS))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../evil.npy", b"not an array")
    assert open_source(str(path)).load().inputs.shape == (12, 9, 9, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images.npz"]


def test_one_sample_makes_no_federation(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    path.write_bytes(packed(images=IMAGES[:1], labels=LABELS[:1]))
    assert is_refused(prepare, FederationConfig(source=str(path), clients=1))


def png(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    packed = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )


def deep_png(side: int) -> bytes:
    """Return a black square with 16 bits a pixel."""
    packer = zlib.compressobj(1)
    row = bytes(1 + 2 * side)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    whole = png(side, side)
    size = struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0)
    kinds = {b"IHDR": size, b"IDAT": pixels, b"IEND": b""}
    chunks = b"".join(
        struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c))
        for k, c in kinds.items()
    )
    return whole[:8] + chunks


def test_large_images_are_not_decoded_all_at_once(tmp_path: Path) -> None:
    content = deep_png(9_000)
    assert len(content) < 1_000_000
    for number in range(4):
        path = tmp_path / "class" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    program = "print(open_source(sys.argv[1]).load().inputs.shape)"
    grown, printed = peak_memory(LOAD, program, str(tmp_path))
    assert printed == "(4, 64, 64, 1)"
    assert grown < 1.3e9  # decoding.DECODED_BYTES, and what a process has besides


def test_the_bound_on_pixels_is_told(tmp_path: Path) -> None:
    for side in (10_000, 60_000):
        (tmp_path / "class").mkdir(exist_ok=True)
        (tmp_path / "class" / "bad.png").write_bytes(png(side, side))
        with pytest.raises(InputError, match=r"bad.png .*0000.* at most 89,478,485") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)


def test_threads_share_the_bytes_that_may_be_decoded() -> None:
    budget, most, held = decoding.Budget(100), 0, 0
    lock = threading.Lock()

    def use(size: int) -> None:
        nonlocal most, held
        with budget.holding(size):
            with lock:
                held += size
                most = max(most, held)
                assert held <= 100 or held == size  # what is larger than all goes alone
            time.sleep(0.001)
            with lock:
                held -= size

    sizes = [1, 60, 30, 250, 45, 10, 100, 7] * 10
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, sizes))
    assert held == 0
    assert most == 250


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_deep_images_keep_their_upper_bits(tmp_path: Path, kind: type[np.generic]) -> None:
    """Taller than what is converted at a time."""
    shape = (2_000, 1_500)
    deep = RANDOM.random(shape) if kind is np.float32 else RANDOM.integers(0, 65_536, shape)
    (tmp_path / "class").mkdir()
    path = tmp_path / "class" / "image.tiff"
    Image.fromarray(deep.astype(kind)).save(path)
    values = deep.astype(kind).astype(np.float64)
    expected = (values * (255.0 if kind is np.float32 else 255 / 65_535)).astype(np.uint8)
    fitted = ImageOps.fit(Image.fromarray(expected), (64, 64), Image.Resampling.BICUBIC)
    loaded = open_source(str(tmp_path)).load().inputs[0, ..., 0]
    np.testing.assert_array_equal(loaded, np.asarray(fitted))


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
BAD_FILES: dict[str, Callable[[Path], Any]] = {
    "a bomb": lambda path: path.write_bytes(png(60_000, 60_000)),
    "a smaller bomb": lambda path: path.write_bytes(png(10_000, 10_000)),
    "an impossible size": lambda path: path.write_bytes(png(2**31 - 1, 2**31 - 1)),
    "no pixels": lambda path: path.write_bytes(png(0, 0)),
    "half an image": lambda path: path.write_bytes(png(28, 28)[:-30]),
    "text": lambda path: path.write_text("not an image"),
    "nothing": lambda path: path.touch(),
    "a program of Postscript": lambda path: path.write_bytes(POSTSCRIPT),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_image_is_refused_by_name(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        write_image(tmp_path / "class" / f"{number}.png", number)
    BAD_FILES[what](tmp_path / "class" / "bad.png")
    with little_memory():
        assert main(["run", "--source", str(tmp_path), "--clients", "1", "--quiet"]) == 2
    assert "bad.png" in capsys.readouterr().err


ENCODED = {}
for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
    buffer = io.BytesIO()
    Image.fromarray(np.tile(IMAGES[0], (3, 3))).save(buffer, kind)
    ENCODED[kind] = buffer.getvalue()


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, suppress_health_check=IN_ONE_FOLDER)
@given(data=st.data(), kind=st.sampled_from(sorted(ENCODED)))
def test_a_damaged_image_is_decoded_or_refused(
    tmp_path: Path, data: st.DataObject, kind: str
) -> None:
    folder = tmp_path / "images" / "class"
    folder.mkdir(parents=True, exist_ok=True)
    # The name does not matter: the format is told from the content.
    (folder / "image.png").write_bytes(data.draw(damaged(ENCODED[kind])))
    is_refused(load, folder.parent)


def test_a_folder_with_odd_things_in_it_is_read(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(3):
            write_image(tmp_path / name / f"{number}.png", number)
    (tmp_path / "cat" / "again").symlink_to(tmp_path)  # a loop
    (tmp_path / "dog" / "self.png").symlink_to("self.png")
    (tmp_path / "dog" / "nowhere.png").symlink_to("/nowhere/x.png")
    (tmp_path / "dog" / "device.png").symlink_to("/dev/zero")
    (tmp_path / "dog" / "program.eps").write_bytes(POSTSCRIPT)
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    loaded = open_source(str(tmp_path)).load()
    assert loaded.inputs.shape[0] == 6
    assert loaded.class_names == ("cat", "dog")


def test_names_of_any_bytes_can_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for client in (b"anna", b"b\xe9n"):
        for name in (b"cat", b"d\xffg"):
            for number in range(3):
                path = folder / os.fsdecode(client) / os.fsdecode(name)
                write_image(path / f"{number}.png", number)
    words = ["--rounds", "1", "--epochs", "1", "--workers", "0", "--quiet"]
    output = tmp_path / "runs"
    assert main(["run", "--source", str(folder), "--output", str(output), *words]) == 0
    assert "b\\xe9n" in (output / "images-fedavg" / "clients.csv").read_text()
