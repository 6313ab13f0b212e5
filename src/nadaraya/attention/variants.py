"""Named variants: each is the keyword arguments that make `KernelSelfAttention` one published model.

A variant never says causal or window: the model does. Options of a variant are the arguments of its function.
With `-loo`, `-drop` or `-xsa` in its name any of them leaves out the token itself, its value, or the
direction of that value; `-sink` gives every head a sink, `-gate` gates on its output.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nadaraya.attention.content import DotProduct, GaussianContent, KernelContent
from nadaraya.attention.gates import ForgetGate, OutputGate
from nadaraya.attention.mixing import FIRE, MixedBank, MixedProfiles
from nadaraya.attention.projections import LayerShape
from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.attention.suffixes import parsed
from nadaraya.errors import must_be, unknown_name
from nadaraya.kernels import KERPLE, ALiBi, ComposedKernel, Exp, KernelBank, T5Buckets, parse_expression
from nadaraya.kernels.starts import Start

__all__ = ["by_layer", "describe", "get", "hybrids", "names", "options"]

_VARIANTS: dict[str, Callable[..., dict[str, Any]]] = {}
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
        name: one of `names()`, or one of these with `-loo` (leave-one-out regression, own="exclude"), `-drop`
            (own="drop-value") or `-xsa` (exclusive self-attention, own="project-out", Zhai 2026) in it, as in
            "rope-xsa", or with `-sink` (`Sink`) or `-gate` (`OutputGate`), or several: "gpa-mul-loo-gate".
        options: options of the variant, e.g. num_terms=16; `options(name)` has them with their defaults.

    Returns:
        Keyword arguments for `KernelSelfAttention`.

    Raises:
        InputError: unknown variant, or an option that the variant does not have.

    >>> from nadaraya import variants
    >>> variants.get("gka-loo", rotary=None)["own"]
    'exclude'
    """
    build = _build(name)
    accepted = inspect.signature(build).parameters
    for option in options:
        if not accepted:
            raise must_be(f"options of variant {name!r}", "none", option)
        if option not in accepted:
            raise unknown_name(f"option of variant {name!r}", option, accepted)
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


def _build(name: str) -> Callable[..., dict[str, Any]]:
    base, _ = parsed(name)
    if base in _HYBRIDS:
        raise must_be("variant of a layer", "no hybrid: `by_layer` has the variants of its layers", name)
    if base not in _VARIANTS:
        raise unknown_name("variant", name, [*names(), *hybrids()])
    return _VARIANTS[base]


