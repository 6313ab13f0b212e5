"""Recipes of image classification: a timm model, images, augmentation and the optimisation of DeiT."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from nadaraya.device import check_memory
from nadaraya.errors import InputError, must_be
from nadaraya.training import schema
from nadaraya.training.optimisation import BaseTraining
from nadaraya.training.schema import BaseRecipe, Section, Settings

if TYPE_CHECKING:
    from torch import nn

    from nadaraya.data.images import Augmentation

# Options of the model that the recipe sets by other keys.
_SET_ELSEWHERE = {
    "img_size": "model.image_size",
    "drop_path_rate": "model.drop_path",
    "num_classes": "the images",
    "in_chans": "the images",
}
_MOST_BLOCKS = 1000


def _area(pair: tuple[float, float]) -> tuple[float, float]:
    if 0 < pair[0] <= pair[1] <= 1:
        return pair
    raise ValueError("two numbers, 0 < smallest <= largest <= 1")


class ImageModelRecipe(Section):
    """The model."""

    prefix: ClassVar[str] = "model."
    name: str = "gka_tiny_patch16_224"
    """A name of `timm.list_models()`, ours among them."""
    image_size: Annotated[int, Field(gt=0, le=2**16)] = 224
    """Side of the square images in pixels."""
    drop_path: schema.Fraction = 0.1
    """Rate of stochastic depth at the last block."""
    options: Settings = Field(default_factory=dict)
    """Other keywords of the model's constructor."""

    @property
    def variant(self) -> str:
        """The name of the model, where figures and tables of text runs have the attention variant."""
        return self.name


class ImageDataRecipe(Section):
    """The images and what is done to them; `nadaraya.data.images` explains sources and augmentations."""

    prefix: ClassVar[str] = "data."
    source: str | None = None
    """A folder of images, tar shards, an .npz file or torchvision:NAME."""
    validation: str | None = None
    """Source of the validation images (null: `source`)."""
    corrupt: str = "fatal"
    """Treatment of a file that cannot be decoded: `fatal` stops the run, `skip` leaves it out."""
    limit: schema.PositiveInt | None = None
    """Training images that are used, the same ones whatever the seed (null: all)."""
    crop_scale: Annotated[schema.TwoNumbers, AfterValidator(_area)] = (0.08, 1.0)
    """Smallest and largest area of a random crop, as fractions of the image."""
    interpolation: str = "bicubic"
    """Interpolation by which images are resized."""
    flip: schema.Probability = 0.5
    """Probability of a horizontal flip."""
    rand_augment: str | None = "rand-m9-n2-mstd0.5-inc1"
    """Policy of RandAugment in timm's notation (null: none)."""
    color_jitter: schema.Positive | None = None
    """Strength of a random change of brightness, contrast and saturation (null: none)."""
    random_erasing: schema.Probability = 0.25
    """Probability that a rectangle is erased."""
    padding_crop: Annotated[int, Field(gt=0, le=2**16)] | None = None
    """Pixels of padding before a random crop of the image's size, in place of `crop_scale` (null: none)."""
    mixup: schema.NonNegative = 0.8
    """Parameter of mixup's beta distribution (0: none)."""
    cutmix: schema.NonNegative = 1.0
    """Parameter of CutMix's beta distribution (0: none)."""
    label_smoothing: schema.Fraction = 0.1
    """Probability that is shared out among the other classes."""
    repeats: schema.PositiveInt = 3
    """Augmented copies of an image that a batch draws together."""
    workers: schema.NonNegativeInt = 0
    """Processes that load images (0: the main one)."""
    synthetic: bool = False
    """One random batch again and again: the model's own speed."""


