"""Images in files: a folder per class, or tar shards in webdataset's form, both read by number.

The offsets within shards stay in memory, so that order, repeats and resuming are those of a folder;
webdataset itself reads shards as streams, in an order that depends on the number of workers.
"""

import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any

import numpy as np
from PIL import Image
from pydantic import AliasPath, Field

from nadaraya.data.images.sources import ImageSource, arrays_digest, files_digest
from nadaraya.data.textfile import check_regular, files_below, read_text
from nadaraya.errors import InputError, must_be
from nadaraya.files import is_file
from nadaraya.stored import Stored, checked, read_stored

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_LABEL_LIMIT = 2**20  # bytes of a .cls or .json member; larger ones are something else
_FORM = "shards hold KEY.jpg or KEY.png with KEY.cls, or with a KEY.json that has a 'label'"

_Label = Annotated[int, Field(ge=0, lt=2**31, strict=True)]  # a .cls file is a number, which is JSON too
Member = tuple[str, int, int]  # name, offset and size in bytes


class _Labelled(Stored):
    label: _Label | None = None


class _Described(Stored):
    """A description of data, as the library datasets writes it; names of classes may be in it."""

    names: Annotated[
        tuple[str, ...] | None, Field(validation_alias=AliasPath("features", "label", "names"))
    ] = None


class FileImages(ImageSource):
    """Images that are whole files below `root`, or members of them: (file number, name, offset, size)."""

    def __init__(
        self,
        root: Path,
        files: Sequence[str],
        labels: Sequence[int],
        members: Sequence[tuple[int, str, int, int]] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(np.array(labels, dtype=np.int64), **named)
        self._root = root
        # Arrays of one width: a list of a million strings would be copied into every worker bit by bit.
        self._files = np.array([os.fsencode(name) for name in files])
        self._names, self._places = None, None
        if members is not None:
            self._names = np.array([os.fsencode(name) for _, name, *_ in members])
            self._places = np.array([(number, *place) for number, _, *place in members], dtype=np.int64)

    def name(self, index: int) -> str:
        file, *_ = self._place(index)
        return file if self._names is None else f"{os.fsdecode(self._names[index])} in {file}"

    def digest(self) -> bytes:
        return files_digest(self._root, map(os.fsdecode, self._files)) + arrays_digest(self.labels)

    def _place(self, index: int) -> tuple[str, int, int]:
        number, offset, size = (index, 0, -1) if self._places is None else self._places[index].tolist()
        return os.path.join(self._root, os.fsdecode(self._files[number])), offset, size  # noqa: PTH118

    def _open(self, index: int) -> Image.Image:
        # Opened for each image: a handle kept open would be shared by forked workers, its position with it,
        # and there may be more shards than a process may have open.
        path, offset, size = self._place(index)
        try:
            check_regular(path, os.stat(path).st_mode)  # noqa: PTH116
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a Path costs more than a small read)
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        return Image.open(io.BytesIO(data))


def read_folder(root: Path) -> FileImages:
    """Images of a folder with one subfolder per class, torchvision's ImageFolder layout."""
    files = files_below(root)
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    if not classes:
        raise InputError(f"{root} has no class folders: images are expected in one folder per class")
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in classes}
    for path in files:
        if path.lower().endswith(IMAGE_ENDINGS):
            place, name = os.path.split(os.path.relpath(path, root))
            if place:
                found[place.split(os.sep, 1)[0]].append((place, name))
    for name, images in found.items():
        if not images:
            raise InputError(
                f"the class folder {root / name} holds no image; files must end in {', '.join(IMAGE_ENDINGS)}"
            )
    names = [os.path.join(*image) for name in classes for image in sorted(found[name])]  # noqa: PTH118
    labels = [label for label, name in enumerate(classes) for _ in found[name]]
    return FileImages(root, names, labels, place=str(root), classes=tuple(classes))


