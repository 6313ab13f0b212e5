"""The section `training` of recipes: the keys that every task has, and those of language models."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nadaraya.errors import must_be
from nadaraya.training.schema import (
    NonNegative,
    NonNegativeInt,
    OpenFraction,
    Positive,
    PositiveInt,
    Section,
    TwoFractions,
)

_MUON_RATE = 0.02  # that of nanochat
_DECAY_FRACTION = 0.2


class BaseTraining(Section):
    """The keys of the section `training` that every task has."""

    prefix: ClassVar[str] = "training."
    at_most: ClassVar[dict[str, str]] = {"min_learning_rate": "learning_rate"}
    batch_size: PositiveInt = 16
    """Windows of text in one update, those of all processes together."""
    gradient_accumulation: PositiveInt = 1
    """Equal pieces that each process computes its part of an update in: less memory, the same update."""
    micro_batch_size: PositiveInt | None = None
    """Windows that a process computes at a time; sets `gradient_accumulation` (null: it is as given)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all parameters, or Muon for the weights of linear layers in blocks and AdamW for the rest."""
    learning_rate: Positive = 2e-3
    """The highest learning rate of AdamW, after a linear warm-up."""
    matrix_learning_rate: Positive | None = None
    """`learning_rate` of Muon's matrices (null: 0.02)."""
    min_learning_rate: NonNegative = 0.0
    """Where the cosine decay of the learning rate ends."""
    kernel_learning_rate: Positive | None = None
    """`learning_rate` of kernels, banks, bandwidths and learned angles (null: the same); they never decay."""
    weight_decay: NonNegative = 0.1
    """Of weight matrices alone."""
    betas: TwoFractions = (0.9, 0.95)
    """Decay of AdamW's averages of the gradient and of its square."""
    clip: Positive | None = 1.0
    """Largest norm of the gradient; larger ones are scaled down (null: never)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forward pass; "auto" is bfloat16 on CUDA and float32 elsewhere."""
    compile: bool | Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        False
    )
    """`torch.compile`, or one of its modes."""
    activation_checkpointing: bool = False
    """Compute activations of blocks again in the backward pass: less memory, about a third more time."""
    log_every: PositiveInt = 10
    """Updates from one training record to the next."""
    checkpoint_every: PositiveInt = 200
    """Updates from one checkpoint to the next."""
    checkpoint_minutes: Positive | None = 10.0
    """Minutes after which a checkpoint is saved even so (null: never)."""
    checkpoints_kept: PositiveInt = 2
    """Newest checkpoints that are kept."""
    keep_best: bool = False
    """Keep the weights of the best validation too (lowest loss, highest top-1): best.safetensors."""
    drop_checkpoints: bool = False
    """Remove the checkpoints when the run is finished, which can then not be extended."""
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Where records go beside metrics.jsonl."""

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up."""
        return self.learning_rate

    @property
    def compile_mode(self) -> str | None:
        """The mode of `torch.compile`; None is its default."""
        return self.compile if isinstance(self.compile, str) else None

    @property
    def kernel_rate_scale(self) -> float:
        """The learning rate of kernel parameters as a multiple of that of the others."""
        return (self.kernel_learning_rate or self.learning_rate) / self.learning_rate

    @property
    def matrix_rate_scale(self) -> float:
        """The learning rate of Muon's matrices as a multiple of AdamW's."""
        return (self.matrix_learning_rate or _MUON_RATE) / self.learning_rate

    def pieces(self, processes: int = 1) -> int:
        """Equal pieces that each of so many processes computes its part of an update in.

        Raises an InputError where they do not divide the batch.
        """
        key = "gradient_accumulation" if self.micro_batch_size is None else "micro_batch_size"
        divisor = self.micro_batch_size or self.gradient_accumulation
        if self.batch_size % (processes * divisor):
            several = f"{processes} processes × " if processes > 1 else ""
            accepted = f"a multiple of {several}training.{key} = {divisor}"
            raise must_be(f"recipe key {self.batch_key}", accepted, self.batch_size)
        return divisor if self.micro_batch_size is None else self.batch_size // (processes * divisor)

    @property
    def sharded(self) -> bool:
        """Whether several processes share the weights out."""
        return False

    @property
    def batch_key(self) -> str:
        """What sets the size of a batch."""
        return "training.batch_size"

    @property
    def decay_start(self) -> int | None:
        """Updates that are the same whatever the length of the run; None where all depend on it."""
        return None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.micro_batch_size is not None and self.gradient_accumulation != 1:
            accepted = "1 where training.micro_batch_size sets it"
            raise must_be("recipe key training.gradient_accumulation", accepted, self.gradient_accumulation)
        self.pieces()
        if self.matrix_learning_rate is not None and self.optimizer != "muon":
            accepted = f"null where training.optimizer is {self.optimizer} (Muon alone has one)"
            raise must_be("recipe key training.matrix_learning_rate", accepted, self.matrix_learning_rate)
        scales = {"kernel_learning_rate": self.kernel_rate_scale}
        if self.optimizer == "muon":
            scales["matrix_learning_rate"] = self.matrix_rate_scale
        for key, scale in scales.items():
            if not 1e-37 <= scale <= 1e37:
                accepted = "within 37 orders of magnitude of training.learning_rate"
                raise must_be(f"recipe key training.{key}", accepted, getattr(self, key))
        for key, limit in self.at_most.items():
            value, highest = getattr(self, key), getattr(self, limit)
            if value > highest:
                raise must_be(
                    f"recipe key training.{key}", f"at most training.{limit} = {highest:.15g}", value
                )
        return self


