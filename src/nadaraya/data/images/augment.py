"""Augmentation with timm's and torchvision's transforms, and the normalisation of pixels."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nadaraya.data.images.decode import to_channels
from nadaraya.errors import InputError, unknown_name

_INTERPOLATIONS = ("bicubic", "bilinear", "box", "hamming", "lanczos", "nearest", "random")
_ERASING = ("const", "pixel", "rand")
_DEFAULT_CROP = 0.875


@dataclass(frozen=True)
class Augmentation:
    """How images become inputs; the defaults are DeiT's, as in document D's ImageNet recipe.

    Args:
        image_size: side S of the square inputs, in pixels.
        crop_scale: range of the share of the area that a random crop takes before it is resized to S.
        interpolation: "bicubic" (default), "bilinear", "box", "hamming", "lanczos", "nearest", or "random"
            (bilinear or bicubic by chance in training, bicubic in evaluation).
        flip: probability of a left-right flip; 0 for digits and letters.
        rand_augment: timm's configuration string of RandAugment, AugMix or AutoAugment; None for none.
        color_jitter: strength of random brightness, contrast and saturation, applied beside `rand_augment`
            too; None (default) for none.
        random_erasing: probability of erasing a rectangle of the normalised input.
        erasing_mode: what the rectangle is filled with: "pixel" (default), noise for each pixel; "rand", one
            random colour; "const", zero.
        padding_crop: pixels of black border from which a crop of S x S is taken, instead of a random crop and
            resize: the usual choice for images of 32 x 32; images of another size are first resized to S
            (shorter side). None (default) for none.
        mixup: parameter of mixup's beta distribution; 0 for none.
        cutmix: parameter of cutmix's beta distribution; 0 for none. With both, a batch has either, evenly.
        label_smoothing: share of the target that is spread evenly over all classes.
        repeats: copies of an image that follow each other in the order (repeated augmentation); 1 for none.
        mean: of the channels, pixels from 0 to 1; default ImageNet's for colour, 0.5 for grey.
        std: likewise.
        evaluation_crop: side of the central crop as a share of the shorter side of an image in evaluation;
            default 0.875 as in DeiT, 1 with `padding_crop`.

    Raises:
        InputError: a value out of range.
    """

    image_size: int = 224
    crop_scale: tuple[float, float] = (0.08, 1.0)
    interpolation: str = "bicubic"
    flip: float = 0.5
    rand_augment: str | None = "rand-m9-n2-mstd0.5-inc1"
    color_jitter: float | None = None
    random_erasing: float = 0.25
    erasing_mode: str = "pixel"
    padding_crop: int | None = None
    mixup: float = 0.8
    cutmix: float = 1.0
    label_smoothing: float = 0.1
    repeats: int = 3
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    evaluation_crop: float | None = None

    def __post_init__(self) -> None:
        for name in ("crop_scale", "mean", "std"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        low, high = self.crop_scale if len(self.crop_scale) == 2 else (math.nan, math.nan)
        whole = self.evaluation_crop
        for name, accepted, valid in (
            ("image_size", "a positive integer", self.image_size >= 1),
            ("crop_scale", "two shares of the area in rising order, above 0 up to 1", 0 < low <= high <= 1),
            ("flip", "a probability", 0 <= self.flip <= 1),
            ("color_jitter", "a number of at least 0, or None", (self.color_jitter or 0) >= 0),
            ("random_erasing", "a probability", 0 <= self.random_erasing <= 1),
            ("padding_crop", "an integer of at least 0, or None", (self.padding_crop or 0) >= 0),
            ("mixup", "a number of at least 0", 0 <= self.mixup < math.inf),
            ("cutmix", "a number of at least 0", 0 <= self.cutmix < math.inf),
            ("label_smoothing", "a number of at least 0, below 1", 0 <= self.label_smoothing < 1),
            ("repeats", "a positive integer", self.repeats >= 1 and self.repeats == int(self.repeats)),
            (
                "std",
                "positive numbers, one a channel, or None",
                self.std is None or min(self.std, default=0) > 0,
            ),
            ("evaluation_crop", "a share above 0 up to 1, or None", whole is None or 0 < whole <= 1),
        ):
            if not valid:
                raise InputError(f"augmentation {name} = {getattr(self, name)!r}: accepted is {accepted}")
        if self.interpolation not in _INTERPOLATIONS:
            raise unknown_name("interpolation", self.interpolation, _INTERPOLATIONS)
        if self.erasing_mode not in _ERASING:
            raise unknown_name("erasing_mode", self.erasing_mode, _ERASING)

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed: mixup or cutmix is on."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def fixed_interpolation(self) -> str:
        """The interpolation where nothing may be random: `interpolation`, "bicubic" for "random"."""
        return "bicubic" if self.interpolation == "random" else self.interpolation

    def statistics(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation that inputs are normalised with.

        Args:
            channels: 1 or 3.

        Returns:
            Mean and std, one number a channel, for pixels from 0 to 1: those given, else ImageNet's for
            colour and 0.5 for grey.

        Raises:
            InputError: as many numbers were given as there are not channels.
        """
        from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

        colour = channels == 3
        mean = self.mean if self.mean is not None else IMAGENET_DEFAULT_MEAN if colour else (0.5,)
        std = self.std if self.std is not None else IMAGENET_DEFAULT_STD if colour else (0.5,)
        for name, given in (("mean", mean), ("std", std)):
            if len(given) != channels:
                raise InputError(
                    f"augmentation {name} = {given!r} has {len(given)} numbers;"
                    f" accepted are {channels}, one a channel of the images"
                )
        return mean, std