def read_shards(shards: Sequence[Path], place: str) -> FileImages:
    """Images of uncompressed tar shards in their order."""
    read = [(number, *image) for number, shard in enumerate(shards) for image in _read_shard(shard)]
    if not read:
        raise InputError(f"{shards[0].parent}: no image in {len(shards)} tar shards; {_FORM}")
    members = [(number, *member) for number, member, _ in read]
    labels = [label for *_, label in read]
    paths = [shard.absolute() for shard in shards]
    root = os.path.commonpath([path.parent for path in paths])
    files = [os.path.relpath(path, root) for path in paths]
    classes = _class_names(shards[0].parent)
    return FileImages(Path(root), files, labels, members, place=place, classes=classes)


def _read_shard(shard: Path) -> list[tuple[Member, int]]:
    """Each image of a shard and its label."""
    found: dict[str, dict[str, Any]] = {}  # "image" and "label" by key
    try:
        check_regular(shard, shard.stat().st_mode)
        with shard.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            end = os.fstat(file.fileno()).st_size
            for member in tar:
                if member.size < 0:  # the next member would be an earlier one: without end
                    raise InputError(f"{shard} is damaged: its member {member.name} has a negative size")
                if not member.isfile():
                    continue
                if member.offset_data + member.size > end:
                    raise InputError(f"{shard} is truncated: it ends within its member {member.name}")
                value: Any
                key, ending = _split(member.name)
                if ending in IMAGE_ENDINGS:
                    kind, value = "image", (member.name, member.offset_data, member.size)
                elif ending in (".cls", ".json"):
                    kind, value = "label", _read_label(file, member, f"{member.name} in {shard}")
                else:
                    continue
                if (
                    value is not None
                    and (first := found.setdefault(key, {}).setdefault(kind, value)) != value
                ):
                    raise InputError(f"{shard} has two {kind}s of the key {key}: {first} and {value}")
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0") or file.tell() != tar.offset + tarfile.BLOCKSIZE:
                # tarfile takes a header that it cannot read for the end
                raise InputError(f"{shard} is truncated or damaged at byte {tar.offset}: it has no end mark")
    except tarfile.TarError as error:
        raise InputError(f"{shard} must be a whole, uncompressed tar file: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {shard}: {error.strerror or error}") from error
    for key, parts in found.items():
        if "image" not in parts:
            raise InputError(f"{shard} has the label {parts['label']} but no image of the key {key}; {_FORM}")
        if "label" not in parts:
            raise InputError(f"{shard} has no label for the image {parts['image'][0]}; {_FORM}")
    pairs = ((parts["image"], parts["label"]) for parts in found.values())
    return sorted(pairs, key=lambda pair: pair[0][1])  # in the order of the images, by their offsets


def _split(name: str) -> tuple[str, str]:
    """webdataset's key and ending: the name up to the first dot of its last part, and what follows."""
    path = PurePosixPath(name)
    stem, dot, ending = path.name.partition(".")
    return str(path.parent / stem), (dot + ending).lower()


def _read_label(file: IO[bytes], member: tarfile.TarInfo, name: str) -> int | None:
    """The number in a .cls or .json member; None for a JSON object without a label."""
    accepted = "an integer of at least 0, or a JSON object with one as 'label'"
    if member.size > _LABEL_LIMIT:
        raise must_be(name, accepted, f"{member.size} bytes")
    file.seek(member.offset_data)
    either: Any = _Label | _Labelled
    found = checked(file.read(member.size), either, f"{name} must be {accepted}")
    return found.label if isinstance(found, _Labelled) else int(found)


def _class_names(folder: Path) -> tuple[str, ...] | None:
    """From `classes.txt` or `dataset_info.json` beside the shards, or in the folder above them."""
    for place in (folder, folder.parent):
        lines, info = place / "classes.txt", place / "dataset_info.json"
        if is_file(lines):
            return tuple(filter(None, map(str.strip, read_text(lines).splitlines())))
        if is_file(info):
            return read_stored(info, _Described, "the names of classes").names
    return None
