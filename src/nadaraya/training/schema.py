"""What recipes are made of: sections of keys that pydantic checks, as YAML and back; errors are one line."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from nadaraya.errors import InputError, must_be, unknown_name

_SECTIONS = ("model", "data", "training")
_LENGTHS = ("training.steps", "training.epochs")
# What a run that goes on may change: what is learned stays the same, up to rounding for the last two.
_FREE = {
    "data.workers",
    "training.log_every",
    "training.evaluate_every",
    "training.evaluate_every_epochs",
    "training.validation_batches",
    "training.sample_characters",
    "training.checkpoint_every",
    "training.checkpoint_minutes",
    "training.checkpoints_kept",
    "training.drop_checkpoints",
    "training.tracker",
    "training.compile",
    "training.gradient_accumulation",
}
# Pydantic's words are those of Python; a recipe is YAML.
_WORDS = {
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "a section of keys",
    "string_type": "text",
}


def _number(value: Any) -> Any:
    """A number may come as text, because YAML reads 1e-3 as one."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def _pair(value: Any) -> Any:
    """YAML has lists where Python has tuples."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return tuple(value)
    raise ValueError("a list of two numbers")


def _file_name(value: str) -> str:
    if re.fullmatch(r"\w[\w.+-]*", value):
        return value
    raise ValueError("letters, digits and . _ + - (it names the run folder)")


# Bounds stand before the validator: behind it pydantic leaves them out of the JSON schema.
Number = Annotated[float, BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(_number)]
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Fraction = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_number)]
OpenFraction = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_number)]
Probability = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
TwoNumbers = Annotated[tuple[Number, Number], BeforeValidator(_pair)]
TwoFractions = Annotated[tuple[Fraction, Fraction], BeforeValidator(_pair)]


class Section(BaseModel):
    """A part of a recipe: unknown keys, wrong types and values out of range are refused when it is made."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    prefix: ClassVar[str] = ""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._refusal(error, values) from None

    @classmethod
    def dotted_keys(cls) -> list[str]:
        """Every dotted key, in the order of the file."""
        keys: list[str] = []
        for name, field in cls.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, Section):
                keys += kind.dotted_keys()
            else:
                keys.append(f"{cls.prefix}{name}")
        return keys

    @classmethod
    def _refusal(cls, refused: ValidationError, given: Mapping[str, Any]) -> InputError:
        """The first of pydantic's errors in one line: an unknown key before a value that is not accepted."""
        errors = refused.errors(include_url=False)
        first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):  # from a section inside, or from a check across keys
            return cause
        key, *place = first["loc"]
        name = f"{cls.prefix}{key}"
        if first["type"] == "extra_forbidden":
            return unknown_name("recipe key", name, cls.dotted_keys())
        if place and isinstance(place[0], int):  # inside a list
            return must_be(f"recipe key {name}[{place[0]}]", _accepted(first), first["input"])
        # The alternatives of a key, such as text or a list of text, have an error each.
        accepted = [_accepted(error) for error in errors if error["loc"][0] == key]
        if type(None) in get_args(cls.model_fields[str(key)].annotation):
            accepted.append("null")
        return must_be(f"recipe key {name}", " or ".join(dict.fromkeys(accepted)), given[str(key)])


class BaseTraining(Section):
    """The keys of the section `training` that every task has."""

    prefix: ClassVar[str] = "training."
    at_most: ClassVar[dict[str, str]] = {"min_learning_rate": "learning_rate"}
    batch_size: PositiveInt = 16
    """Windows of text in one update, those of all processes together."""
    gradient_accumulation: PositiveInt = 1
    """Equal pieces that each process computes its part of an update in: less memory, the same update."""
    learning_rate: Positive = 2e-3
    """The highest learning rate of AdamW, after a linear warm-up."""
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
    def kernel_rate_scale(self) -> float:
        """The learning rate of kernel parameters as a multiple of that of the others."""
        return (self.kernel_learning_rate or self.learning_rate) / self.learning_rate

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        pieces = self.gradient_accumulation
        if self.batch_size % pieces:
            accepted = f"a multiple of training.gradient_accumulation = {pieces}"
            raise must_be("recipe key training.batch_size", accepted, self.batch_size)
        for key, limit in self.at_most.items():
            value, highest = getattr(self, key), getattr(self, limit)
            if value > highest:
                raise must_be(
                    f"recipe key training.{key}", f"at most training.{limit} = {highest:.15g}", value
                )
        return self


class BaseRecipe(Section):
    """What every recipe has beside its sections `model`, `data` and `training`."""

    task: str
    name: Annotated[str, AfterValidator(_file_name)] = "run"
    """Of the run, and of its folder: letters, digits and . _ + -"""
    seed: NonNegativeInt = 0
    """Of everything that is random."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """The checked recipe of nested mappings, as YAML gives them; what is missing or None has its default.

        Raises:
            InputError: a key is unknown (the nearest valid one is named), or a value is not accepted.
        """
        keys = _text_keys(mapping)
        for name in _SECTIONS:
            section = keys.get(name)
            keys[name] = _text_keys(section or {}) if isinstance(section, Mapping | None) else section
        return cls(**keys)

    def to_mapping(self) -> dict[str, Any]:
        """The recipe as nested mappings of plain values; `from_mapping` reads it back equal."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The recipe as YAML, every key written out."""
        return yaml.safe_dump(self.to_mapping(), sort_keys=False, allow_unicode=True)

    def first_conflict(self, wanted: "BaseRecipe") -> tuple[str, Any, Any] | None:
        """The first key for which a run of this recipe cannot go on as `wanted` says, with both values.

        Keys that do not alter what is learned may differ, and a run may become longer.
        """
        ours, theirs = self._flat(), wanted._flat()  # "task" comes first, on which the other keys depend
        for key, value in ours.items():
            other = theirs[key]
            longer = key in _LENGTHS and other > value
            if value != other and key not in _FREE and not longer:
                return key, value, other
        return None

    def _flat(self) -> dict[str, Any]:
        """Values by dotted key."""
        sections = self.to_mapping()
        flat = {key: sections.pop(key) for key in ("task", "name", "seed")}
        return flat | {f"{name}.{key}": value for name in _SECTIONS for key, value in sections[name].items()}


def parse_yaml(text: str, where: str) -> Any:
    """Plain YAML values only: a document that names a Python object is refused, nothing is run."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{where}{line}: not plain YAML: {problem}") from error


def _accepted(error: Mapping[str, Any]) -> str:
    """What one of pydantic's errors asks for, as it reads after "must be"."""
    message: str = error["msg"]
    words = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return _WORDS.get(error["type"], words.replace("greater than or equal to", "at least"))


def _text_keys(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """YAML has keys that are no text, which no recipe has: they are refused by name."""
    return {str(key): value for key, value in mapping.items()}
