"""What is done to images before they become inputs: the settings of augmentation, DeiT's by default."""

import math
from dataclasses import dataclass

from nadaraya.errors import must_be, unknown_name

_INTERPOLATIONS = ("bicubic", "bilinear", "box", "hamming", "lanczos", "nearest", "random")
_ERASING = ("const", "pixel", "rand")


@dataclass(frozen=True)
class Augmentation:
    """How images become inputs; the defaults are DeiT's, as on ImageNet in Kundu et al. (2026).

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
            if getattr(self, name) not in names:
                raise unknown_name(f"augmentation {name}", getattr(self, name), names)

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed: mixup or cutmix is on."""
        return self.mixup > 0 or self.cutmix > 0

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

        usual = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD) if channels == 3 else ((0.5,), (0.5,))
        mean = usual[0] if self.mean is None else self.mean
        std = usual[1] if self.std is None else self.std
        for name, given in (("mean", mean), ("std", std)):
            if len(given) != channels:
                raise must_be(f"augmentation {name}", f"{channels} numbers, one per channel", given)
        return mean, std
