"""Images to inputs by timm's transforms, with normalisation and padded crops of our own.

On pictures of 32 x 32 pixels torchvision's normalisation and padded crop take as long as all the rest.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, auto_augment, create_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import str_to_interp_mode
from timm.data.transforms_factory import transforms_imagenet_train
from torch import Tensor
from torchvision.transforms import Resize

from nadaraya.data.images.sources import to_channels
from nadaraya.errors import check_name, must_be

_INTERPOLATIONS = ("bicubic", "bilinear", "box", "hamming", "lanczos", "nearest", "random")
_ERASING = ("const", "pixel", "rand")


@dataclass(frozen=True)
class Augmentation:
    """Settings by which images become inputs; the defaults are DeiT's, as on ImageNet in Kundu et al. (2026).

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

    >>> from nadaraya.data.images import Augmentation
    >>> Augmentation(image_size=32, padding_crop=4).statistics(channels=1)
    ((0.5,), (0.5,))
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
        whole = 1.0 if self.evaluation_crop is None else self.evaluation_crop
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
            ("std", "positive numbers, one per channel, or None", min(self.std or (1,)) > 0),
            ("evaluation_crop", "a share above 0 up to 1, or None", 0 < whole <= 1),
        ):
            if not valid:
                raise must_be(f"augmentation {name}", accepted, getattr(self, name))
        for name, names in (("interpolation", _INTERPOLATIONS), ("erasing_mode", _ERASING)):
            check_name(f"augmentation {name}", getattr(self, name), names)

    @property
    def mixes(self) -> bool:
        """True where batches are mixed: mixup or cutmix is on."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def evaluation(self) -> dict[str, Any]:
        """Settings of `timm.data.create_transform` in evaluation: interpolation and central crop."""
        usual = 0.875 if self.padding_crop is None else 1.0
        return {
            "interpolation": "bicubic" if self.interpolation == "random" else self.interpolation,
            "crop_pct": usual if self.evaluation_crop is None else self.evaluation_crop,
        }

    def statistics(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation that inputs are normalised with.

        Args:
            channels: 1 or 3.

        Returns:
            Mean and std, one number per channel, for pixels from 0 to 1: those given, else ImageNet's for
            colour and 0.5 for grey.

        Raises:
            InputError: as many numbers were given as there are not channels.
        """
        usual = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD) if channels == 3 else ((0.5,), (0.5,))
        mean = usual[0] if self.mean is None else self.mean
        std = usual[1] if self.std is None else self.std
        for name, given in (("mean", mean), ("std", std)):
            if len(given) != channels:
                raise must_be(f"augmentation {name}", f"{channels} numbers, one per channel", given)
        return mean, std


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
        self._resize = Resize(self._size, str_to_interp_mode(augmentation.evaluation["interpolation"]))

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


def evaluation_transform(augmentation: Augmentation, channels: int = 3) -> Transform:
    """The transform of evaluation: resize, central crop, normalisation; nothing is random.

    It makes the input, (C, S, S) float32, of a PIL image of any mode and size. An InputError where the
    statistics do not fit the channels, 1 or 3.
    """
    pixels = create_transform(augmentation.image_size, **augmentation.evaluation, normalize=False)
    steps = pixels.transforms[:-1]  # the last one makes a tensor
    return Transform([_middle, *steps], augmentation, channels)


def seeds(count: int, *place: int) -> list[int]:
    """`count` seeds below 2^63 that depend on a place alone: the seed of the run, what for, where."""
    states = np.random.SeedSequence(place).generate_state(count, np.uint64) >> np.uint64(1)
    return states.tolist()


def seed_all(seed: int) -> None:
    """Seed the generators of `random`, numpy and torch (CPU): timm's transforms use all three."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (timm draws from numpy's global state)
    # torch.manual_seed would also seed every accelerator, at a hundred times the cost.
    torch.default_generator.manual_seed(seed)


@contextmanager
def global_states_kept() -> Iterator[None]:
    """Put the global random states back afterwards."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002
        torch.default_generator.set_state(tensors)
