"""Tar shards in webdataset's form, read by offset, so that order, repeats and resuming are those of a folder.

The offsets come from one pass over the headers with the standard library's tarfile and stay in memory.
webdataset itself reads shards as streams, in an order that depends on the number of workers.
"""

import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from nadaraya.data.images.sources import EncodedImages, arrays_digest, files_digest
from nadaraya.errors import InputError

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff")
_LABEL_LIMIT = 2**20  # bytes of a .cls or .json member; larger ones are something else
_FORM = "accepted are KEY.jpg or KEY.png with KEY.cls, or with a KEY.json that has a 'label'"


class ShardImages(EncodedImages):
    """Images of tar shards: members KEY.jpg (or .png and others) with KEY.cls or KEY.json {"label": number}.

    Args:
        shards: the tar files, uncompressed; the images are numbered in that order.

    Attributes:
        classes: names from a `classes.txt` (one a line) or `dataset_info.json` (features.label.names) beside
            the shards or in the folder above them; None without.

    Raises:
        InputError: a file is not a tar or ends early, an image has no label or the other way round.
    """

    def __init__(self, shards: Sequence[Path]) -> None:
        names: list[bytes] = []
        rows: list[tuple[int, int, int, int]] = []
        for number, shard in enumerate(shards):
            for name, offset, size, label in _samples(shard):
                names.append(os.fsencode(name))
                rows.append((number, offset, size, label))
        if not rows:
            raise InputError(f"{shards[0].parent}: no image in {len(shards)} tar shards; {_FORM}")
        table = np.array(rows, dtype=np.int64)
        super().__init__(table[:, 3])
        self.classes = _class_names(shards[0].parent)
        self._shards = [str(shard.absolute()) for shard in shards]
        self._names = np.array(names)
        self._shard_numbers = table[:, 0].astype(np.int32)
        self._offsets, self._sizes = table[:, 1].copy(), table[:, 2].copy()

    def name(self, index: int) -> str:
        return f"{os.fsdecode(self._names[index])} in {self._shards[self._shard_numbers[index]]}"

    def data(self, index: int) -> bytes:
        # Opened for each image: a handle kept open would be shared by forked workers, its position with it,
        # and there may be more shards than a process may have open.
        path = self._shards[self._shard_numbers[index]]
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                file.seek(self._offsets[index])
                return file.read(self._sizes[index])
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error

    def digest(self) -> bytes:
        root = os.path.commonpath([os.path.dirname(shard) for shard in self._shards])  # noqa: PTH120
        names = [os.path.relpath(shard, root) for shard in self._shards]
        return files_digest(Path(root), names) + arrays_digest(self.labels)


def _samples(shard: Path) -> list[tuple[str, int, int, int]]:
    """Name, offset and size of each image of a shard, and its label."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with shard.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            end = os.fstat(file.fileno()).st_size
            for member in tar:
                if not member.isfile():
                    continue
                if member.offset_data + member.size > end:
                    raise InputError(f"{shard} is truncated: it ends within its member {member.name}")
                key, ending = _split(member.name)
                if ending in IMAGE_ENDINGS:
                    if key in images:
                        raise InputError(
                            f"{shard} has two images of the key {key}: {images[key][0]}, {member.name}"
                        )
                    images[key] = member.name, member.offset_data, member.size
                elif ending in ("cls", "json"):
                    label = _label(file, member, f"{member.name} in {shard}")
                    if label is not None and labels.setdefault(key, label) != label:
                        raise InputError(f"{shard} gives the key {key} two labels, {labels[key]} and {label}")
    except tarfile.TarError as error:
        raise InputError(f"{shard} is not a whole, uncompressed tar file: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {shard}: {error.strerror or error}") from error
    for key, label in labels.items():
        if key not in images:
            raise InputError(f"{shard} has the label {label} but no image of the key {key}; {_FORM}")
    for key, (name, _, _) in images.items():
        if key not in labels:
            raise InputError(f"{shard} has no label for the image {name}; {_FORM}")
    return [(*found, labels[key]) for key, found in images.items()]


def _split(name: str) -> tuple[str, str]:
    """webdataset's key and ending: the name up to the first dot of its last part, and what follows it."""
    path = PurePosixPath(name)
    stem, _, ending = path.name.partition(".")
    return str(path.parent / stem), ending.lower()


def _label(file: IO[bytes], member: tarfile.TarInfo, name: str) -> int | None:
    if member.size > _LABEL_LIMIT:
        raise InputError(f"{name} has {member.size} bytes, too many for a label")
    file.seek(member.offset_data)
    text = file.read(member.size)
    try:
        value = json.loads(text)  # a .cls file is a number, which is JSON too
    except ValueError:
        value = None
    if member.name.lower().endswith(".json") and isinstance(value, dict):
        if "label" not in value:
            return None
        value = value["label"]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InputError(f"{name} is no label: accepted is an integer, or a JSON object with one as 'label'")
    return value


def _class_names(folder: Path) -> tuple[str, ...] | None:
    for place in (folder, folder.parent):
        text, info = place / "classes.txt", place / "dataset_info.json"
        try:
            if text.is_file():
                return tuple(line.strip() for line in text.read_text("utf-8").splitlines() if line.strip())
            if info.is_file():
                return _names_of(json.loads(info.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the class names beside the shards in {place}: {error}") from None
    return None


def _names_of(info: Any) -> tuple[str, ...] | None:
    for key in ("features", "label", "names"):
        info = info.get(key) if isinstance(info, dict) else None
    return tuple(map(str, info)) if isinstance(info, list) else None
