"""The keys of the section `training` of recipes that every task has."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from nadaraya.errors import InputError, must_be
from nadaraya.training import schema
from nadaraya.training.schema import Section

_MUON_RATE = 0.02  # that of nanochat


class BaseTraining(Section):
    """The keys of the section `training` that every task has."""

    prefix: ClassVar[str] = "training."
    at_most: ClassVar[dict[str, str]] = {"min_learning_rate": "learning_rate"}
    batch_size: schema.PositiveInt = 16
    """Windows of text in one update, those of all processes together."""
    gradient_accumulation: schema.PositiveInt = 1
    """Equal pieces that each process computes its part of an update in: less memory, the same update."""
    micro_batch_size: schema.PositiveInt | None = None
    """Windows that a process computes at a time; sets `gradient_accumulation` (null: it is as given)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all parameters, or Muon for the weights of linear layers in blocks and AdamW for the rest."""
    learning_rate: schema.Positive = 2e-3
    """The highest learning rate of AdamW, after a linear warm-up."""
    matrix_learning_rate: schema.Positive | None = None
    """`learning_rate` of Muon's matrices (null: 0.02)."""
    min_learning_rate: schema.NonNegative = 0.0
    """The learning rate at the end of its decay."""
    kernel_learning_rate: schema.Positive | None = None
    """`learning_rate` of kernels, banks, bandwidths and learned angles (null: the same); they never decay."""
    weight_decay: schema.NonNegative = 0.1
    """Of weight matrices alone."""
    betas: schema.TwoFractions = (0.9, 0.95)
    """Decay of AdamW's averages of the gradient and of its square."""
    clip: schema.Positive | None = 1.0
    """Largest norm of the gradient; larger ones are scaled down (null: never)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forward pass; "auto" is bfloat16 on CUDA and float32 elsewhere."""
    compile: bool | Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        False
    )
    """`torch.compile`, or one of its modes."""
    activation_checkpointing: bool = False
    """Compute activations of blocks again in the backward pass: less memory, about a third more time."""
    log_every: schema.PositiveInt = 10
    """Updates from one training record to the next."""
    checkpoint_every: schema.PositiveInt = 200
    """Updates from one checkpoint to the next."""
    checkpoint_minutes: schema.Positive | None = 10.0
    """Minutes after which a checkpoint is saved even so (null: never)."""
    checkpoints_kept: schema.PositiveInt = 2
    """Newest checkpoints that are kept."""
    keep_best: bool = False
    """Keep the weights of the best validation too (lowest loss, highest top-1): best.safetensors."""
    drop_checkpoints: bool = False
    """Remove the checkpoints when the run is finished, which can then not be extended."""
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Tracker that gets the records, beside metrics.jsonl (null: none)."""

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up."""
        return self.learning_rate

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
            tokens = getattr(self, "batch_tokens", None) is not None  # which recipes on text may give
            sizes = "training.batch_tokens / data.context" if tokens else "training.batch_size"
            raise must_be(f"recipe key {sizes}", accepted, self.batch_size)
        return divisor if self.micro_batch_size is None else self.batch_size // (processes * divisor)

    @property
    def decay_start(self) -> int | None:
        """Updates that are the same whatever the length of the run; None where all depend on it."""
        return None

    def refusal(self, key: str, accepted: str) -> InputError:
        """An InputError for the value of a key that does not go with the others."""
        return must_be(f"recipe key training.{key}", accepted, getattr(self, key))

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.micro_batch_size is not None and self.gradient_accumulation != 1:
            raise self.refusal("gradient_accumulation", "1 where training.micro_batch_size sets it")
        self.pieces()
        if self.matrix_learning_rate is not None and self.optimizer != "muon":
            accepted = f"null where training.optimizer is {self.optimizer} (Muon alone has one)"
            raise self.refusal("matrix_learning_rate", accepted)
        scales = {"kernel_learning_rate": self.kernel_rate_scale}
        if self.optimizer == "muon":
            scales["matrix_learning_rate"] = self.matrix_rate_scale
        for key, scale in scales.items():
            if not 1e-37 <= scale <= 1e37:
                raise self.refusal(key, "within 37 orders of magnitude of training.learning_rate")
        for key, limit in self.at_most.items():
            highest = getattr(self, limit)
            if getattr(self, key) > highest:
                raise self.refusal(key, f"at most training.{limit} = {highest:.15g}")
        return self
