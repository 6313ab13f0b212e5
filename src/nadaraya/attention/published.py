"""The published variants: functions of their options that make arguments of `KernelSelfAttention`.

A variant never says causal, and none but `krause` a window: the model does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from nadaraya.attention.content import DotProduct, GaussianContent, KernelContent
from nadaraya.attention.gates import ForgetGate, OutputGate
from nadaraya.attention.mixing import FIRE, MixedBank, MixedProfiles
from nadaraya.attention.projections import LayerShape
from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.errors import check_name, unknown_name
from nadaraya.kernels import KERPLE, ALiBi, ComposedKernel, Exp, KernelBank, T5Buckets
from nadaraya.kernels.expressions import parse_expression
from nadaraya.kernels.initializers import Initializer
from nadaraya.names import named

PUBLISHED: dict[str, Callable[..., dict[str, Any]]] = {}
_variant = partial(named, PUBLISHED, "variant")


def _bank(num_terms: int, init: Initializer, **options: Any) -> Callable[[LayerShape], KernelBank]:
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
    num_terms: int = 8, init: Initializer = "geometric", share: str = "none", parameterisation: str = "log"
) -> dict[str, Any]:
    """Multiplied by a bank of exponential decays, no other positions (Bunks et al. (2025), eq. 4)."""
    options = {"periodic": False, "share": share, "parameterisation": parameterisation}
    return {"position": _bank(num_terms, init, **options)}


@_variant("gpa-mul")
def _gpa_mul(
    num_terms: int = 8, init: Initializer = "geometric", share: str = "none", parameterisation: str = "log"
) -> dict[str, Any]:
    """Multiplied by a bank of decaying periodic kernels, no other positions (Bunks et al. (2025), eq. 6)."""
    return {"position": _bank(num_terms, init, share=share, parameterisation=parameterisation)}


@_variant("gpa-spread")
def _gpa_spread(
    num_terms: int = 8, init: Initializer = "spread", share: str = "none", parameterisation: str = "log"
) -> dict[str, Any]:
    """`gpa-mul-loo-gate` whose heads start apart, some near and some far; ours."""
    return {
        **_gpa_mul(num_terms, init, share, parameterisation),
        "exclude_self": True,
        "output_gate": OutputGate,
    }


@_variant("mixed-bank")
def _mixed_bank(
    num_terms: int = 8, init: Initializer = "geometric", share: str = "none", parameterisation: str = "log"
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
    check_name("how", how, ("multiply", "add", "mix"))
    make = partial(ComposedKernel, kernel.exp() if how == "add" else kernel)
    position = partial(MixedBank, bank=make) if how == "mix" else lambda shape: make(shape.num_heads)
    return {"position": position, "rotary": _named_rotation(rotary)}


@_variant("gpa")
def _gpa(
    num_terms: int = 64,
    init: Initializer = "unit",
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
    init: Initializer = "unit",
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
    _published = partial(PUBLISHED[_name], init="paper")
    _published.__doc__ = f"`{_name}` as in Gaussian Process Attention (anonymous), eq. 6: G(0) = 64 at first."
    PUBLISHED[f"{_name}-paper"] = _published


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
    check_name("values", values, ("features", "rotated"))
    of_distance = contents.get(content) or partial(KernelContent, kernel=parse_expression(content))
    parts = {"content": of_distance, "projections": projections, "head_norm": head_norm, "eps": eps}
    return {**parts, "rotary": _named_rotation(rotary, values=values == "rotated")}


@_variant("gka-bank")
def _gka_bank(
    num_terms: int = 8,
    init: Initializer = "geometric",
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
