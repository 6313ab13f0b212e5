"""Folders of images, one folder a class."""

import os
from pathlib import Path

import numpy as np

from nadaraya.data.images.sources import EncodedImages, arrays_digest, files_digest
from nadaraya.errors import InputError


class FolderImages(EncodedImages):
    """Images of a folder whose subfolders are the classes (torchvision's ImageFolder layout).

    Args:
        root: the folder.

    Attributes:
        classes: names of the subfolders, sorted; a label is a position in it.

    Raises:
        InputError: the folder has no subfolder, or one of them holds no image.
    """

    def __init__(self, root: Path) -> None:
        from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

        try:
            classes, numbers = find_classes(root)
            samples = make_dataset(str(root), numbers, IMG_EXTENSIONS, allow_empty=True)
        except FileNotFoundError:
            raise InputError(
                f"{root} has no class folders: images are expected in one folder a class"
            ) from None
        except OSError as error:
            raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
        labels = np.array([label for _, label in samples], dtype=np.int64)
        if empty := sorted(set(range(len(classes))) - set(labels.tolist())):
            raise InputError(
                f"the class folder {root / classes[empty[0]]} holds no image;"
                f" accepted are files ending in {', '.join(IMG_EXTENSIONS)}"
            )
        super().__init__(labels)
        self.classes = tuple(classes)
        self._root = root
        # Bytes of one width: a list of a million strings would be copied into every worker bit by bit.
        self._names = np.array([os.fsencode(os.path.relpath(path, root)) for path, _ in samples])

    def name(self, index: int) -> str:
        return str(self._root / os.fsdecode(self._names[index]))

    def data(self, index: int) -> bytes:
        path = self.name(index)
        try:
            with open(path, "rb") as file:  # noqa: PTH123  (a Path costs more than the read of a small file)
                return file.read()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error

    def digest(self) -> bytes:
        return files_digest(self._root, map(os.fsdecode, self._names)) + arrays_digest(self.labels)
