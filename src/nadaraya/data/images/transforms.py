"""timm's transforms of training and evaluation, with normalisation and padded crops of our own.

On pictures of 32 x 32 pixels torchvision's normalisation and padded crop take as long as all the rest.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import auto_augment, create_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import str_to_interp_mode
from timm.data.transforms_factory import transforms_imagenet_train
from torch import Tensor
from torchvision.transforms import Resize

from nadaraya.data.images.augment import Augmentation
from nadaraya.data.images.decode import to_channels
from nadaraya.errors import must_be


class Transform:
    """Steps on a picture to S x S, then (pixel / 255 - mean) / std as one multiplication and one addition."""

    def __init__(
        self, steps: Sequence[Callable[[Any], Any]], augmentation: Augmentation, channels: int
    ) -> None:
        self._steps = steps
        mean, std = (np.array(numbers)[:, None, None] for numbers in augmentation.statistics(channels))
        self._scale = (1 / (255 * std)).astype(np.float32)
        self._shift = (-mean / std).astype(np.float32)
        self.shape = (channels, augmentation.image_size, augmentation.image_size)

    def into(self, image: Image.Image, out: Tensor) -> None:
        """Write the input of a picture, in mode "RGB" or "L", to `out`, (C, S, S) float32."""
        for step in self._steps:
            image = step(image)
        array, (channels, *size) = out.numpy(), self.shape
        pixels = np.asarray(image).reshape(*size, channels).transpose(2, 0, 1)
        np.multiply(pixels, self._scale, out=array)
        array += self._shift

    def __call__(self, image: Image.Image) -> Tensor:
        """The input, (C, S, S) float32, of an image of any mode and size."""
        out = torch.empty(self.shape)
        self.into(to_channels(image, self.shape[0]), out)
        return out


class TrainingTransform(Transform):
    """Crop, flip, colours, normalisation and erasing of one image, by the global random states."""

    def __init__(self, augmentation: Augmentation, channels: int) -> None:
        try:
            crop, colours, _ = transforms_imagenet_train(
                augmentation.image_size,
                scale=augmentation.crop_scale,
                hflip=augmentation.flip,
                color_jitter=augmentation.color_jitter,  # type: ignore[arg-type]  # timm takes None
                force_color_jitter=augmentation.color_jitter is not None,
                auto_augment=augmentation.rand_augment,
                interpolation=augmentation.interpolation,
                mean=augmentation.statistics(channels)[0],
                separate=True,
            )
        except (AssertionError, ValueError, KeyError):
            accepted = (
                "a policy of timm, the like of 'rand-m9-n2-mstd0.5-inc1', 'augmix-m5-w4-d2' or 'original'"
            )
            raise must_be("augmentation rand_augment", accepted, augmentation.rand_augment) from None
        steps = [*crop.transforms, *colours.transforms]
        if augmentation.padding_crop is not None:
            steps[0] = _PaddedCrop(augmentation, augmentation.padding_crop)
        for step in steps:
            _allow_zero_bits(step)
        super().__init__(steps, augmentation, channels)
        self._erase = RandomErasing(augmentation.random_erasing, mode=augmentation.erasing_mode, device="cpu")

    def into(self, image: Image.Image, out: Tensor) -> None:
        super().into(image, out)
        self._erase(out)


class _PaddedCrop:
    """A crop of S x S from anywhere within an image and a black border around it.

    Pillow's crop fills what lies outside of the image with black by itself: a seventh of the time that
    torchvision's Pad and RandomCrop take on images of 32 x 32.
    """

    def __init__(self, augmentation: Augmentation, padding: int) -> None:
        self._size, self._padding = augmentation.image_size, padding
        self._resize = Resize(self._size, str_to_interp_mode(fixed_interpolation(augmentation)))

    def __call__(self, image: Image.Image) -> Image.Image:
        if min(image.size) != self._size:
            image = self._resize(_middle(image))
        left, top = (random.randint(-self._padding, side + self._padding - self._size) for side in image.size)
        return image.crop((left, top, left + self._size, top + self._size))


def _middle(image: Image.Image) -> Image.Image:
    """The middle of a picture that is over 16 times as long as wide: resized whole it may fill the memory."""
    longest = 16 * min(image.size)
    width, height = (min(side, longest) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height)) if (width, height) != image.size else image


def _allow_zero_bits(step: object) -> None:
    """Let timm's posterisation keep 0 bits, a black image: Pillow 13 refuses what older ones did."""
    for operations in getattr(step, "policy", [getattr(step, "ops", [])]):
        for operation in operations:
            if operation.aug_fn is auto_augment.posterize:
                operation.aug_fn = _posterize


def _posterize(image: Image.Image, bits: int, **options: int) -> Image.Image:
    return auto_augment.posterize(image, bits, **options) if bits >= 1 else Image.new(image.mode, image.size)


def evaluation_crop(augmentation: Augmentation) -> float:
    """The side of evaluation's central crop, as a fraction of the resized image's."""
    if augmentation.evaluation_crop is not None:
        return augmentation.evaluation_crop
    return 0.875 if augmentation.padding_crop is None else 1.0


def fixed_interpolation(augmentation: Augmentation) -> str:
    """How evaluation resizes: the augmentation's way, bicubic where that is drawn anew for each image."""
    return "bicubic" if augmentation.interpolation == "random" else augmentation.interpolation


def evaluation_transform(augmentation: Augmentation, channels: int = 3) -> Transform:
    """What evaluation does to an image: resize, central crop, normalisation; nothing is random.

    Args:
        augmentation: that of the run; gives size, interpolation, crop and statistics.
        channels: 1 or 3, that of the `ImageSet`.

    Returns:
        A function of a PIL image of any mode and size, giving an input (C, S, S) float32.

    Raises:
        InputError: the statistics do not fit the channels.

    >>> from PIL import Image
    >>> from nadaraya.data.images import Augmentation, evaluation_transform
    >>> evaluation_transform(Augmentation(image_size=32))(Image.new("RGB", (640, 480))).shape
    torch.Size([3, 32, 32])
    """
    pixels = create_transform(
        augmentation.image_size,
        interpolation=fixed_interpolation(augmentation),
        crop_pct=evaluation_crop(augmentation),
        normalize=False,
    )
    steps = pixels.transforms[:-1]  # the last one makes a tensor
    return Transform([_middle, *steps], augmentation, channels)
