"""Parts of recipes: sections of keys that pydantic checks, as YAML and back; errors are one line."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.stored import accepted as accepted_by

# The key "format" of what is written out; before there was any, `gpa` and `gpa-rope` had the paper's start.
FORMAT = 2
LONGEST_NAME = 128  # bytes: file systems take 255, and temporary names are longer
_SECTIONS = ("model", "data", "training")
# What people call keys elsewhere, by the last name of the key that means it, of a text or an image recipe.
_MEANT = {
    "corpus": ("text", "texts", "file", "files", "path", "dataset", "train_file", "input"),
    "source": ("images", "folder", "path", "file", "dataset", "root", "data_dir"),
    "learning_rate": ("lr", "rate", "max_lr", "peak_lr", "learningrate"),
    "min_learning_rate": ("min_lr", "final_lr"),
    "kernel_learning_rate": ("kernel_lr",),
    "matrix_learning_rate": ("matrix_lr", "muon_lr", "muon_learning_rate"),
    "optimizer": ("optim", "opt"),
    "num_hidden_layers": ("layers", "depth", "n_layer", "n_layers", "num_layers", "blocks"),
    "num_attention_heads": ("heads", "n_head", "n_heads", "num_heads"),
    "hidden_size": ("width", "dim", "d_model", "n_embd", "embed_dim", "embedding"),
    "options": ("layers", "depth", "heads", "num_heads", "width", "dim", "embed_dim", "patch_size"),
    "variant": ("attention", "kernel", "kernels", "position", "positions"),
    "name": ("arch", "architecture", "attention"),
    "context": ("block_size", "seq_len", "sequence_length", "context_length", "window", "length"),
    "steps": ("epochs", "iterations", "iters", "max_steps", "max_iters", "updates", "num_steps"),
    "epochs": ("steps", "num_epochs", "passes"),
    "warmup_steps": ("warmup", "warmup_epochs", "warmup_iters"),
    "warmup_epochs": ("warmup", "warmup_steps"),
    "batch_size": ("batch", "batches", "bs"),
    "gradient_accumulation": ("accumulation", "accumulate", "grad_accum", "gradient_accumulation_steps"),
    "batch_tokens": ("total_batch_size", "tokens_per_batch", "global_batch_tokens", "tokens"),
    "micro_batch_size": ("micro_batch", "device_batch_size", "per_device_train_batch_size"),
    "activation_checkpointing": ("gradient_checkpointing", "checkpointing", "recompute"),
    "parallel": ("fsdp", "ddp", "strategy", "distributed"),
    "clip": ("grad_clip", "max_norm", "clip_grad", "gradient_clipping"),
    "weight_decay": ("decay", "wd", "l2"),
    "betas": ("beta1", "beta2", "beta", "momentum"),
    "precision": ("dtype", "amp", "bf16", "bfloat16", "mixed_precision"),
    "image_size": ("size", "resolution", "img_size", "input_size"),
    "drop_path": ("drop_path_rate", "stochastic_depth", "dropout"),
    "ema_decay": ("ema", "average"),
    "rand_augment": ("augment", "augmentation", "auto_augment", "aa"),
    "seed": ("random_seed", "random_state"),
}
_LENGTHS = ("training.steps", "training.epochs")
# What a run that goes on may change: what is learned stays the same, up to rounding.
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
    "training.batch_tokens",  # it sets batch_size, which may not change
    "training.gradient_accumulation",
    "training.micro_batch_size",
    "training.activation_checkpointing",
    "training.parallel",
}


def _number(value: Any) -> Any:
    """A number may come as text, because YAML reads 1e-3 as one; no integer is beyond what floats hold."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    if isinstance(value, int) and abs(value) > _LARGEST:
        return math.inf if value > 0 else -math.inf
    return value


def _pair(value: Any) -> Any:
    """YAML has lists where Python has tuples."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return tuple(value)
    raise ValueError("a list of two numbers")


def _plain(value: Any) -> Any:
    """Settings that are handed on to a model: text keys, and no number that a file could not give back."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError("made of keys that are text")
            _plain(item)
    elif isinstance(value, list):
        for item in value:
            _plain(item)
    elif isinstance(value, int | float) and not abs(value) <= _LARGEST:
        raise ValueError("made of finite numbers of at most 1e37")
    return value


def _file_name(value: str) -> str:
    if re.fullmatch(r"\w[\w.+-]*", value) and len(os.fsencode(value)) <= LONGEST_NAME:
        return value
    raise ValueError(f"up to {LONGEST_NAME} letters, digits and . _ + - (it names the run folder)")


