"""Variants whose content factorises: attention in O(N), by features, landmarks or mixtures of the tokens."""

from functools import partial
from typing import Any

from nadaraya.attention.features import Features, Kind
from nadaraya.attention.landmarks import Landmarks, NystromContent, SkyformerContent
from nadaraya.attention.low_rank import LinformerContent, NystromformerContent, Share, ValueConvolution
from nadaraya.attention.published import _variant
from nadaraya.errors import unknown_name
from nadaraya.kernels.relative import FreeTable


@_variant("linear")
def _linear(features: Kind = "elu", eps: float | None = None) -> dict[str, Any]:
    """Linear attention (Katharopoulos et al. 2020): features elu(q) + 1, or "relu", "silu", "taylor"."""
    if features not in (accepted := ("elu", "relu", "silu", "taylor")):
        raise unknown_name("features", features, accepted)
    default = 0.0 if features == "silu" else 1e-6  # SiLU's are divided by nothing
    return {"content": partial(Features, kind=features), "eps": default if eps is None else eps}


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
    """Softmax attention by the means of segments, and a convolution of the values (Xiong et al. 2021)."""
    return {
        "content": partial(NystromformerContent, num_landmarks=num_landmarks),
        "value_convolution": partial(ValueConvolution, size=convolution),
    }


@_variant("linformer")
def _linformer(num_tokens: int = 1024, num_mixtures: int = 256, share: Share = "heads") -> dict[str, Any]:
    """Softmax attention to learned mixtures of the keys and values (Wang et al. 2020)."""
    content = partial(LinformerContent, num_tokens=num_tokens, num_mixtures=num_mixtures, share=share)
    return {"content": content}


@_variant("skyformer")
def _skyformer(num_landmarks: int = 128, landmarks: Landmarks = "random") -> dict[str, Any]:
    """A Gaussian of queries and keys without normalisation, by landmarks (Chen et al. 2021)."""
    return {"content": partial(SkyformerContent, num_landmarks=num_landmarks, landmarks=landmarks)}


@_variant("gka-nystrom")
def _gka_nystrom(
    num_landmarks: int = 64, landmarks: Landmarks = "random", head_norm: bool = True, projections: str = "o"
) -> dict[str, Any]:
    """`gka` without rotary positions, by landmarks: Nyström's method for the Gaussian of the tokens."""
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
    if features not in (accepted := ("gaussian-random", "trigonometric-random")):
        raise unknown_name("features", features, accepted)
    content = partial(Features, kind=features, num_features=num_features)
    return {"content": content, "projections": projections, "head_norm": head_norm}