class ImageTrainingRecipe(BaseTraining):
    """The optimisation: AdamW, linear warm-up and cosine decay by update, an average of the weights.

    >>> from nadaraya.training.image_recipe import ImageTrainingRecipe
    >>> ImageTrainingRecipe(batch_size=512).peak_learning_rate
    0.0005
    """

    at_most: ClassVar[dict[str, str]] = {**BaseTraining.at_most, "warmup_epochs": "epochs"}
    epochs: schema.PositiveInt = 300
    """Passes over the training images in the whole run."""
    batch_size: schema.PositiveInt = 1024
    """Images in one update, those of all processes together."""
    learning_rate: schema.Positive = 1e-3
    """The highest learning rate, for a batch of `learning_rate_batch` images."""
    learning_rate_batch: schema.PositiveInt | None = 1024
    """All learning rates are multiplied by `batch_size` / `learning_rate_batch` (null: they are not)."""
    min_learning_rate: schema.NonNegative = 1e-6
    """The learning rate at the end of the cosine decay, whatever the batch."""
    warmup_epochs: schema.NonNegativeInt = 5
    """Epochs until the learning rate has risen to its highest."""
    warmup_learning_rate: schema.NonNegative = 1e-6
    """The learning rate at the start of the linear warm-up, whatever the batch."""
    weight_decay: schema.NonNegative = 0.05
    """Of weight matrices alone."""
    betas: schema.TwoFractions = (0.9, 0.999)
    """Decay of AdamW's averages of the gradient and of its square."""
    ema_decay: schema.Fraction | None = 0.99996
    """Decay of the average of the weights by update (null: no average)."""
    ema_warmup: bool = False
    """Let the average begin shorter, as short runs need."""
    log_every: schema.PositiveInt = 50
    """Updates from one training record to the next."""
    evaluate_every_epochs: schema.PositiveInt = 1
    """Epochs from one validation to the next."""
    checkpoint_every: schema.PositiveInt = 1000
    """Updates from one checkpoint to the next."""

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up, scaled to the batch."""
        if self.learning_rate_batch is None:
            return self.learning_rate
        return self.learning_rate * self.batch_size / self.learning_rate_batch


class ImageRecipe(BaseRecipe):
    """An image classifier's run.

    >>> from nadaraya.training import ImageRecipe
    >>> ImageRecipe(model={"options": {"pattern": "GGGA"}}).label
    'gka_tiny_patch16_224-GGGA'
    """

    task: Literal["image"] = "image"
    """The task: `text` or `image`."""
    model: ImageModelRecipe = Field(default_factory=ImageModelRecipe)
    data: ImageDataRecipe = Field(default_factory=ImageDataRecipe)
    training: ImageTrainingRecipe = Field(default_factory=ImageTrainingRecipe)

    @property
    def label(self) -> str:
        """The name of the model, with the variant and the pattern that its options choose."""
        options = self.model.options
        chosen = [str(options[key]) for key in ("variant", "pattern") if key in options]
        return "-".join([self.model.name, *chosen])

    @property
    def length(self) -> int:
        """Epochs of the whole run."""
        return self.training.epochs

    def build_model(self, num_classes: int, channels: int) -> "nn.Module":
        """The timm model of this recipe with fresh weights, in training mode; see `create_image_model`.

        Args:
            num_classes: of the images.
            channels: of the images, 1 or 3.

        Returns:
            Maps (B, channels, S, S) images to (B, num_classes) logits.

        Raises:
            InputError: no such model, it does not take what the recipe asks for, or it cannot fit in memory.
        """
        from nadaraya.models.vit import create_image_model

        model = self.model
        for option in model.options:
            if option in _SET_ELSEWHERE:
                raise InputError(
                    f"model.options.{option} must be left out: it is set by {_SET_ELSEWHERE[option]}"
                )
        options = {"num_classes": num_classes, "in_chans": channels, **model.options}
        if model.drop_path:
            options["drop_path_rate"] = model.drop_path
        depth = options.get("depth")
        if isinstance(depth, int) and depth > _MOST_BLOCKS:
            raise must_be("recipe key model.options.depth", f"at most {_MOST_BLOCKS}", depth)
        size, parameters = model.image_size, 0
        with suppress(InputError):  # some models cannot be made of shapes alone
            shapes = create_image_model(model.name, image_size=size, options=options, device="meta")
            parameters = sum(parameter.numel() for parameter in shapes.parameters())
        what = f"the model of {parameters:,} parameters"
        check_memory(what, 4 * parameters, "model.options or model.image_size")
        return create_image_model(model.name, image_size=size, options=options).train()

    def augmentation(self) -> "Augmentation":
        """The augmentation of the images, as `nadaraya.data.images` takes it.

        Raises:
            InputError: an interpolation or a policy that does not exist.
        """
        from nadaraya.data.images import Augmentation

        # The other keys of the section have the names of the augmentation's own arguments.
        others = {"source", "validation", "corrupt", "limit", "workers", "synthetic"}
        return Augmentation(image_size=self.model.image_size, **self.data.model_dump(exclude=others))
