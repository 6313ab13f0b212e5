"""Named variants: each is the keyword arguments that make `KernelSelfAttention` one published model.

Options of a variant are the arguments of its function.
With `-loo`, `-drop` or `-xsa` in its name any of them leaves out the token itself, its value, or the
direction of that value; `-sink` gives every head a sink, `-gate` gates on its output.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nadaraya.attention import related  # noqa: F401 (registers its variants)
from nadaraya.attention.published import PUBLISHED
from nadaraya.attention.suffixes import parsed
from nadaraya.errors import InputError, check_name, must_be, unknown_name
from nadaraya.names import named

__all__ = ["by_layer", "describe", "get", "hybrids", "names", "options", "register"]

_Build = Callable[..., dict[str, Any]]
_VARIANTS: dict[str, _Build] = dict(PUBLISHED)
# Compounds that are documented and compared under a name of their own.
_COMPOUNDS = ("gpa-mul-loo", "gka-loo", "gka-loo-bank")


class _Hybrid(NamedTuple):
    """Variants of the last layers of a model, repeated before them, and options that are not their own."""

    description: str
    layers: tuple[str, ...]
    options: dict[str, Any]


_HYBRIDS = {
    "gpa-hybrid": _Hybrid(
        "Three layers of `gpa-mul-loo` and one of `gpa-rope`, all with G(0) = 1; ours.",
        ("gpa-mul-loo", "gpa-mul-loo", "gpa-mul-loo", "gpa-rope"),
        {"init": "unit"},
    )
}


def get(name: str, **options: Any) -> dict[str, Any]:
    """The layer arguments of a variant.

    Args:
        name: one of `names()`, or one of these with `-loo` (leave-one-out regression), `-drop`
            (own_value="drop") or `-xsa` (exclusive self-attention, own_value="project-out", Zhai 2026) in it,
            as in "rope-xsa", or with `-sink` (`Sink`) or `-gate` (`OutputGate`), or several, as in
            "gpa-mul-loo-gate".
        options: options of the variant, e.g. num_terms=16; `options(name)` has them with their defaults.

    Returns:
        Keyword arguments for `KernelSelfAttention`.

    Raises:
        InputError: unknown variant, or an option that the variant does not have.

    >>> from nadaraya import variants
    >>> variants.get("gka-loo", rotary=None)["exclude_self"]
    True
    """
    build = _build(name)
    accepted = inspect.signature(build).parameters
    for option in options:
        if not accepted:
            raise must_be(f"options of variant {name!r}", "none", option)
        check_name(f"option of variant {name!r}", option, accepted)
    return {**build(**options), **{added.argument: added.value for added in parsed(name)[1]}}


def by_layer(
    variant: str | Sequence[str], num_layers: int, options: Mapping[str, Any] | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """Variant and layer arguments of every layer of a model.

    Args:
        variant: one of `names()`; or several, repeated over the depth (a hybrid); or one of `hybrids()`, of
            which the last layer has the last variant.
        num_layers: number of layers.
        options: options of the variants; in a hybrid each goes to the variants that have it.

    Returns:
        One pair of name and keyword arguments for `KernelSelfAttention` for each layer.

    Raises:
        InputError: no or an unknown variant, or an option that none of them has.

    >>> from nadaraya import variants
    >>> [name for name, _ in variants.by_layer(["gka", "rope"], 3, {"eps": 1e-6})]
    ['gka', 'rope', 'gka']
    """
    given, first = dict(options or {}), 0
    pattern = [variant] if isinstance(variant, str) else list(variant)
    if isinstance(variant, str) and variant in _HYBRIDS:
        named = _HYBRIDS[variant]
        pattern, given, first = list(named.layers), {**named.options, **given}, -num_layers
    if not pattern:
        raise must_be("variant", "at least one name", variant)
    layers = [pattern[layer % len(pattern)] for layer in range(first, first + num_layers)]
    accepted = {name: inspect.signature(_build(name)).parameters for name in layers}
    for option in given:
        if not any(option in each for each in accepted.values()):
            get(layers[0], **{option: given[option]})
    chosen = {name: get(name, **{k: v for k, v in given.items() if k in accepted[name]}) for name in layers}
    return [(name, dict(chosen[name])) for name in layers]


def names() -> list[str]:
    """The names of all variants, in the order of their documentation; `-loo`, `-gate`, … make others.

    >>> from nadaraya import variants
    >>> variants.names()[:3]
    ['softmax', 'nope', 'rope']
    """
    return [*_VARIANTS, *_COMPOUNDS]


def register(name: str) -> Callable[[_Build], _Build]:
    """Name a variant of your own: a decorator of the function that makes its layer arguments.

    Args:
        name: of small letters, digits and hyphens, that no variant has and that ends in none of the words
            that go with every name (`-loo`, `-drop`, `-xsa`, `-sink`, `-gate`).

    Returns:
        A decorator. The function's arguments, which need defaults, are the variant's options; the first line
        of its docstring describes it; it returns arguments of `KernelSelfAttention`.

    Raises:
        InputError: a name of another form, or one that is taken.

    >>> from functools import partial
    >>> from nadaraya import KernelSelfAttention, variants
    >>> from nadaraya.kernels import Matern
    >>> @variants.register("matern")
    ... def matern(length: float = 16.0) -> dict:
    ...     "Multiplied by a Matérn kernel of the lag."
    ...     return {"position": Matern(length)}
    >>> layer = KernelSelfAttention(32, 4, causal=True, **variants.get("matern-gate", length=8.0))
    """
    base, _ = parsed(name)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or base != name:
        raise must_be(
            "name of a variant", "small letters, digits and hyphens, without -loo and its like", name
        )
    if name in (*PUBLISHED, *_COMPOUNDS, *_HYBRIDS):
        raise must_be("name of a variant", "one that is not taken", name)
    return named(_VARIANTS, "variant", name)


def hybrids() -> list[str]:
    """The names of hybrids, whose layers are of several variants: `by_layer` has them.

    >>> from nadaraya import variants
    >>> [name for name, _ in variants.by_layer("gpa-hybrid", 6)]
    ['gpa-mul-loo', 'gpa-rope', 'gpa-mul-loo', 'gpa-mul-loo', 'gpa-mul-loo', 'gpa-rope']
    """
    return [*_HYBRIDS]


def describe(name: str) -> str:
    """One line on what a variant or a hybrid is.

    >>> from nadaraya import variants
    >>> variants.describe("softmax")
    'Dot-product attention without positions.'
    """
    if name in _HYBRIDS:
        return _HYBRIDS[name].description
    base, added = parsed(name)
    if added:
        return f"`{base}`; {'; '.join(each.in_words for each in added)}."
    return (inspect.getdoc(_build(name)) or "").split("\n")[0]


def options(name: str) -> dict[str, Any]:
    """The options of a variant with their default values; of a hybrid, those of all its variants, of the last
    where they differ.

    >>> from nadaraya import variants
    >>> variants.options("decay")
    {'num_terms': 8, 'init': 'geometric', 'share': 'none', 'parameterisation': 'log'}
    """
    if name not in _HYBRIDS:
        return {option: p.default for option, p in inspect.signature(_build(name)).parameters.items()}
    found: dict[str, Any] = {}
    for layer in _HYBRIDS[name].layers:
        found |= options(layer)
    return found | _HYBRIDS[name].options


def _build(name: str) -> _Build:
    base, _ = parsed(name)
    if base in _HYBRIDS:
        raise must_be("variant of a layer", "no hybrid: `by_layer` has the variants of its layers", name)
    if base not in _VARIANTS:
        unknown = unknown_name("variant", name, [*names(), *hybrids()])
        raise InputError(f"{unknown} (import the module of one of your own first: --import MODULE)")
    return _VARIANTS[base]
