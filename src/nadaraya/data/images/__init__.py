"""Images with labels: folders, tar shards, arrays and torchvision's data sets; augmentation; batches.

It needs the `vision` extra (timm, torchvision).
"""

from nadaraya.errors import InputError

try:
    from nadaraya.data.images.batches import evaluation_batches, training_batches
    from nadaraya.data.images.opening import open_images
    from nadaraya.data.images.sources import CorruptImageError
    from nadaraya.data.images.transforms import Augmentation
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.split(".")[0] == "nadaraya":
        raise
    raise InputError(f'images need {missing.name}: pip install "nadaraya[vision]"') from missing

__all__ = [
    "Augmentation",
    "CorruptImageError",
    "evaluation_batches",
    "open_images",
    "training_batches",
]
