# ruff: noqa: E501  (tables)
"""Odd images and sources of images: one line that says what is wrong, or pixels that are Pillow's own."""

import io
import os
import random
import struct
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from nadaraya.data.images import Augmentation, evaluation_batches, open_images, training_batches
from nadaraya.data.images.sources import ImageSet
from nadaraya.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")]

_GREY = Image.fromarray(np.arange(0, 256, 2, dtype=np.uint8).reshape(8, 16))
_COLOUR = Image.merge("RGB", (_GREY, _GREY.rotate(180), _GREY.transpose(Image.Transpose.FLIP_LEFT_RIGHT)))
_EDGE = Image.fromarray(np.repeat(np.array([0, 255], np.uint8), 64).reshape(8, 16))  # black, then white
_HALF = Image.fromarray(np.tile(np.repeat(np.array([0, 255], np.uint8), 8), (8, 1)))
_WHITE, _BLACK = (Image.new("L", (16, 8), value) for value in (255, 0))


def _bytes(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _png(
    width: int, height: int, depth: int, colour: int, rows: bytes = b"", *chunks: tuple[bytes, bytes]
) -> bytes:
    """A PNG written by hand: what Pillow writes is not odd enough."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)), *chunks,
             (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _on_white(image: Image.Image, alpha: Image.Image) -> Image.Image:
    """Laid on white, in floating point."""
    share = np.asarray(alpha, dtype=float)[..., None] / 255
    return Image.fromarray(
        np.round(share * np.asarray(image.convert("RGB")) + (1 - share) * 255).astype(np.uint8)
    )


def _turned(image: Image.Image, tag: int) -> Image.Image:
    """As an orientation tag says, by arrays: rows and columns of a file whose first row is what is named."""
    array = np.asarray(image)
    if tag >= 5:
        array = array.swapaxes(0, 1)
    rows, columns = {
        1: (1, 1),
        2: (1, -1),
        3: (-1, -1),
        4: (-1, 1),
        5: (1, 1),
        6: (1, -1),
        7: (-1, -1),
        8: (-1, 1),
    }[tag]
    return Image.fromarray(np.ascontiguousarray(array[::rows, ::columns]))


# What a file holds, what it shows in RGB (None: it is refused) and how far pixels may be off.
Case = tuple[bytes, Image.Image | None, int]


def _images() -> Iterator[tuple[str, Case]]:
    alpha = Image.fromarray(np.asarray(_GREY)[::-1].copy())
    for name, image in {"grey": _GREY, "white": _WHITE, "black": _BLACK, "edge": _EDGE}.items():
        rgb = image.convert("RGB")
        for kind, mode, off in (("png", "L", 0), ("png", "RGB", 0), ("png", "P", 0), ("tiff", "CMYK", 0), ("tiff", "YCbCr", 2),
                                ("jpeg", "CMYK", 9), ("jpeg", "L", 9), ("bmp", "RGB", 0), ("ppm", "L", 0), ("tiff", "L", 0)):  # fmt: skip
            yield (
                f"{name} {mode} {kind}",
                (_bytes(rgb.convert(mode), kind), rgb.convert(mode).convert("RGB"), off),
            )
        wide = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
        for kind in ("png", "tiff", "ppm"):
            yield f"{name} I;16 {kind}", (_bytes(wide, kind), rgb, 0)
        yield f"{name} I tiff", (_bytes(Image.fromarray(np.asarray(image).astype(np.int32)), "tiff"), rgb, 0)
        yield f"{name} F tiff", (_bytes(image.convert("F"), "tiff"), None, 0)
        yield f"{name} webp", (_bytes(rgb, "webp", lossless=True), rgb, 0)
        for mode, kind in (
            ("LA", "png"),
            ("LA", "tiff"),
            ("RGBA", "png"),
            ("RGBA", "tiff"),
            ("RGBA", "webp"),
            ("PA", "tiff"),
        ):
            if mode == "PA":
                shown = image.convert("LA").convert("PA")
                shown.putalpha(alpha)
            else:
                shown = image.convert(mode)
                shown.putalpha(alpha)
            options = {"lossless": True, "exact": True} if kind == "webp" else {}
            yield f"{name} {mode} {kind}", (_bytes(shown, kind, **options), _on_white(rgb, alpha), 1)
    for name, image in {"white": _WHITE, "black": _BLACK, "edge": _EDGE}.items():
        for kind in ("png", "tiff", "ppm", "bmp"):
            yield f"{name} 1 {kind}", (_bytes(image.convert("1"), kind), image.convert("RGB"), 0)
        yield f"{name} gif", (_bytes(image, "gif"), image.convert("RGB"), 0)
    yield (
        "HSV by way of RGB",
        (_bytes(_COLOUR.convert("HSV").convert("RGB"), "png"), _COLOUR.convert("HSV").convert("RGB"), 0),
    )
    for light, image in ((255, _WHITE), (0, _BLACK)):
        lab = Image.new("LAB", (16, 8), (light, 128, 128))
        yield f"LAB {light}", (_bytes(lab, "tiff"), image.convert("RGB"), 1)
    yield "grey with premultiplied alpha", (_bytes(Image.merge("LA", (_GREY, _WHITE)), "tiff").replace(
        struct.pack("<HHIHH", 338, 3, 1, 2, 0), struct.pack("<HHIHH", 338, 3, 1, 1, 0)), _GREY.convert("RGB"), 0)  # fmt: skip
    yield (
        "I;16 to 255",
        (_bytes(Image.fromarray(np.asarray(_GREY).astype(np.uint16)), "png"), _BLACK.convert("RGB"), 0),
    )
    yield "I beyond 16 bits", (_bytes(Image.fromarray(np.full((4, 4), 70_000, np.int32)), "tiff"), None, 0)
    yield "I below 0", (_bytes(Image.fromarray(np.full((4, 4), -1, np.int32)), "tiff"), None, 0)
    yield "F with NaN", (_bytes(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "tiff"), None, 0)
    clear = np.array([[0, 1000, 30_000, 65_535]], np.uint16)
    shown = Image.fromarray(np.array([[0, 3, 255, 255]], np.uint8)).convert("RGB")
    yield (
        "I;16 with a transparent value",
        (_bytes(Image.fromarray(clear), "png", transparency=30_000), shown, 0),
    )
    for mode, key in (("1", 0), ("L", 0), ("RGB", (0, 0, 0)), ("P", 0)):
        image = _HALF.convert("RGB").convert(mode) if mode != "P" else _HALF.copy()
        if mode == "P":
            image = _HALF.convert("P")
        yield f"transparent black {mode}", (_bytes(image, "png", transparency=key), _WHITE.convert("RGB"), 0)
    for tag in range(1, 9):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = tag
        for kind in ("png", "tiff", "webp"):
            options = {"lossless": True} if kind == "webp" else {}
            yield (
                f"orientation {tag} {kind}",
                (_bytes(_COLOUR, kind, exif=exif, **options), _turned(_COLOUR, tag), 0),
            )
    exif[ExifTags.Base.Orientation] = 99
    yield "orientation 99", (_bytes(_COLOUR, "png", exif=exif), _COLOUR, 0)
    frames = [_COLOUR.convert("P"), *(Image.new("P", (16, 8), value) for value in (3, 200))]
    yield (
        "animation gif",
        (_bytes(frames[0], "gif", save_all=True, append_images=frames[1:]), frames[0].convert("RGB"), 0),
    )
    yield (
        "animation png",
        (_bytes(_COLOUR, "png", save_all=True, append_images=[_COLOUR.rotate(180)]), _COLOUR, 0),
    )
    yield (
        "pages tiff",
        (_bytes(_COLOUR, "tiff", save_all=True, append_images=[_COLOUR.rotate(180)]), _COLOUR, 0),
    )
    for size in ((1, 1), (1, 5000), (5000, 1), (1, 2), (7, 3), (65_000, 1)):
        yield (
            f"{size[0]} × {size[1]}",
            (_bytes(Image.new("RGB", size, (9, 99, 199)), "png"), Image.new("RGB", size, (9, 99, 199)), 0),
        )
    for size in ((0, 0), (0, 5), (2**31 - 1, 2**31 - 1), (2**32 - 1, 1), (60_000, 60_000), (9_000, 9_000)):
        yield f"declares {size[0]} × {size[1]}", (_png(*size, 8, 2, b"\0"), None, 0)
    yield "a depth that is none", (_png(4, 4, 7, 2, b"\0" * 99), None, 0)
    yield "a colour type that is none", (_png(4, 4, 8, 5, b"\0" * 99), None, 0)
    yield "a palette that is absent", (_png(2, 1, 8, 3, b"\0\0\1"), None, 0)
    for kind in ("png", "jpeg", "tiff", "gif", "webp", "bmp", "ppm"):
        data = _bytes(_COLOUR.resize((64, 64)), kind)
        for share in (0.05, 0.5, 0.9):
            yield f"{kind} cut at {share:.0%}", (data[: int(share * len(data))], None, 0)
    for name, data in {"empty": b"", "blank": b"\n", "text": b"not an image", "HTML": b"<html>404</html>", "zeros": bytes(5000),
                       "PNG's mark": b"\x89PNG\r\n\x1a\n", "JPEG's mark": b"\xff\xd8\xff", "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
                       "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
                       "line ends": b"\n\x1b[31m\r\xe2\x80\xa8"}.items():  # fmt: skip
        yield name, (data, None, 0)


def _check_line(error: BaseException, named: str) -> None:
    line = str(error)
    assert line.isprintable()
    assert named in line
    assert "allow_pickle" not in line


def _folder(root: Path, files: dict[str, bytes]) -> Path:
    """A set with one good image per class and split, and these files."""
    for split in ("train", "val"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
            (root / split / name / "good.png").write_bytes(_bytes(_COLOUR, "png"))
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def _check_batches(images: ImageSet, count: int) -> None:
    """Training and validation give `count` images of the shape declared, with pixels in their range."""
    augmentation = Augmentation(
        image_size=8,
        mixup=0,
        cutmix=0,
        mean=(0.0,) * images.channels,
        std=(1.0,) * images.channels,
        random_erasing=0,
    )
    training = training_batches(
        images, augmentation, batch_size=len(images.train), seed=0, first_step=0, steps=1
    )
    seen = 0
    for inputs, targets in training:
        assert inputs.shape == (len(images.train), images.channels, 8, 8)
        assert targets.shape == (len(images.train), len(images.classes))
        assert torch.allclose(targets.sum(1), torch.ones(()))
        assert 0 <= inputs.min() <= inputs.max() <= 1
    for inputs, labels in evaluation_batches(images, augmentation, batch_size=3):
        assert inputs.shape[1:] == (images.channels, 8, 8)
        assert 0 <= inputs.min() <= inputs.max() <= 1
        assert 0 <= labels.min() <= labels.max() < len(images.classes)
        seen += len(labels)
    assert seen == count


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_shows_what_pillow_shows_or_is_corrupt(channels: int, tmp_path: Path) -> None:
    outcomes: Counter[bool] = Counter()
    for number, (case, (data, shown, off)) in enumerate(_images()):
        root = _folder(tmp_path / str(number), {"train/a/odd.png": data, "val/b/odd.png": data})
        for corrupt in ("fatal", "skip"):
            images = open_images(str(root), corrupt=corrupt, channels=channels)
            index = next(i for i in range(len(images.train)) if images.train.name(i).endswith("odd.png"))
            outcomes[shown is None] += 1
            if shown is None:
                with pytest.raises(InputError) as refused:
                    images.train.read(index)
                _check_line(refused.value, "train/a/odd.png")
                assert len(str(refused.value)) <= 400, case
                if corrupt == "fatal":
                    with pytest.raises(InputError) as refused:
                        _check_batches(images, 3)
                    _check_line(refused.value, "odd.png")
                    continue
            else:
                picture = images.train.read(index)
                wanted = np.asarray(shown.convert("L" if channels == 1 else "RGB"), dtype=int)
                assert np.asarray(picture).shape == wanted.shape, case
                assert np.abs(np.asarray(picture) - wanted).max() <= off + (channels == 1), case
            with pytest.warns(UserWarning, match="left out") if shown is None else nullcontext():
                _check_batches(images, 2 if shown is None else 3)
    assert outcomes.total() >= 2 * 56
    assert min(outcomes.values()) >= 2 * 20
    print(f"{outcomes.total() // 2} images: {outcomes[True] // 2} refused, {outcomes[False] // 2} shown")


_GOOD = _bytes(_COLOUR, "png")
_LABELS = np.array([0, 1, 0, 1])
_PIXELS = np.zeros((4, 8, 8, 3), np.uint8)


def _npz(**changes: object) -> Callable[[Path], str]:
    """An .npz of 4 images per split with these arrays in the place of its own; None leaves one out."""

    def make(root: Path) -> str:
        arrays: dict[str, object] = {
            "train_images": _PIXELS,
            "train_labels": _LABELS,
            "val_images": _PIXELS,
            "val_labels": _LABELS,
        }
        arrays |= changes
        np.savez(root / "odd.npz", **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]
        return str(root / "odd.npz")

    return make


def _huge_npz(root: Path) -> str:
    """An array that declares a tebibyte."""
    path = _npz()(root)
    import zipfile

    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["train_images.npy"] = parts["train_images.npy"].replace(
        b"(4, 8, 8, 3)", b"(1099511627776, 8, 8, 3)"
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def _shards(
    train: dict[str, bytes], change: Callable[[bytes], bytes] = bytes, beside: dict[str, bytes] | None = None
) -> Callable[[Path], str]:
    """Shards with these members in the training one, whose bytes are then changed."""

    def make(root: Path) -> str:
        for split, members in (("train", train), ("val", {"0.png": _GOOD, "0.cls": b"0"})):
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w") as tar:
                for name, data in members.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
            data = file.getvalue()
            (root / f"x-{split}.tar").write_bytes(change(data) if split == "train" else data)
        for name, data in (beside or {}).items():
            (root / name).write_bytes(data)
        return str(root)

    return make


def _negative_size(data: bytes) -> bytes:
    """The size of a later member becomes −512, its checksum right: the next one is itself."""
    place = data.index(b"1.png")
    head = bytearray(data[place : place + 512])
    head[124:136] = (256**12 - 512).to_bytes(12, "big")
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return data[:place] + bytes(head) + data[place + 512 :]


def _in_folder(act: Callable[[Path], object], files: dict[str, bytes] | None = None) -> Callable[[Path], str]:
    def make(root: Path) -> str:
        _folder(root / "set", files or {})
        act(root / "set")
        return str(root / "set")

    return make


def _named(content: bytes, name: str) -> Callable[[Path], str]:
    def make(root: Path) -> str:
        (root / name).write_bytes(content)
        return str(root / name)

    return make


_PAIR = {"0.png": _GOOD, "0.cls": b"0", "1.png": _GOOD, "1.cls": b"1"}
_ODD_NAMES = (
    "two\nlines",
    "\x1b[31mred",
    "byte\udcff",
    "line\u2028end",
    " ",
    "*",
    "[a]",
    "a'b\"c",
    "e\u0301",
    "x" * 200,
    "%s{0}",
)
# What makes the source, and how many images validate (None: it is refused).
_SOURCES: dict[str, tuple[Callable[[Path], str], int | None]] = {
    "npz as it should be": (_npz(), 4),
    "npz grey": (_npz(train_images=_PIXELS[..., 0], val_images=_PIXELS[..., :1]), 4),
    "npz in Fortran's order": (_npz(train_images=np.asfortranarray(_PIXELS)), 4),
    "npz labels in a column": (_npz(train_labels=_LABELS[:, None]), 4),
    "npz labels unsigned": (_npz(train_labels=_LABELS.astype(np.uint64)), 4),
    "npz objects as images": (_npz(train_images=np.array([None, "a"], dtype=object)), None),
    "npz objects as labels": (_npz(val_labels=np.array([0, "a"], dtype=object)), None),
    "npz objects as names": (_npz(class_names=np.array(["a", None], dtype=object)), None),
    "npz too few names": (_npz(class_names=np.array(["a"])), None),
    "npz four channels": (_npz(train_images=np.zeros((4, 8, 8, 4), np.uint8)), None),
    "npz one image": (_npz(train_images=_PIXELS[0]), None),
    "npz channels first": (_npz(train_images=_PIXELS.transpose(0, 3, 1, 2)), None),
    "npz without a dimension": (_npz(train_images=np.uint8(1)), None),
    **{f"npz {dtype}": (_npz(train_images=_PIXELS.astype(dtype)), None)
       for dtype in ("f4", "f8", "i4", "u2", "i1", "?", "c8", "M8[s]", "U3", "V2")},
    "npz NaN": (_npz(train_images=np.full((4, 8, 8, 3), np.nan)), None),
    "npz labels absent": (_npz(train_labels=None), None),
    "npz images absent": (_npz(val_images=None), None),
    "npz validation absent": (_npz(val_images=None, val_labels=None), None),
    "npz labels of floats": (_npz(train_labels=_LABELS.astype(float)), None),
    "npz labels of texts": (_npz(train_labels=_LABELS.astype(str)), None),
    "npz labels true and false": (_npz(train_labels=_LABELS.astype(bool)), None),
    "npz labels one-hot": (_npz(train_labels=np.eye(4, dtype=int)), None),
    "npz labels negative": (_npz(train_labels=-_LABELS), None),
    "npz labels all negative": (_npz(train_labels=_LABELS - 9), None),
    "npz labels too many": (_npz(train_labels=np.arange(5) % 2), None),
    "npz labels too few": (_npz(train_labels=_LABELS[:3]), None),
    "npz label beyond the training ones": (_npz(val_labels=_LABELS + 1), None),
    "npz label of 2³¹ − 1": (_npz(train_labels=_LABELS * (2**31 - 1)), None),
    "npz label of 2⁶³": (_npz(train_labels=_LABELS.astype(np.uint64) * np.uint64(2**63)), None),
    "npz no images": (_npz(train_images=_PIXELS[:0], train_labels=_LABELS[:0]), None),
    "npz no validation images": (_npz(val_images=_PIXELS[:0], val_labels=_LABELS[:0]), None),
    "npz images without pixels": (_npz(train_images=np.zeros((4, 0, 0, 3), np.uint8)), None),
    "npz images without a width": (_npz(val_images=np.zeros((4, 8, 0, 3), np.uint8)), None),
    "npz of a tebibyte": (_huge_npz, None),
    "npz packed": (_npz(train_jpeg=np.frombuffer(_GOOD * 4, np.uint8), train_offsets=np.arange(5) * len(_GOOD)), 4),
    "npz packed, falling offsets": (_npz(train_jpeg=np.zeros(9, np.uint8), train_offsets=np.array([0, 5, 3, 7, 9])), None),
    "npz packed, beyond the end": (_npz(train_jpeg=np.zeros(9, np.uint8), train_offsets=np.array([0, 5, 6, 7, 10])), None),
    "npz packed, empty files": (_npz(train_jpeg=np.zeros(9, np.uint8), train_offsets=np.zeros(5, int)), None),
    "npz packed, no offsets": (_npz(train_jpeg=np.zeros(9, np.uint8)), None),
    **{f"{name} named .{ending}": (_named(data, f"a.{ending}"), None) for ending in ("npz", "tar", "png", "txt")
       for name, data in (("empty", b""), ("text", b"text\n"), ("zip mark", b"PK\3\4" + bytes(90)), ("zeros", bytes(10_240)), ("pickle", b"cos\nsystem\n."))},
    "absent": (lambda root: str(root / "absent"), None),
    "absent .npz": (lambda root: str(root / "absent.npz"), None),
    "absent .tar": (lambda root: str(root / "absent.tar"), None),
    "no name": (lambda root: "", None),
    "NUL": (lambda root: "a\0b", None),
    "a long name": (lambda root: "a" * 5000, None),
    "a long .npz": (lambda root: "a" * 5000 + ".npz", None),
    "a pattern": (lambda root: str(root / "[z-a]*"), None),
    "torchvision alone": (lambda root: "torchvision:", None),
    "torchvision unknown": (lambda root: "torchvision:__init__", None),
    "pipe .npz": (lambda root: os.mkfifo(root / "p.npz") or str(root / "p.npz"), None),  # type: ignore[func-returns-value]
    "folder .npz": (lambda root: (root / "p.npz").mkdir() or str(root / "p.npz"), None),  # type: ignore[func-returns-value]
    "device .npz": (lambda root: (root / "z.npz").symlink_to("/dev/zero") or str(root / "z.npz"), None),  # type: ignore[func-returns-value]
    "shards as they should be": (_shards(_PAIR), 1),
    "shards with absolute names": (_shards({f"/etc/{k}": v for k, v in _PAIR.items()}), 1),
    "shards with names above": (_shards({f"../../{k}": v for k, v in _PAIR.items()}), 1),
    "shards with odd names": (_shards({f"a\n\x1b{k}": v for k, v in _PAIR.items()}), 1),
    "shards with other members": (_shards(_PAIR | {"README": b"text", "0.txt": b"a"}), 1),
    "shards without a label": (_shards({"0.png": _GOOD}), None),
    "shards without an image": (_shards({"0.cls": b"0"}), None),
    "shards with the wrong ending": (_shards({"0.pdf": _GOOD, "0.cls": b"0"}), None),
    "shards empty": (_shards({}), None),
    "shards with two labels": (_shards(_PAIR | {"0.json": b'{"label": 1}'}), None),
    "shards with two images": (_shards(_PAIR | {"0.jpg": _GOOD}), None),
    **{f"shards with the label {label[:9]!r}": (_shards(_PAIR | {"0.cls": label}), None)
       for label in (b"", b"x", b"-1", b"1.5", b"true", b"null", b"[1]", b"NaN", b"9" * 5000, b"2147483647", b"\xff", b"[" * 99_999)},
    "shards cut in an image": (_shards(_PAIR, lambda data: data[:600]), None),
    "shards cut in a header": (_shards(_PAIR, lambda data: data[: data.index(b"1.png") + 99]), None),
    "shards cut before a header": (_shards(_PAIR, lambda data: data[: data.index(b"1.png")]), None),
    "shards with a damaged header": (_shards(_PAIR, lambda data: data.replace(b"1.png", b"1.pgn")), None),
    "shards with a negative size": (_shards(_PAIR, _negative_size), None),
    "shards compressed": (_shards(_PAIR, zlib.compress), None),
    "shards of nothing": (_shards(_PAIR, lambda data: b""), None),
    "shards with few names": (_shards(_PAIR, beside={"classes.txt": b"a\n"}), None),
    "shards with names in no text": (_shards(_PAIR, beside={"classes.txt": b"\xff\xff"}), None),
    "shards with a damaged description": (_shards(_PAIR, beside={"dataset_info.json": b"{"}), None),
    "shards with a deep description": (_shards(_PAIR, beside={"dataset_info.json": b"[" * 99_999}), None),
    "shards with another description": (_shards(_PAIR, beside={"dataset_info.json": b"[1]"}), None),
    "shards with a description without names": (_shards(_PAIR, beside={"dataset_info.json": b'{"features": {"label": {"_type": "Value"}}}'}), 1),
    "shards with a pipe": (lambda root: os.mkfifo(root / "y-train.tar") or _shards(_PAIR)(root), None),  # type: ignore[func-returns-value]
    "shards with a folder": (lambda root: (root / "y-train.tar").mkdir() or _shards(_PAIR)(root), None),  # type: ignore[func-returns-value]
    "folder as it should be": (_in_folder(lambda s: None), 2),
    "folder without classes": (lambda root: (root / "train").mkdir() or (root / "val").mkdir() or str(root), None),  # type: ignore[func-returns-value]
    "folder with an empty class": (_in_folder(lambda s: (s / "train" / "c").mkdir()), None),
    "folder with a class in one split": (_in_folder(lambda s: None, {"val/c/1.png": _GOOD}), None),
    "folder without validation": (_in_folder(lambda s: (s / "val").rename(s / "held")), None),
    "folder with files beside the classes": (_in_folder(lambda s: None, {"train/x.png": b"", "val/x.png": _GOOD}), 2),
    "folder with nested classes": (_in_folder(lambda s: None, {"val/a/deep/er/1.png": _GOOD}), 3),
    "folder with other files": (_in_folder(lambda s: None, {"val/a/Thumbs.db": b"", "val/a/x.txt": b""}), 2),
    "folder with a hidden image": (_in_folder(lambda s: None, {"val/a/.1.png": _GOOD}), 3),
    "folder with a file of macOS": (_in_folder(lambda s: None, {"val/a/._1.png": b"\0\5\x16\7"}), None),
    "folder with a hidden class": (_in_folder(lambda s: (s / "val" / ".checkpoints").mkdir()), None),
    "folder with a link to itself": (_in_folder(lambda s: (s / "val" / "c").symlink_to("c")), 2),
    "folder with a link above": (_in_folder(lambda s: (s / "val" / "a" / "up").symlink_to("..")), None),
    "folder with a class twice": (_in_folder(lambda s: (s / "val" / "c").symlink_to("a")), None),
    "folder with an image twice": (_in_folder(lambda s: (s / "val" / "a" / "c.png").symlink_to("good.png")), 3),
    "folder with a dangling image": (_in_folder(lambda s: (s / "val" / "a" / "c.png").symlink_to("gone.png")), None),
    "folder with an image linked to itself": (_in_folder(lambda s: (s / "val" / "a" / "c.png").symlink_to("c.png")), None),
    "folder with a pipe": (_in_folder(lambda s: os.mkfifo(s / "val" / "a" / "c.png")), None),
    "folder with a device": (_in_folder(lambda s: (s / "val" / "a" / "c.png").symlink_to("/dev/zero")), None),
    "folder with a folder named .png": (_in_folder(lambda s: (s / "val" / "a" / "c.png").mkdir()), 2),
    **{f"folder with {name[:20]!a}": (_in_folder(lambda s: None, {f"{split}/{name}/{name}.png": _GOOD for split in ("train", "val")}), 3) for name in _ODD_NAMES},
    **{f"folder with a bad {name[:20]!a}": (_in_folder(lambda s: None, {f"val/a/{name}.png": b"bad"}), None) for name in _ODD_NAMES},
}  # fmt: skip


@pytest.mark.parametrize("case", _SOURCES)
def test_a_source_is_refused_in_one_line_or_gives_its_images(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path / "cache"))
    make, count = _SOURCES[case]
    root = tmp_path / "t"
    root.mkdir()
    source = make(root)
    if count is None:
        with pytest.raises(InputError) as refused:
            _check_batches(open_images(source), 0)
        _check_line(refused.value, "")
        assert len(str(refused.value)) <= 700
    else:
        images = open_images(source)
        _check_batches(images, count)
        assert images.sha256 == open_images(source).sha256


@pytest.mark.parametrize("kind", ["npz", "shards", "folder"])
def test_a_damaged_source_never_traces_back(kind: str, tmp_path: Path) -> None:
    draw = random.Random(kind)
    make = {"npz": _npz(), "shards": _shards(_PAIR), "folder": _in_folder(lambda s: None)}[kind]
    outcomes: Counter[bool] = Counter()
    for number in range(60):
        root = tmp_path / str(number)
        root.mkdir()
        source = make(root)
        path = draw.choice(sorted(path for path in root.rglob("*") if path.is_file()))
        data = bytearray(path.read_bytes())
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        for _ in range(draw.randint(1, 8)):
            if data:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            images = open_images(source)
            _check_batches(images, len(images.validation))
        except InputError as error:
            _check_line(error, "")
            outcomes[True] += 1
        else:
            outcomes[False] += 1
    assert outcomes[True] > 10