class Normalisation:
    """(pixel / 255 - mean) / std, as one multiplication and one addition.

    Args:
        augmentation: gives the statistics.
        channels: 1 or 3.
    """

    def __init__(self, augmentation: Augmentation, channels: int) -> None:
        mean, std = (np.array(numbers)[:, None, None] for numbers in augmentation.statistics(channels))
        self.scale = (1 / (255 * std)).astype(np.float32)
        self.shift = (-mean / std).astype(np.float32)

    def into(self, image: Image.Image, out: np.ndarray) -> None:
        """Normalise a picture.

        Args:
            image: in mode "RGB" or "L", S x S.
            out: (C, S, S) float32, written to.
        """
        pixels = np.asarray(image)
        np.multiply(pixels.reshape(*out.shape[1:], len(out)).transpose(2, 0, 1), self.scale, out=out)
        out += self.shift


class TrainingTransform:
    """Crop, flip, colours, normalisation and erasing of one image, by the global random states.

    Args:
        augmentation: what to do.
        channels: 1 or 3.

    Raises:
        InputError: `rand_augment` is no configuration that timm knows.
    """

    def __init__(self, augmentation: Augmentation, channels: int) -> None:
        from timm.data.random_erasing import RandomErasing
        from timm.data.transforms_factory import transforms_imagenet_train

        size = augmentation.image_size
        mean, _ = augmentation.statistics(channels)
        try:
            crop, colours, _ = transforms_imagenet_train(
                size,
                scale=augmentation.crop_scale,
                hflip=augmentation.flip,
                color_jitter=augmentation.color_jitter,  # type: ignore[arg-type]  # timm takes None
                force_color_jitter=augmentation.color_jitter is not None,
                auto_augment=augmentation.rand_augment,
                interpolation=augmentation.interpolation,
                mean=mean,
                separate=True,
            )
        except (AssertionError, ValueError, KeyError) as error:
            raise InputError(
                f"augmentation rand_augment = {augmentation.rand_augment!r}: timm accepts the like of"
                f" 'rand-m9-n2-mstd0.5-inc1', 'augmix-m5-w4-d2' or 'original' ({error})"
            ) from None
        steps = [*crop.transforms, *colours.transforms]
        if augmentation.padding_crop is not None:
            steps[0] = _PaddedCrop(augmentation, augmentation.padding_crop)
        for step in steps:
            _allow_zero_bits(step)
        self._steps = steps
        self._normalisation = Normalisation(augmentation, channels)
        self._erasing = RandomErasing(
            augmentation.random_erasing, mode=augmentation.erasing_mode, device="cpu"
        )

    def __call__(self, image: Image.Image, out: Tensor) -> None:
        """Augment a picture.

        Args:
            image: in mode "RGB" or "L", of any size.
            out: (C, S, S) float32, written to.
        """
        for step in self._steps:
            image = step(image)
        self._normalisation.into(image, out.numpy())
        self._erasing(out)


