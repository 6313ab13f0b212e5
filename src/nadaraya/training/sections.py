"""What recipes are made of: checked dataclasses that read and write YAML, whatever a recipe trains."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import yaml

from nadaraya.errors import InputError, unknown_name


def checked(default: Any, accepted: str, valid: Callable[[Any], bool]) -> Any:
    """A key of a section with the values that it accepts, in words and as a test."""
    return field(default=default, metadata={"accepted": accepted, "valid": valid})


def positive_int(default: int | None) -> Any:
    """A key that is an integer of at least 1."""
    return checked(default, "a positive integer", lambda value: value is None or value >= 1)


def natural(default: int) -> Any:
    """A key that is an integer of at least 0."""
    return checked(default, "an integer of at least 0", lambda value: value >= 0)


def positive(default: float | None) -> Any:
    """A key that is a number above 0."""
    return checked(default, "a positive number", lambda value: value is None or value > 0)


def not_negative(default: float) -> Any:
    """A key that is a number of at least 0."""
    return checked(default, "a number of at least 0", lambda value: value >= 0)


def fraction(default: float) -> Any:
    """A key that is a number in [0, 1)."""
    return checked(default, "a number of at least 0 and below 1", lambda value: 0 <= value < 1)


def probability(default: float) -> Any:
    """A key that is a number in [0, 1]."""
    return checked(default, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def decay_rates(default: tuple[float, float]) -> Any:
    """A key that has the two decay rates of AdamW's averages."""
    return checked(
        default, "two numbers of at least 0 and below 1", lambda pair: all(0 <= rate < 1 for rate in pair)
    )


def one_of(default: str, *names: str) -> Any:
    """A key that is one of some words."""
    quoted = [f"'{name}'" for name in names]
    accepted = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
    return checked(default, accepted, lambda value: value in names)


def precisions() -> Any:
    """The key `precision`; "auto" is bfloat16 on CUDA and float32 elsewhere."""
    return one_of("auto", "auto", "float32", "bfloat16")


def check_pieces(batch_size: int, gradient_accumulation: int) -> None:
    """Refuse a batch that does not divide into the pieces that an update is computed in."""
    if batch_size % gradient_accumulation:
        raise InputError(
            f"training.batch_size = {batch_size} does not divide into "
            f"training.gradient_accumulation = {gradient_accumulation} equal pieces"
        )


class Section:
    """A part of a recipe: wrong types and values out of range are refused when it is made."""

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in fields(self):  # type: ignore[arg-type]
            given, hint = getattr(self, item.name), hints[item.name]
            accepted = item.metadata.get("accepted") or _describe(hint)
            if type(None) in get_args(hint) and "accepted" in item.metadata:
                accepted += " or null"
            try:
                value = _read(given, hint)
                if "valid" in item.metadata and not item.metadata["valid"](value):
                    raise TypeError
            except TypeError:
                raise InputError(
                    f"recipe key {self.prefix}{item.name} = {given!r}: accepted is {accepted}"
                ) from None
            object.__setattr__(self, item.name, value)


@dataclass(frozen=True)
class BaseRecipe(Section):
    """What every recipe has: a task, a name (its folder's too), the seed of all that is random; sections."""

    sections: ClassVar[dict[str, type[Section]]] = {}
    task: str = "text"
    name: str = checked(
        "run",
        "letters, digits and . _ + - (it names the run folder)",
        lambda value: re.fullmatch(r"\w[\w.+-]*", value) is not None,
    )
    seed: int = natural(0)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Make a recipe from nested mappings, as YAML gives them.

        Args:
            mapping: keys of the recipe; missing ones take their defaults.

        Returns:
            The checked recipe.

        Raises:
            InputError: a key is unknown (the nearest valid one is named), or a value is not accepted.
        """
        mapping = {**mapping, **{name: {} for name in cls.sections if mapping.get(name) is None}}
        for name in cls.sections:
            if not isinstance(mapping[name], Mapping):
                raise InputError(f"recipe key {name} = {mapping[name]!r}: accepted is a section of keys")
        for key, _ in _entries(mapping):
            if key not in cls.dotted_keys():
                raise unknown_name("recipe key", key, cls.dotted_keys())
        parts = {name: section(**mapping[name]) for name, section in cls.sections.items()}
        return cls(**{**mapping, **parts})

    @classmethod
    def dotted_keys(cls) -> list[str]:
        """Every dotted key, in the order of the file."""
        return [key for key, _ in _entries(cls().to_mapping())]

    @property
    def label(self) -> str:
        """What tells its model from others: the end of a run's name where the recipe gives none."""
        raise NotImplementedError

    def to_mapping(self) -> dict[str, Any]:
        """The recipe as nested mappings of plain values; `from_mapping` reads it back equal."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    def to_yaml(self) -> str:
        """The recipe as YAML, every key written out."""
        return yaml.safe_dump(self.to_mapping(), sort_keys=False, allow_unicode=True)

    def first_difference(self, other: "BaseRecipe") -> tuple[str, Any, Any] | None:
        """The first key on which two recipes differ, with both values; None when they are equal."""
        ours, theirs = self.to_mapping(), other.to_mapping()
        if self.task != other.task:
            return "task", self.task, other.task
        for key in self.dotted_keys():
            a, b = _lookup(ours, key), _lookup(theirs, key)
            if a != b:
                return key, a, b
        return None


def parse_yaml(text: str, where: str) -> Any:
    """Plain YAML values only: a document that names a Python object is refused, nothing is run."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{where}{line}: not plain YAML: {problem}") from error


def _plain(value: Any) -> Any:
    """The value with lists for tuples, as YAML has them."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _entries(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a recipe's mapping: its sections opened, dictionaries that are values not."""
    for key, value in mapping.items():
        if not prefix and key in ("model", "data", "training") and isinstance(value, Mapping):
            yield from _entries(value, f"{key}.")
        else:
            yield f"{prefix}{key}", value


def _lookup(mapping: dict[str, Any], key: str) -> Any:
    section, _, name = key.rpartition(".")
    return mapping[section][name] if section else mapping[name]


def _read(value: Any, hint: Any) -> Any:
    """The value as its type, or TypeError. A number may come as text, because YAML reads 1e-3 as one."""
    if isinstance(hint, UnionType):
        for option in get_args(hint):
            with suppress(TypeError):
                return _read(value, option)
        raise TypeError
    origin = get_origin(hint) or hint
    if origin is float and not isinstance(value, bool) and isinstance(value, int | float | str):
        with suppress(ValueError):
            if math.isfinite(float(value)):
                return float(value)
        raise TypeError
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(get_args(hint)):
        return tuple(_read(part, kind) for part, kind in zip(value, get_args(hint), strict=True))
    if origin is list and isinstance(value, list) and value:
        return [_read(part, get_args(hint)[0]) for part in value]
    plain = origin in (int, bool, str, dict, NoneType) or is_dataclass(origin)
    if plain and isinstance(value, origin) and not (origin is int and isinstance(value, bool)):
        return value
    raise TypeError


def _describe(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
    origin = get_origin(hint) or hint
    return names.get(origin) or {list: "a list of text", dict: "keys and values"}.get(
        origin, "a section of keys"
    )
