"""Related systems as variants: content that factorises, local lines, nearest keys."""

from functools import partial
from typing import Any

from nadaraya.attention.content import DotProduct, GaussianContent
from nadaraya.attention.features import Features, Kind
from nadaraya.attention.landmarks import Landmarks, NystromContent, SkyformerContent
from nadaraya.attention.local_line import Probe
from nadaraya.attention.low_rank import LinformerContent, NystromformerContent, Share, ValueConvolution
from nadaraya.attention.published import _bank, _gka, _named_rotation, _variant
from nadaraya.errors import check_name
from nadaraya.kernels import FreeTable, GeneralizedGaussian
from nadaraya.kernels.initializers import Initializer


@_variant("linear")
def _linear(features: Kind = "elu", eps: float | None = None) -> dict[str, Any]:
    """Linear attention (Katharopoulos et al. 2020): features elu(q) + 1, or "relu", "silu", "taylor"."""
    check_name("features", features, ("elu", "relu", "silu", "taylor"))
    default = 0.0 if features == "silu" else 1e-6  # SiLU's are divided by nothing
    return {"content": partial(Features, kind=features), "eps": default if eps is None else eps}


@_variant("linear-bank")
def _linear_bank(
    num_terms: int = 8,
    init: Initializer = "geometric",
    periodic: bool = False,
    features: Kind = "elu",
    eps: float | None = None,
) -> dict[str, Any]:
    """`linear` times a bank of decays by lag: a recurrence with a constant state; ours."""
    return {**_linear(features, eps), "position": _bank(num_terms, init, periodic=periodic)}


@_variant("performer")
def _performer(num_features: int | None = None) -> dict[str, Any]:
    """Softmax attention by positive random features (Choromanski et al. 2021)."""
    return {"content": partial(Features, kind="positive-random", num_features=num_features)}


@_variant("kernelized-rpe")
def _kernelized_rpe(num_tokens: int = 1024, num_features: int | None = None) -> dict[str, Any]:
    """`performer` of unit vectors, times a free table of the lags of both directions (Luo et al. 2021)."""
    content = partial(Features, kind="positive-random", num_features=num_features, unit=True)
    table = partial(FreeTable, num_lags=num_tokens, signed=True)
    return {"content": content, "position": lambda shape: table(shape.num_heads)}


@_variant("nystromformer")
def _nystromformer(num_landmarks: int = 64, convolution: int = 33) -> dict[str, Any]:
    """Softmax attention by means of segments, and a convolution (Xiong et al. 2021); not causal."""
    return {
        "content": partial(NystromformerContent, num_landmarks=num_landmarks),
        "value_convolution": partial(ValueConvolution, size=convolution),
    }


@_variant("linformer")
def _linformer(num_tokens: int = 1024, num_mixtures: int = 256, share: Share = "heads") -> dict[str, Any]:
    """Softmax attention to learned mixtures of the keys and values (Wang et al. 2020); not causal."""
    content = partial(LinformerContent, num_tokens=num_tokens, num_mixtures=num_mixtures, share=share)
    return {"content": content}


@_variant("skyformer")
def _skyformer(num_landmarks: int = 128, landmarks: Landmarks = "random") -> dict[str, Any]:
    """A Gaussian that is not normalised, by landmarks (Chen et al. 2021); causal if they are learned."""
    return {"content": partial(SkyformerContent, num_landmarks=num_landmarks, landmarks=landmarks)}


@_variant("gka-nystrom")
def _gka_nystrom(
    num_landmarks: int = 64, landmarks: Landmarks = "random", head_norm: bool = True, projections: str = "o"
) -> dict[str, Any]:
    """`gka` without rotary positions, by landmarks (Nyström); causal if they are learned."""
    content = partial(NystromContent, num_landmarks=num_landmarks, landmarks=landmarks)
    return {"content": content, "projections": projections, "head_norm": head_norm}


@_variant("gka-features")
def _gka_features(
    num_features: int | None = None,
    features: Kind = "gaussian-random",
    head_norm: bool = True,
    projections: str = "o",
) -> dict[str, Any]:
    """`gka` without rotary positions, trained with random features of its Gaussian."""
    check_name("features", features, ("gaussian-random", "trigonometric-random"))
    content = partial(Features, kind=features, num_features=num_features)
    return {"content": content, "projections": projections, "head_norm": head_norm}


@_variant("gka-nearest")
def _gka_nearest(nearest: int = 32, rotary: str | None = "static", head_norm: bool = True) -> dict[str, Any]:
    """`gka` over the k nearest tokens alone: regression on nearest neighbours, without projections."""
    return {**_gka(rotary=rotary, head_norm=head_norm), "nearest": nearest}


@_variant("krause")
def _krause(window: int = 128, nearest: int = 96, bandwidth: float = 2.5) -> dict[str, Any]:
    """A Gaussian of queries and keys over the k nearest of a window of tokens (Krause, Liu et al. 2026)."""
    return {"content": partial(GaussianContent, bandwidth=bandwidth), "window": window, "nearest": nearest}


@_variant("non-local")
def _non_local(form: str = "embedded") -> dict[str, Any]:
    """A non-local operation (Wang et al. 2018): exp(q·k), or exp(x·x) of the tokens, form="gaussian"."""
    check_name("form", form, ("embedded", "gaussian"))
    projections = "qkvo" if form == "embedded" else "vo"
    return {"content": partial(DotProduct, scale=1.0), "projections": projections}


@_variant("local-linear")
def _local_linear(ridge: float = 1.0, rotary: str | None = "static") -> dict[str, Any]:
    """Local linear attention (Zuo et al. 2025): a line of the values on the keys, in place of a mean."""
    return {"degree": 1, "ridge": ridge, "rotary": _named_rotation(rotary)}


@_variant("parallax")
def _parallax(rotary: str | None = "static") -> dict[str, Any]:
    """A line whose slope every token asks for, in place of the local line's solve (Parallax 2026)."""
    return {"probe": Probe, "rotary": _named_rotation(rotary)}


@_variant("bam")
def _bam() -> dict[str, Any]:
    """A generalised Gaussian of the lag and logits times log n (BAM, Bianchessi et al. 2025)."""
    content = partial(DotProduct, learned=True, by_length=True)
    return {"position": lambda shape: GeneralizedGaussian(shape.num_heads), "content": content}