class _PaddedCrop:
    """A crop of S x S from anywhere within an image and a black border around it.

    What torchvision's Pad and RandomCrop do, at a seventh of their time on images of 32 x 32: Pillow's crop
    fills what lies outside of the image with black by itself.
    """

    def __init__(self, augmentation: Augmentation, padding: int) -> None:
        from timm.data.transforms import str_to_interp_mode
        from torchvision.transforms import Resize

        self._size, self._padding = augmentation.image_size, padding
        self._resize = Resize(self._size, interpolation=str_to_interp_mode(augmentation.fixed_interpolation))

    def __call__(self, image: Image.Image) -> Image.Image:
        if min(image.size) != self._size:
            image = self._resize(image)
        left, top = (random.randint(-self._padding, side + self._padding - self._size) for side in image.size)
        return image.crop((left, top, left + self._size, top + self._size))


def _allow_zero_bits(step: Any) -> None:
    """Let timm's posterisation keep 0 bits, a black image: Pillow 13 refuses what older ones did."""
    from timm.data import auto_augment

    policies = getattr(step, "policy", None) or [getattr(step, "ops", [])]
    for operation in (operation for policy in policies for operation in policy):
        if operation.aug_fn is auto_augment.posterize:
            operation.aug_fn = _posterize


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    from timm.data import auto_augment

    if bits < 1:
        return Image.new(image.mode, image.size)
    return auto_augment.posterize(image, bits, **options)


class EvaluationTransform:
    """Resize, central crop and normalisation of one image; nothing is random.

    Args:
        augmentation: gives size, interpolation, crop and statistics.
        channels: 1 or 3.
    """

    def __init__(self, augmentation: Augmentation, channels: int) -> None:
        from timm.data import create_transform

        self._channels = channels
        crop = augmentation.evaluation_crop
        if crop is None:
            crop = _DEFAULT_CROP if augmentation.padding_crop is None else 1.0
        pixels = create_transform(
            augmentation.image_size,
            interpolation=augmentation.fixed_interpolation,
            crop_pct=crop,
            normalize=False,
        )
        self._steps = pixels.transforms[:-1]  # the last one makes a tensor
        self._normalisation = Normalisation(augmentation, channels)
        self.shape = (channels, augmentation.image_size, augmentation.image_size)

    def into(self, image: Image.Image, out: Tensor) -> None:
        """Write the input of a picture to `out`, (C, S, S) float32."""
        for step in self._steps:
            image = step(image)
        self._normalisation.into(image, out.numpy())

    def __call__(self, image: Image.Image) -> Tensor:
        """The input of a picture.

        Args:
            image: of any mode and size.

        Returns:
            (C, S, S) float32.
        """
        out = torch.empty(self.shape)
        self.into(to_channels(image, self._channels), out)
        return out


def evaluation_transform(augmentation: Augmentation, channels: int = 3) -> Callable[[Image.Image], Tensor]:
    """What evaluation does to an image: resize, central crop, normalisation; for images from elsewhere.

    Args:
        augmentation: that of the run.
        channels: 1 or 3, that of the `ImageSet`.

    Returns:
        A function of a PIL image of any mode and size, giving an input (C, S, S) float32.

    Raises:
        InputError: the statistics do not fit the channels.
    """
    return EvaluationTransform(augmentation, channels)
