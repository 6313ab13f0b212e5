"""Images with labels: folders, tar shards, arrays and torchvision's data sets; augmentation; batches.

    from nadaraya.data.images import Augmentation, open_images, training_batches

    images = open_images("torchvision:CIFAR10")
    augmentation = Augmentation(image_size=32, padding_crop=4)
    batches = training_batches(images, augmentation, batch_size=256, seed=0, first_step=0, steps=100)
    for inputs, targets in batches:  # (256, 3, 32, 32), (256, 10)
        ...

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
