"""Named variants: each is the keyword arguments that make `KernelSelfAttention` one published model.

A variant never says causal or window: the model does. Options of a variant are the arguments of its function.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nadaraya.errors import must_be, unknown_name
from nadaraya.kernels import KERPLE, ALiBi, KernelBank, T5Buckets

__all__ = ["by_layer", "describe", "get", "names", "options"]

_VARIANTS: dict[str, Callable[..., dict[str, Any]]] = {}


def get(name: str, **options: Any) -> dict[str, Any]:
    """The layer arguments of a variant.

    Args:
        name: one of `names()`.
        options: options of the variant, e.g. num_terms=16; `options(name)` has them with their defaults.

    Returns:
        Keyword arguments for `KernelSelfAttention`.

    Raises:
        InputError: unknown variant, or an option that the variant does not have.

    >>> from nadaraya import variants
    >>> variants.get("gka", rotary=None)["similarity"]
    'gaussian'
    """
    build = _build(name)
    accepted = inspect.signature(build).parameters
    for option in options:
        if not accepted:
            raise must_be(f"options of variant {name!r}", "none", option)
        if option not in accepted:
            raise unknown_name(f"option of variant {name!r}", option, accepted)
    return build(**options)


def by_layer(
    variant: str | Sequence[str], num_layers: int, options: Mapping[str, Any] | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """Variant and layer arguments of every layer of a model.

    Args:
        variant: one of `names()`, or several, repeated over the depth (a hybrid).
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
    pattern = [variant] if isinstance(variant, str) else list(variant)
    if not pattern:
        raise must_be("variant", "at least one name", variant)
    layers = [pattern[layer % len(pattern)] for layer in range(num_layers)]
    accepted = {name: inspect.signature(_build(name)).parameters for name in layers}
    given = options or {}
    for option in given:
        if not any(option in each for each in accepted.values()):
            get(layers[0], **{option: given[option]})
    chosen = {name: get(name, **{k: v for k, v in given.items() if k in accepted[name]}) for name in layers}
    return [(name, dict(chosen[name])) for name in layers]


def names() -> list[str]:
    """The names of all variants, in the order in which they are documented.

    >>> from nadaraya import variants
    >>> variants.names()[:3]
    ['softmax', 'rope', 'learned-rope']
    """
    return list(_VARIANTS)


def describe(name: str) -> str:
    """One line on what a variant is.

    >>> from nadaraya import variants
    >>> variants.describe("softmax")
    'Dot-product attention without positions.'
    """
    return (inspect.getdoc(_build(name)) or "").split("\n")[0]


def options(name: str) -> dict[str, Any]:
    """The options of a variant with their default values.

    >>> from nadaraya import variants
    >>> variants.options("gpa")
    {'num_terms': 64, 'init': 'paper'}
    """
    return {option: p.default for option, p in inspect.signature(_build(name)).parameters.items()}


def _build(name: str) -> Callable[..., dict[str, Any]]:
    if name not in _VARIANTS:
        raise unknown_name("variant", name, _VARIANTS)
    return _VARIANTS[name]


