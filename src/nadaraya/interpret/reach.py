"""Share of its weight that attention gives to each lag, and the lag within which most of it lies."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nadaraya.interpret.attention_maps import AttentionMaps, capture_attention
from nadaraya.interpret.labels import LabelledHeads
from nadaraya.interpret.windows import validation_windows

if TYPE_CHECKING:
    from nadaraya.training import Run

_LONGEST = 1024  # tokens of a window that are read: all weights of a layer are formed at once


@dataclass(frozen=True)
class LagWeights(LabelledHeads):
    """The weights of one layer by lag."""

    layer: int  # from 0
    heads: tuple[int, ...]  # their numbers, as before any was removed
    within: np.ndarray  # (H, L) share of the weight at lags 0 … r, for r = 0 … L − 1; ends at 1

    def reach(self, part: float) -> np.ndarray:
        """(H,) the lag within which such a part of the weight lies."""
        return (self.within < part - 1e-6).sum(axis=1)


def lag_weights(run: "Run", windows: int = 4) -> list[LagWeights]:
    """The weights by lag of every layer of a finished run on text.

    They are means over the queries in the second halves of windows of the validation text, evenly spaced, so
    that lags up to half a window are there for each of them. Of a window above 1,024 tokens the first 1,024
    are read.
    """
    model, (inputs, _, positions) = run.load_model(), validation_windows(run, windows)
    found = []
    for number, window in enumerate(inputs[:, :_LONGEST]):
        packed: Any = {} if positions is None else {"position_ids": positions[number, None, :_LONGEST]}
        found.append(capture_attention(model, window[None], **packed))
    tokens = torch.arange(found[0].num_tokens)
    lags = (tokens[len(tokens) // 2 :, None] - tokens).clamp(min=0)  # later tokens have no weight
    return weights_by_distance(found, lags)


def weights_by_distance(found: list[AttentionMaps], distances: Tensor) -> list[LagWeights]:
    """The weights of the last Q queries on the last K keys by their (Q, K) distances, integers from 0."""
    queries, keys = distances.shape
    layers: list[LagWeights] = []
    for layers_of in zip(*(maps.layers for maps in found), strict=True):
        sums = torch.zeros(layers_of[0].weights.shape[1], int(distances.max()) + 1)
        for each in layers_of:
            seen = each.weights[:, :, -queries:, -keys:].sum(dim=0)
            sums.index_add_(1, distances.flatten(), seen.flatten(1))
        within = sums.double().cumsum(dim=1)
        within = within / within[:, -1:].clamp(min=torch.finfo(torch.float32).tiny)
        layers.append(LagWeights(len(layers), layers_of[0].heads, within.numpy()))
    return layers
