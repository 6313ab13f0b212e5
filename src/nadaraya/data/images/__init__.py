"""Images with labels: folders, tar shards, arrays and torchvision's data sets; augmentation; batches.

    from nadaraya.data.images import Augmentation, open_images, training_batches

    images = open_images("torchvision:CIFAR10")
    augmentation = Augmentation(image_size=32, padding_crop=4)
    for inputs, targets in training_batches(images, augmentation, batch_size=256, seed=0, first_step=0, steps=100):
        ...

It needs the `vision` extra (timm, torchvision).
"""

from importlib.util import find_spec

import nadaraya._torchvision  # noqa: F401  (before anything imports torchvision)
from nadaraya.errors import InputError

for _library in ("PIL", "torchvision", "timm"):
    if find_spec(_library) is None:
        raise InputError(f'images need {_library}, which is not installed: pip install "nadaraya[vision]"')

from nadaraya.data.images.augment import Augmentation, evaluation_transform
from nadaraya.data.images.batches import (
    evaluation_batches,
    steps_per_epoch,
    synthetic_batches,
    training_batches,
)
from nadaraya.data.images.decode import CorruptImageError
from nadaraya.data.images.opening import open_images
from nadaraya.data.images.sources import ImageSet, ImageSource

__all__ = [
    "Augmentation",
    "CorruptImageError",
    "ImageSet",
    "ImageSource",
    "evaluation_batches",
    "evaluation_transform",
    "open_images",
    "steps_per_epoch",
    "synthetic_batches",
    "training_batches",
]
