"""Words that go with the name of any variant: `-loo`, `-drop`, `-xsa`, `-sink`, `-gate`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nadaraya.attention.gates import OutputGate, Sink


class Added(NamedTuple):
    """An argument of `KernelSelfAttention`, its value, and both in words."""

    argument: str
    value: Any
    in_words: str


_ADDED = {
    "loo": Added("exclude_self", True, "leave-one-out regression, no token sees itself"),
    "drop": Added("own_value", "drop", "a token weighs itself, and its own value counts as 0"),
    "xsa": Added(
        "own_value", "project-out", "the direction of a token's own value is taken out (XSA, Zhai 2026)"
    ),
    "sink": Added("sink", Sink, "each head learns the weight of a key without a value (OpenAI 2025)"),
    "gate": Added("output_gate", OutputGate, "gates on the output of each channel"),
}


def parsed(name: str) -> tuple[str, list[Added]]:
    """The variant of a name and what the name adds to it: "gka-loo-bank" is `gka-bank` with "loo".

    A name that begins with such a word, or says two things of one argument, is taken as it stands.

    Args:
        name: of a variant.

    >>> from nadaraya.attention.suffixes import parsed
    >>> base, added = parsed("gpa-mul-loo-gate")
    >>> base, [each.argument for each in added]
    ('gpa-mul', ['exclude_self', 'output_gate'])
    """
    words = str(name).split("-")
    added = [_ADDED[word] for word in words if word in _ADDED]
    if words[0] in _ADDED or len({each.argument for each in added}) < len(added):
        return str(name), []
    return "-".join(word for word in words if word not in _ADDED), added


def renamed(variant: Any, options: Any) -> Any:
    """The name now of the variant of a model that was saved when `gpa` and `gpa-rope` had the paper's start.

    Args:
        variant: a name, or several; what is neither is handed back.
        options: of the variants, as they were saved; where they give a start names are the same.

    >>> from nadaraya.attention.suffixes import renamed
    >>> renamed("gpa-rope-xsa", {}), renamed("gpa-rope", {"init": "unit"}), renamed(["gpa-mul", "gpa"], None)
    ('gpa-rope-paper-xsa', 'gpa-rope', ['gpa-mul', 'gpa-paper'])
    """
    if isinstance(variant, list):
        return [renamed(name, options) for name in variant]
    base, _ = parsed(variant)
    if base not in ("gpa", "gpa-rope") or (isinstance(options, Mapping) and "init" in options):
        return variant
    return "-".join([base, "paper", *(word for word in variant.split("-") if word in _ADDED)])
