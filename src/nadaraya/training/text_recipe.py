"""Recipes of language models: the model, the text and the optimisation."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator

from nadaraya.data.corpus import Shuffled
from nadaraya.data.tokenizer import SMALLEST_VOCABULARY
from nadaraya.device import check_memory, training_device
from nadaraya.errors import InputError, check_name, must_be, shown
from nadaraya.training import schema
from nadaraya.training.optimisation import BaseTraining
from nadaraya.training.schema import BaseRecipe, Section, Settings

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

_STATE_BYTES = 16  # per parameter in training: weight, gradient and AdamW's two averages, in float32
_DECAY_FRACTION = 0.2
# Of the model's configuration: what the data, or the model itself, decides.
_SET_ELSEWHERE = (
    "vocab_size",
    "max_position_embeddings",
    "layer_types",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "variant_names",
)


class ModelRecipe(Section):
    """The model: `KernelGPTConfig` says what its arguments mean."""

    prefix: ClassVar[str] = "model."
    preset: str | None = None
    """Sizes and other arguments by name: `recommended`, or nanochat's `nano-d12` with any depth, or
    `nano-d12-gka`; `extra` and `variant` go over those of the preset."""
    hidden_size: Annotated[int, Field(gt=0, le=2**20)] = 128
    """Width of the model; a multiple of the heads."""
    num_hidden_layers: Annotated[int, Field(gt=0, le=4096)] = 4
    """Number of blocks."""
    num_attention_heads: Annotated[int, Field(gt=0, le=2**20)] = 4
    """Heads per block."""
    variant: str | list[str] = "rope"
    """Attention variant; a list of them repeats over the blocks."""
    variant_options: Settings = Field(default_factory=dict)
    """Settings of the variant."""
    dropout: schema.Fraction = 0.0
    """Of activations, in training."""
    extra: Settings = Field(default_factory=dict)
    """Any other argument of `KernelGPTConfig`."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, given: Any) -> Any:
        """The values of the preset; what is not of the right type is left to be refused."""
        name, extra = (
            (given.get(key) for key in ("preset", "extra")) if isinstance(given, Mapping) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(extra, Mapping | None):
            return given
        from nadaraya.models.presets import preset_fields

        fields = preset_fields(name, given.get("variant"))
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            if key in fields and given.get(key, fields[key]) != fields[key]:
                accepted = f"{fields[key]}, that of the preset {name}, or left out"
                raise must_be(f"recipe key model.{key}", accepted, given[key])
        own = {key: value for key, value in fields.items() if key in cls.model_fields}
        rest = {key: value for key, value in fields.items() if key not in (*own, *_SET_ELSEWHERE)}
        return {**own, **given, "extra": {**rest, **(extra or {})}}


class DataRecipe(Section):
    """The text and what its tokens are."""

    prefix: ClassVar[str] = "data."
    corpus: str = "embedded"
    """`embedded`, `dickens`, or the path of a text file, of a folder of them, or of a folder of token shards,
    which has its tokenizer and its validation part."""
    tokenizer: Literal["characters", "bytes", "bpe"] = "characters"
    """Tokens of a text: its characters, its bytes of UTF-8, or byte pairs found in the training
    part; bytes and byte pairs know every other text, too. Token shards have a tokenizer of their own."""
    vocabulary: Annotated[int, Field(ge=SMALLEST_VOCABULARY, le=10**6)] | None = None
    """Number of tokens of `bpe` (null: 4096)."""
    context: Annotated[int, Field(ge=2, lt=2**31)] = 256
    """Tokens in a window."""
    validation_fraction: schema.OpenFraction = 0.1
    """The part at the end of the text that is not trained on."""
    limit: schema.PositiveInt | None = None
    """Characters of the text that are used (null: all of it)."""
    wrap: schema.PositiveInt | None = None
    """A control: columns at which paragraphs are joined and wrapped anew (null: lines as they are)."""
    shuffle: Shuffled | None = None
    """A control: what of the text, training and validation part, is in random order (null: nothing)."""
    documents: Literal["packed", "joined"] = "packed"
    """Of token shards: attention stays inside each document (`packed`) or sees the window (`joined`)."""
    record: bool = False
    """Of token shards: write the numbers of every update's windows to windows.jsonl, some bytes for each."""

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        if self.vocabulary is not None and self.tokenizer != "bpe":
            accepted = f"null where data.tokenizer is {self.tokenizer} (bpe alone has a vocabulary to choose)"
            raise must_be("recipe key data.vocabulary", accepted, self.vocabulary)
        return self

    def corpus_options(self) -> dict[str, Any]:
        """Keywords of `nadaraya.data.load_corpus`."""
        return {"limit": self.limit, "wrap": self.wrap, "shuffle": self.shuffle}


class TrainingRecipe(BaseTraining):
    """AdamW or Muon; linear warm-up, then cosine decay, or a constant rate and linear decay."""

    at_most: ClassVar[dict[str, str]] = {**BaseTraining.at_most, "warmup_steps": "steps"}
    batch_tokens: schema.PositiveInt | None = None
    """Tokens in one update, those of all processes together; sets `batch_size` (null: it is as given)."""
    steps: schema.PositiveInt = 600
    """Updates of the whole run."""
    warmup_steps: schema.NonNegativeInt = 20
    """Updates until the learning rate has risen to its highest."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """After warm-up, cosine decay over all updates, or wsd: a stable rate, then linear decay at the end."""
    decay_fraction: schema.OpenFraction | None = None
    """The part of the updates at the end of `wsd` in which the learning rate falls (null: 0.2)."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Several processes have the whole model each, or share weights, gradients and optimizer state out."""
    kernel_learning_rate: schema.Positive | None = 1e-2
    """`learning_rate` of kernels, banks, bandwidths and learned angles (null: the same); they never decay."""
    evaluate_every: schema.PositiveInt = 50
    """Updates from one validation to the next."""
    validation_batches: Annotated[int, Field(gt=0, le=10**6)] = 8
    """Batches of windows in a validation, evenly spaced over the validation text."""
    sample_characters: Annotated[int, Field(ge=0, le=10**6)] = 2000
    """Tokens of the text that is generated at the end: characters, for a model of characters."""

    @property
    def decay_start(self) -> int | None:
        """Updates of warm-up and stable rate, which longer runs have in common; None with cosine decay."""
        if self.schedule == "cosine":
            return None
        return self.steps - max(1, round(self.steps * (self.decay_fraction or _DECAY_FRACTION)))

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.decay_fraction is not None and self.schedule == "cosine":
            raise self.refusal("decay_fraction", "null where training.schedule is cosine (wsd alone has one)")
        if self.decay_start is not None and self.warmup_steps > self.decay_start:
            highest = f"at most {self.decay_start}, after which the learning rate falls"
            raise self.refusal("warmup_steps", highest)
        return self


class Recipe(BaseRecipe):
    """A language model's run.

    >>> from nadaraya.training import Recipe
    >>> Recipe(training={"steps": 100}).training.steps
    100
    >>> Recipe.from_mapping({"model": {"varaint": "gpa"}})
    Traceback (most recent call last):
    nadaraya.errors.InputError: recipe key must be one of ... did you mean 'model.variant'?
    """

    task: Literal["text"] = "text"
    """The task: `text` or `image`."""
    model: ModelRecipe = Field(default_factory=ModelRecipe)
    data: DataRecipe = Field(default_factory=DataRecipe)
    training: TrainingRecipe = Field(default_factory=TrainingRecipe)

    @field_validator("training", mode="before")
    @classmethod
    def _batch_of_tokens(cls, training: Any, checked: ValidationInfo) -> Any:
        """`batch_size` from `batch_tokens`; what is not of the right type is left to be refused."""
        given = training.model_dump() if isinstance(training, TrainingRecipe) else training
        tokens = given.get("batch_tokens") if isinstance(given, Mapping) else None
        if "data" not in checked.data or not isinstance(tokens, int) or tokens <= 0:
            return training
        context = checked.data["data"].context
        if tokens % context:
            raise must_be(
                "recipe key training.batch_tokens", f"a multiple of data.context = {context}", tokens
            )
        return {**given, "batch_size": tokens // context}

    @property
    def label(self) -> str:
        """The attention variant; those of a hybrid joined by "+"."""
        variant = self.model.variant
        return variant if isinstance(variant, str) else "+".join(variant)

    @property
    def length(self) -> int:
        """Updates of the whole run."""
        return self.training.steps

    def build_model(self, vocab_size: int) -> "KernelGPTForCausalLM":
        """The model of this recipe with freshly initialised weights (drawn from torch's global generator).

        Raises:
            InputError: unknown variant or option, a name in `extra` that the model does not have, a head
                width that does not divide, or a training that cannot fit in memory.
        """
        from nadaraya.models import KernelGPTForCausalLM

        try:
            parameters = self._count_parameters(vocab_size)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError) as error:
            given = {"extra": self.model.extra, "variant_options": self.model.variant_options}
            given = {key: value for key, value in given.items() if value}
            if not given or isinstance(error, InputError):
                raise  # without options it is the model's fault
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"the model cannot be built with model {shown(given)}: {reason}") from error
        check_memory(
            f"training of {parameters:,} parameters in batches of {self.training.batch_size:,} windows of "
            f"{self.data.context:,} tokens",
            text_training_bytes(self, parameters, vocab_size),
            "model.hidden_size, model.num_hidden_layers, training.batch_size or data.context",
            training_device(),
        )
        return KernelGPTForCausalLM(self._config(vocab_size, self.model.num_hidden_layers))

    def _count_parameters(self, vocab_size: int) -> int:
        """Parameters of the model; those of many layers follow from models of a few, one period apart."""
        from nadaraya.models import KernelGPTForCausalLM

        def count(layers: int) -> int:
            with torch.device("meta"):  # shapes alone
                return KernelGPTForCausalLM(self._config(vocab_size, layers)).num_parameters()

        layers, variant = self.model.num_hidden_layers, self.model.variant
        period = 2 * (1 if isinstance(variant, str) else len(variant))  # value embeddings may alternate
        few = period + layers % period if period else layers
        if layers <= few + period:
            return count(layers)
        return (first := count(few)) + (layers - few) // period * (count(few + period) - first)

    def _config(self, vocab_size: int, layers: int) -> "KernelGPTConfig":
        """The configuration of the model with so many layers."""
        from nadaraya.models import KernelGPTConfig

        given = self.model.model_dump(exclude={"preset"})
        extra, variant_options = given.pop("extra"), given.pop("variant_options")
        accepted = set(KernelGPTConfig.__annotations__) - {*given, "variant_options", *_SET_ELSEWHERE}
        for name in extra:
            check_name("key in model.extra", name, accepted)
        heads = self.model.num_attention_heads
        if self.model.hidden_size % heads:
            width = f"a multiple of model.num_attention_heads = {heads}"
            raise must_be("recipe key model.hidden_size", width, self.model.hidden_size)
        if layers < self.model.num_hidden_layers:  # what is removed from layers that are not there
            extra = {key: extra[key] for key in extra if key not in ("pruned_heads", "intermediate_sizes")}
        return KernelGPTConfig(
            vocab_size=vocab_size,
            max_position_embeddings=self.data.context,
            variant_options=variant_options or None,
            **{**given, "num_hidden_layers": layers},
            **extra,
        )


def text_training_bytes(recipe: Recipe, parameters: int, vocab_size: int) -> int:
    """Bytes that training takes at the least: state of the optimizer, a batch, and what its pieces keep."""
    training, context, model = recipe.training, recipe.data.context, recipe.model
    processes = int(os.environ.get("WORLD_SIZE", 1))
    share = training.batch_size // (training.gradient_accumulation * processes) or 1
    piece = training.micro_batch_size or share
    # Kept for the backward pass: the inputs of the linear layers and of the activation, and the logits.
    blocks = 1 if training.activation_checkpointing else model.num_hidden_layers
    kept = 2 * 12 * blocks * model.hidden_size + 4 * vocab_size
    state = _STATE_BYTES * parameters // (processes if training.parallel == "fsdp" else 1)
    return state + 8 * training.batch_size * context + piece * context * kept