def _variant(name: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    def register(build: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        _VARIANTS[name] = build
        return build

    return register


def _bank(num_terms: int, init: str, periodic: bool = True) -> Callable[[int], KernelBank]:
    return partial(KernelBank, num_terms=num_terms, periodic=periodic, init=init)


@_variant("softmax")
def _softmax() -> dict[str, Any]:
    """Dot-product attention without positions."""
    return {}


@_variant("rope")
def _rope(rotary_base: float = 10_000.0) -> dict[str, Any]:
    """Dot-product attention with rotary positions, the baseline of the papers."""
    return {"rotary": "static", "rotary_base": rotary_base}


@_variant("learned-rope")
def _learned_rope(rotary_base: float = 10_000.0) -> dict[str, Any]:
    """Rotary positions whose angles are parameters (Bunks et al. (2025), fig. 2)."""
    return {"rotary": "learned", "rotary_base": rotary_base}


@_variant("decay")
def _decay(num_terms: int = 8, init: str = "geometric") -> dict[str, Any]:
    """Multiplied by a bank of exponential decays, no other positions (Bunks et al. (2025), eq. 4)."""
    return {"lag_kernel": _bank(num_terms, init, periodic=False), "compose": "multiply"}


@_variant("gpa-mul")
def _gpa_mul(num_terms: int = 8, init: str = "geometric") -> dict[str, Any]:
    """Multiplied by a bank of decaying periodic kernels, no other positions (Bunks et al. (2025), eq. 6)."""
    return {"lag_kernel": _bank(num_terms, init), "compose": "multiply"}


@_variant("gpa")
def _gpa(num_terms: int = 64, init: str = "paper") -> dict[str, Any]:
    """A bank of decaying periodic kernels added to the logits, no other positions."""
    return {"lag_kernel": _bank(num_terms, init), "compose": "add"}


@_variant("gpa-rope")
def _gpa_rope(num_terms: int = 64, init: str = "paper", rotary_base: float = 10_000.0) -> dict[str, Any]:
    """The added bank beside rotary positions (Gaussian Process Attention (anonymous), eq. 6)."""
    return {**_gpa(num_terms, init), **_rope(rotary_base)}


@_variant("gpa-mul-loo")
def _gpa_mul_loo(num_terms: int = 8, init: str = "geometric") -> dict[str, Any]:
    """`gpa-mul` as leave-one-out regression: no token sees itself."""
    return {**_gpa_mul(num_terms, init), "exclude_self": True}


@_variant("gka")
def _gka(
    rotary: str | None = "static", values: str = "features", head_norm: bool = True, eps: float = 0.0
) -> dict[str, Any]:
    """Gaussian kernel attention without W_Q, W_K, W_V (Kundu et al. (2026), eq. 3).

    Language models rotate and normalise the features; vision takes rotary=None, head_norm=False.
    """
    return {
        "similarity": "gaussian", "projections": "o", "rotary": rotary, "values": values,
        "head_norm": head_norm, "eps": eps,
    }  # fmt: skip


@_variant("gka-loo")
def _gka_loo(
    rotary: str | None = "static", values: str = "features", head_norm: bool = True, eps: float = 0.0
) -> dict[str, Any]:
    """`gka` as leave-one-out regression: no token sees itself."""
    return {**_gka(rotary, values, head_norm, eps), "exclude_self": True}


@_variant("gka-loo-bank")
def _gka_loo_bank(num_terms: int = 8, init: str = "geometric", head_norm: bool = True) -> dict[str, Any]:
    """Leave-one-out Gaussian kernel times a bank by lag, no rotary positions: projection-free."""
    return {**_gka_loo(rotary=None, head_norm=head_norm), **_gpa_mul(num_terms, init)}


@_variant("vlt")
def _vlt(rotary: str | None = None) -> dict[str, Any]:
    """Value-less attention: W_Q and W_K kept, the features are the values (Kundu et al. (2026))."""
    return {"projections": "qko", "rotary": rotary}


@_variant("alibi")
def _alibi() -> dict[str, Any]:
    """Attention with linear biases (Press et al. 2022): a multiplied decay with fixed slopes."""
    return {"lag_kernel": ALiBi, "compose": "multiply"}


@_variant("t5")
def _t5(num_buckets: int = 32, max_distance: int = 128) -> dict[str, Any]:
    """A learned bias by bucket of lags (Raffel et al. 2020)."""
    kernel = partial(T5Buckets, num_buckets=num_buckets, max_distance=max_distance)
    return {"lag_kernel": kernel, "compose": "multiply"}


@_variant("kerple")
def _kerple(form: str = "log") -> dict[str, Any]:
    """Kernelised relative positions (Chi et al. 2022), form "log" or "power"."""
    return {"lag_kernel": partial(KERPLE, form=form), "compose": "multiply"}
