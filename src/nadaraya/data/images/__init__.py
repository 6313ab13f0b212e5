"""Images with labels: folders, tar shards, arrays and torchvision's data sets; augmentation; batches.

It needs the `vision` extra (timm, torchvision).
"""

import nadaraya.data.images.libraries  # noqa: F401  (before the modules that import them)
from nadaraya.data.images.augment import Augmentation
from nadaraya.data.images.batches import (
    evaluation_batches,
    steps_per_epoch,
    synthetic_batches,
    training_batches,
)
from nadaraya.data.images.decode import CorruptImageError
from nadaraya.data.images.opening import open_images
from nadaraya.data.images.sources import ImageSet, ImageSource
from nadaraya.data.images.transforms import evaluation_transform

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