class TrainingRecipe(BaseTraining):
    """The optimisation: AdamW or Muon; linear warm-up, then cosine decay or a constant rate and linear decay.

    >>> from nadaraya.training import TrainingRecipe
    >>> TrainingRecipe(steps=50, warmup_steps=5).batch_size
    16
    """

    at_most: ClassVar[dict[str, str]] = {**BaseTraining.at_most, "warmup_steps": "steps"}
    batch_tokens: PositiveInt | None = None
    """Tokens in one update, those of all processes together; sets `batch_size` (null: it is as given)."""
    steps: PositiveInt = 600
    """Updates of the whole run."""
    warmup_steps: NonNegativeInt = 20
    """Updates until the learning rate has risen to its highest."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """After warm-up, cosine decay over all updates, or wsd: a stable rate, then linear decay at the end."""
    decay_fraction: OpenFraction | None = None
    """The part of the updates at the end of `wsd` in which the learning rate falls (null: 0.2)."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Several processes have the whole model each, or share weights, gradients and optimizer state out."""
    kernel_learning_rate: Positive | None = 1e-2
    """`learning_rate` of kernels, banks, bandwidths and learned angles (null: the same); they never decay."""
    evaluate_every: PositiveInt = 50
    """Updates from one validation to the next."""
    validation_batches: Annotated[int, Field(gt=0, le=10**6)] = 8
    """Batches of windows in a validation, evenly spaced over the validation text."""
    sample_characters: Annotated[int, Field(ge=0, le=10**6)] = 2000
    """Tokens of the text that is generated at the end: characters, for a model of characters."""

    @property
    def sharded(self) -> bool:
        """Whether several processes share the weights out."""
        return self.parallel == "fsdp"

    @property
    def batch_key(self) -> str:
        """What sets the size of a batch."""
        return super().batch_key if self.batch_tokens is None else "training.batch_tokens / data.context"

    @property
    def decay_start(self) -> int | None:
        """Updates of warm-up and stable rate, which longer runs have in common; None with cosine decay."""
        if self.schedule == "cosine":
            return None
        return self.steps - max(1, round(self.steps * (self.decay_fraction or _DECAY_FRACTION)))

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.decay_fraction is not None and self.schedule == "cosine":
            accepted = "null where training.schedule is cosine (wsd alone has one)"
            raise must_be("recipe key training.decay_fraction", accepted, self.decay_fraction)
        if self.decay_start is not None and self.warmup_steps > self.decay_start:
            accepted = f"at most {self.decay_start}, after which the learning rate falls"
            raise must_be("recipe key training.warmup_steps", accepted, self.warmup_steps)
        return self