def _variant(name: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    def register(build: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        _VARIANTS[name] = build
        return build

    return register


def _bank(num_terms: int, init: Start, **options: Any) -> Callable[[LayerShape], KernelBank]:
    return lambda shape: KernelBank(shape.num_heads, num_terms, init=init, **options)


def _rotation(base: float = 10_000.0, **options: Any) -> Callable[[LayerShape], RotaryEmbedding]:
    return lambda shape: RotaryEmbedding(shape.head_dim, base, **options)


def _named_rotation(rotary: str | None, **options: Any) -> Callable[[LayerShape], RotaryEmbedding] | None:
    if rotary not in ("static", "learned", None):
        raise unknown_name("rotary", rotary, ("static", "learned"))
    return _rotation(learned=rotary == "learned", **options) if rotary else None


@_variant("softmax")
def _softmax() -> dict[str, Any]:
    """Dot-product attention without positions."""
    return {}


@_variant("nope")
def _nope() -> dict[str, Any]:
    """`softmax` in a causal model, whose mask alone tells the order (Kazemnejad et al. 2023)."""
    return {}


@_variant("rope")
def _rope(rotary_base: float = 10_000.0) -> dict[str, Any]:
    """Dot-product attention with rotary positions, the baseline of the papers."""
    return {"rotary": _rotation(rotary_base)}


@_variant("rope-norm")
def _rope_norm(rotary_base: float = 10_000.0) -> dict[str, Any]:
    """Rotary positions with normalised queries and keys, and a scale that each head learns."""
    return {**_rope(rotary_base), "head_norm": True, "content": partial(DotProduct, learned=True)}


@_variant("learned-rope")
def _learned_rope(rotary_base: float = 10_000.0) -> dict[str, Any]:
    """Rotary positions whose angles are parameters (Bunks et al. (2025), fig. 2)."""
    return {"rotary": _rotation(rotary_base, learned=True)}


@_variant("decay")
def _decay(
    num_terms: int = 8, init: Start = "geometric", share: str = "none", parameterisation: str = "log"
) -> dict[str, Any]:
    """Multiplied by a bank of exponential decays, no other positions (Bunks et al. (2025), eq. 4)."""
    options = {"periodic": False, "share": share, "parameterisation": parameterisation}
    return {"position": _bank(num_terms, init, **options)}


@_variant("gpa-mul")
def _gpa_mul(
    num_terms: int = 8, init: Start = "geometric", share: str = "none", parameterisation: str = "log"
) -> dict[str, Any]:
    """Multiplied by a bank of decaying periodic kernels, no other positions (Bunks et al. (2025), eq. 6)."""
    return {"position": _bank(num_terms, init, share=share, parameterisation=parameterisation)}


@_variant("gpa-spread")
def _gpa_spread(
    num_terms: int = 8, init: Start = "spread", share: str = "none", parameterisation: str = "log"
) -> dict[str, Any]:
    """`gpa-mul-loo-gate` whose heads start apart, some near and some far; ours."""
    return {**_gpa_mul(num_terms, init, share, parameterisation), "own": "exclude", "output_gate": OutputGate}


@_variant("mixed-bank")
def _mixed_bank(
    num_terms: int = 8, init: Start = "geometric", share: str = "none", parameterisation: str = "log"
) -> dict[str, Any]:
    """`gpa-mul` whose terms every query weighs for itself."""
    make = partial(KernelBank, num_terms=num_terms, init=init, share=share, parameterisation=parameterisation)
    return {"position": partial(MixedBank, bank=make)}


@_variant("kernel")
def _kernel(
    expression: str = "8*exponential*periodic", how: str = "multiply", rotary: str | None = None
) -> dict[str, Any]:
    """A kernel by its expression, such as "rq*periodic": multiplied, added, or mixed by the query."""
    kernel = parse_expression(expression)
    if how not in ("multiply", "add", "mix"):
        raise unknown_name("how", how, ("multiply", "add", "mix"))
    make = partial(ComposedKernel, kernel.exp() if how == "add" else kernel)
    position = partial(MixedBank, bank=make) if how == "mix" else lambda shape: make(shape.num_heads)
    return {"position": position, "rotary": _named_rotation(rotary)}


@_variant("gpa")
def _gpa(
    num_terms: int = 64,
    init: Start = "unit",
    periodic: bool | str = True,
    share: str = "none",
    parameterisation: str = "log",
    signed: bool = False,
) -> dict[str, Any]:
    """A bank of decaying periodic kernels added to the logits, no other positions; starts flat, G(0) = 1."""
    options = {"share": share, "parameterisation": parameterisation, "signed": signed}
    make = _bank(num_terms, init, periodic=periodic, **options)
    return {"position": lambda shape: Exp(make(shape))}


@_variant("gpa-rope")
def _gpa_rope(
    num_terms: int = 64,
    init: Start = "unit",
    periodic: bool | str = True,
    share: str = "none",
    parameterisation: str = "log",
    signed: bool = False,
    rotary_base: float = 10_000.0,
) -> dict[str, Any]:
    """The added bank beside rotary positions; starts flat, G(0) = 1."""
    return {**_gpa(num_terms, init, periodic, share, parameterisation, signed), **_rope(rotary_base)}


# The published starts, as variants of their own.
for _name in ("gpa", "gpa-rope"):
    _published = partial(_VARIANTS[_name], init="paper")
    _published.__doc__ = f"`{_name}` as in Gaussian Process Attention (anonymous), eq. 6: G(0) = 64 at first."
    _VARIANTS[f"{_name}-paper"] = _published


@_variant("gka")
def _gka(
    rotary: str | None = "static",
    values: str = "features",
    head_norm: bool = True,
    eps: float = 0.0,
    projections: str = "o",
    content: str = "gaussian",
) -> dict[str, Any]:
    """Gaussian kernel attention without W_Q, W_K, W_V (Kundu et al. (2026), eq. 3).

    Language models rotate and normalise the features; vision takes rotary=None, head_norm=False. Without one
    of its parts it has projections="qkvo", or content="dot"; content="rq", "matern32 + exponential" or any
    other expression is another kernel of the distance.
    """
    contents: dict[str, Callable[..., Any]] = {"gaussian": GaussianContent, "dot": DotProduct}
    if values not in ("features", "rotated"):
        raise unknown_name("values", values, ("features", "rotated"))
    of_distance = contents.get(content) or partial(KernelContent, kernel=parse_expression(content))
    parts = {"content": of_distance, "projections": projections, "head_norm": head_norm, "eps": eps}
    return {**parts, "rotary": _named_rotation(rotary, values=values == "rotated")}


@_variant("gka-bank")
def _gka_bank(
    num_terms: int = 8,
    init: Start = "geometric",
    share: str = "none",
    parameterisation: str = "log",
    head_norm: bool = True,
    projections: str = "o",
    content: str = "gaussian",
) -> dict[str, Any]:
    """Gaussian kernel attention times a bank by lag, no rotary positions: projection-free."""
    parts = _gka(rotary=None, head_norm=head_norm, projections=projections, content=content)
    return {**parts, **_gpa_mul(num_terms, init, share, parameterisation)}


@_variant("vlt")
def _vlt(rotary: str | None = None) -> dict[str, Any]:
    """Value-less attention: W_Q and W_K kept, the features are the values (Kundu et al. (2026))."""
    return {"projections": "qko", "rotary": _named_rotation(rotary)}


@_variant("kv-shared")
def _kv_shared(rotary_base: float = 10_000.0) -> dict[str, Any]:
    """Keys that are the values, by one matrix, with rotary positions."""
    return {**_rope(rotary_base), "projections": "q(kv)o"}


@_variant("qkv-shared")
def _qkv_shared(rotary_base: float = 10_000.0) -> dict[str, Any]:
    """Queries, keys and values by one matrix, with rotary positions: the dot-product control of `gka`."""
    return {**_rope(rotary_base), "projections": "(qkv)o"}


@_variant("fox")
def _fox(bias: float = 4.0) -> dict[str, Any]:
    """The Forgetting Transformer (Lin et al. 2025): tokens gate how much of the past counts, no positions."""
    return {"gate": partial(ForgetGate, bias=bias)}


@_variant("inkling")
def _inkling(num_profiles: int = 16, extent: int = 1024) -> dict[str, Any]:
    """Each query mixes learned profiles by lag; queries and keys normalised (Thinking Machines Lab 2026)."""
    mixed = partial(MixedProfiles, num_profiles=num_profiles, extent=extent)
    return {"position": mixed, "head_norm": True, "content": partial(DotProduct, learned=True)}


@_variant("fire")
def _fire(hidden: int = 32, threshold: int = 512) -> dict[str, Any]:
    """Functional interpolation for relative positions (Li et al. 2024); needs an N × N array."""
    return {"position": partial(FIRE, hidden=hidden, threshold=threshold)}


@_variant("alibi")
def _alibi() -> dict[str, Any]:
    """Attention with linear biases (Press et al. 2022): a multiplied decay with fixed slopes."""
    return {"position": lambda shape: ALiBi(shape.num_heads)}


@_variant("t5")
def _t5(num_buckets: int = 32, max_distance: int = 128) -> dict[str, Any]:
    """A learned bias by bucket of lags (Raffel et al. 2020)."""
    return {"position": lambda shape: T5Buckets(shape.num_heads, num_buckets, max_distance)}


@_variant("kerple")
def _kerple(form: str = "log") -> dict[str, Any]:
    """Kernelised relative positions (Chi et al. 2022), form "log" or "power"."""
    return {"position": lambda shape: KERPLE(shape.num_heads, form=form)}