# Bounds stand before the validator: behind it pydantic leaves them out of the JSON schema.
# Weights are float32, in which a larger number than this is infinite; no count of anything is larger.
_LARGEST, _MOST = 1e37, 10**12
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST), BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0, le=_LARGEST), BeforeValidator(_number)]
NonNegative = Annotated[float, Field(ge=0, le=_LARGEST), BeforeValidator(_number)]
Fraction = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_number)]
OpenFraction = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_number)]
Probability = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
TwoNumbers = Annotated[tuple[Number, Number], BeforeValidator(_pair)]
TwoFractions = Annotated[tuple[Fraction, Fraction], BeforeValidator(_pair)]
Settings = Annotated[dict[str, Any], AfterValidator(_plain)]
PositiveInt = Annotated[int, Field(gt=0, le=_MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_MOST)]


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
            return unknown_key(name, cls.dotted_keys())
        if place and isinstance(place[0], int):  # inside a list
            return must_be(f"recipe key {name}[{place[0]}]", accepted_by(first), first["input"])
        # The alternatives of a key, such as text or a list of text, have an error each.
        accepted = [accepted_by(error) for error in errors if error["loc"][0] == key]
        if type(None) in get_args(cls.model_fields[str(key)].annotation):
            accepted.append("null")
        return must_be(f"recipe key {name}", " or ".join(dict.fromkeys(accepted)), given.get(str(key)))


class BaseRecipe(Section):
    """The keys of every recipe beside its sections `model`, `data` and `training`."""

    task: str
    name: Annotated[str, AfterValidator(_file_name)] = "run"
    """Of the run, and of its folder: letters, digits and . _ + -"""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of everything that is random."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """The checked recipe of nested mappings, as YAML gives them; what is missing or None has its default.

        Raises:
            InputError: a key is unknown (the nearest valid one is named), or a value is not accepted.
        """
        keys = _text_keys(mapping)
        if (written := keys.pop("format", FORMAT)) != FORMAT:
            raise must_be("recipe key format", f"{FORMAT}, or left out", written)
        for name in _SECTIONS:
            section = keys.get(name)
            keys[name] = _text_keys(section or {}) if isinstance(section, Mapping | None) else section
        accepted = cls.dotted_keys()
        for key, _ in dotted_items(keys):
            if key not in (*accepted, *_SECTIONS):  # a section that is no mapping is left to pydantic
                listed_by = f"`nadaraya train --keys {cls.model_fields['task'].default}`"
                raise unknown_key(key, accepted, listed_by)
        return cls(**keys)

    def to_mapping(self) -> dict[str, Any]:
        """The recipe as nested mappings of plain values; `from_mapping` reads it back equal."""
        return {"format": FORMAT, **self.model_dump(mode="json")}

    def to_yaml(self) -> str:
        """The recipe as YAML, every key written out."""
        return yaml.safe_dump(self.to_mapping(), sort_keys=False, allow_unicode=True)

    def first_conflict(self, wanted: "BaseRecipe") -> tuple[str, Any, Any] | None:
        """The first key for which a run of this recipe cannot go on as `wanted` says, with both values.

        Keys that do not alter what is learned may differ, and a run may become longer.
        """
        ours, theirs = self.flat(), wanted.flat()  # "task" comes first, on which the other keys depend
        for key, value in ours.items():
            other = theirs[key]
            longer = key in _LENGTHS and other > value
            skips = key == "data.corrupt" and other == "skip"  # no image was damaged so far
            if value != other and key not in _FREE and not longer and not skips:
                return key, value, other
        return None

    def flat(self) -> dict[str, Any]:
        """Values by dotted key."""
        return dict(dotted_items(self.model_dump(mode="json")))


def dotted_items(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a recipe, or of changes to one; other mappings than sections are values."""
    for key, value in keys.items():
        if key in _SECTIONS and isinstance(value, dict):
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value


def unknown_key(name: str, accepted: list[str], listed_by: str = "") -> InputError:
    """An InputError for a recipe key that does not exist, with the one that means it or is nearest to it."""
    last = name.rpartition(".")[2].lower().replace("-", "_")
    if last in ("device", "devices", "gpu", "cuda"):
        return InputError(f"recipe key {name} does not exist: `nadaraya train --device` chooses the device")
    lasts = {key.rpartition(".")[2]: key for key in reversed(accepted)}
    meant = [lasts[key] for key, words in _MEANT.items() if last in words and key in lasts]
    if last in lasts:
        meant = [lasts[last]]
    elif not meant and "model.variant_options" in accepted:
        meant = _inside_settings(last)
    if not meant and not get_close_matches(name[:200], accepted, n=1):
        meant = [lasts[key] for key in get_close_matches(last[:200], lasts, n=1)]
    return unknown_name("recipe key", name, accepted, meant=next(iter(meant), None), listed_by=listed_by)


def _inside_settings(last: str) -> list[str]:
    """The key of an option of a variant, or of another argument of the model, which have their sections."""
    from nadaraya.attention import variants
    from nadaraya.models import KernelGPTConfig

    if any(last in variants.options(name) for name in variants.names()):
        return [f"model.variant_options.{last}"]
    return [f"model.extra.{last}"] if last in KernelGPTConfig.__annotations__ else []


def _text_keys(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """YAML has keys that are no text, which no recipe has: they are refused by name."""
    return {str(key): value for key, value in mapping.items()}
