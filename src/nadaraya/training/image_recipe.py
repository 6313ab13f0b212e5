"""Recipes of image classification: a timm model, images, augmentation and the optimisation of DeiT."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from nadaraya.errors import InputError
from nadaraya.training.sections import (
    BaseRecipe,
    Section,
    check_pieces,
    checked,
    decay_rates,
    fraction,
    natural,
    not_negative,
    one_of,
    positive,
    positive_int,
    precisions,
    probability,
)

if TYPE_CHECKING:
    from nadaraya.data.images import Augmentation

_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class ImageModelRecipe(Section):
    """The model: a name that timm knows, ours included; other keywords of its constructor are `options`.

    `image_size` is the side of the square images in pixels; `drop_path` the rate of stochastic depth at the
    last block.
    """

    prefix: ClassVar[str] = "model."
    name: str = "gka_tiny_patch16_224"
    image_size: int = positive_int(224)
    drop_path: float = fraction(0.1)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The name of the model, where figures and tables of text runs have the attention variant."""
        return self.name


@dataclass(frozen=True)
class ImageDataRecipe(Section):
    """The images and what is done to them; `nadaraya.data.images` explains sources and augmentations.

    `limit` is the number of training images used (null: all), the same ones whatever the seed. `repeats` is
    how many augmented copies of an image a batch draws together; `workers` the processes that load images.
    `synthetic` gives one random batch again and again: the model's own speed.
    """

    prefix: ClassVar[str] = "data."
    source: str | None = None
    validation: str | None = None
    corrupt: str = "fatal"
    limit: int | None = positive_int(None)
    crop_scale: tuple[float, float] = checked(
        (0.08, 1.0), "two numbers, 0 < smallest <= largest <= 1", lambda pair: 0 < pair[0] <= pair[1] <= 1
    )
    interpolation: str = "bicubic"
    flip: float = probability(0.5)
    rand_augment: str | None = "rand-m9-n2-mstd0.5-inc1"
    color_jitter: float | None = positive(None)
    random_erasing: float = probability(0.25)
    padding_crop: int | None = positive_int(None)
    mixup: float = not_negative(0.8)
    cutmix: float = not_negative(1.0)
    label_smoothing: float = fraction(0.1)
    repeats: int = positive_int(3)
    workers: int = natural(0)
    synthetic: bool = False


@dataclass(frozen=True)
class ImageTrainingRecipe(Section):
    """The optimisation: AdamW, linear warm-up, cosine decay by update, an average of the weights.

    `batch_size` counts the images of one update, of all processes together; `gradient_accumulation` is the
    number of equal pieces that each process computes its part in. The learning rate is for a batch of
    `learning_rate_batch` images and scaled to this one, lr = learning_rate · batch_size /
    learning_rate_batch; null leaves it as it is. Kernel parameters have `kernel_learning_rate_scale` times
    that. Weight decay is for weight matrices alone. `ema_decay` is the decay of the average of the weights by
    update (null: none); `ema_warmup` lets it begin shorter, as short runs need. `compile` is false, true or a
    mode of `torch.compile`. `log_every` and `checkpoint_every` count updates, `evaluate_every_epochs` epochs.
    """

    prefix: ClassVar[str] = "training."
    epochs: int = positive_int(300)
    batch_size: int = positive_int(1024)
    gradient_accumulation: int = positive_int(1)
    learning_rate: float = positive(1e-3)
    learning_rate_batch: int | None = positive_int(1024)
    min_learning_rate: float = not_negative(1e-6)
    warmup_epochs: int = natural(5)
    warmup_learning_rate: float = not_negative(1e-6)
    kernel_learning_rate_scale: float = positive(1.0)
    weight_decay: float = not_negative(0.05)
    betas: tuple[float, float] = decay_rates((0.9, 0.999))
    clip: float | None = positive(1.0)
    ema_decay: float | None = checked(
        0.99996, "a number of at least 0 and below 1", lambda value: value is None or 0 <= value < 1
    )
    ema_warmup: bool = False
    precision: str = precisions()
    compile: bool | str = checked(
        False,
        f"true, false or a mode of torch.compile: {', '.join(_COMPILE_MODES)}",
        lambda value: isinstance(value, bool) or value in _COMPILE_MODES,
    )
    log_every: int = positive_int(50)
    evaluate_every_epochs: int = positive_int(1)
    checkpoint_every: int = positive_int(1000)
    tensorboard: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pieces(self.batch_size, self.gradient_accumulation)
        if self.warmup_epochs > self.epochs:
            raise InputError(
                f"training.warmup_epochs = {self.warmup_epochs} is more than training.epochs = {self.epochs}"
            )

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up, scaled to the batch."""
        if self.learning_rate_batch is None:
            return self.learning_rate
        return self.learning_rate * self.batch_size / self.learning_rate_batch


@dataclass(frozen=True)
class ImageRecipe(BaseRecipe):
    """An image classifier's run: task, name and seed as in every recipe, and three sections."""

    sections: ClassVar[dict[str, type[Section]]] = {
        "model": ImageModelRecipe,
        "data": ImageDataRecipe,
        "training": ImageTrainingRecipe,
    }
    task: str = one_of("image", "image")
    model: ImageModelRecipe = field(default_factory=ImageModelRecipe)
    data: ImageDataRecipe = field(default_factory=ImageDataRecipe)
    training: ImageTrainingRecipe = field(default_factory=ImageTrainingRecipe)

    @property
    def label(self) -> str:
        """The name of the model, with the variant and the pattern that its options choose."""
        options = self.model.options
        chosen = [str(options[key]) for key in ("variant", "pattern") if key in options]
        return "-".join([self.model.name, *chosen])

    def augmentation(self) -> "Augmentation":
        """What is done to the images, as `nadaraya.data.images` takes it.

        Raises:
            InputError: an interpolation or a policy that does not exist.
        """
        from nadaraya.data.images import Augmentation

        data = self.data
        return Augmentation(
            image_size=self.model.image_size,
            crop_scale=data.crop_scale,
            interpolation=data.interpolation,
            flip=data.flip,
            rand_augment=data.rand_augment,
            color_jitter=data.color_jitter,
            random_erasing=data.random_erasing,
            padding_crop=data.padding_crop,
            mixup=data.mixup,
            cutmix=data.cutmix,
            label_smoothing=data.label_smoothing,
            repeats=data.repeats,
        )
