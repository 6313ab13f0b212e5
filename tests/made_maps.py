"""Attention maps of random weights, and the figures of an image and of a text."""

from typing import Any

import numpy as np
import torch

from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_text import TextFigures


def attention(
    tokens: int, heads: int = 2, layers: int = 2, sigma: bool = True, **options: Any
) -> AttentionMaps:
    torch.manual_seed(0)
    found = []
    for layer in range(layers):
        weights = torch.rand(1, heads, tokens, tokens).pow(4).softmax(-1)
        bandwidth = torch.rand(heads) + 0.5 if sigma and layer == 0 else None
        found.append(LayerMaps(f"blocks.{layer}.attn", weights, bandwidth, 1e-7))
    return AttentionMaps(tuple(found), None, **{"reads": "cls", **options})


def image_figures(heads: int = 2, sigma: bool = True, **options: Any) -> ImageFigures:
    given = {"num_prefix_tokens": 1, "class_token": True, "grid": (3, 4), **options}
    maps = attention(given["num_prefix_tokens"] + 12, heads, sigma=sigma, **given)
    return ImageFigures(maps, np.random.default_rng(0).random((24, 32, 3)))


def text_figures(text: str = "to be, or not\nto be") -> TextFigures:
    causal = tuple(
        LayerMaps(layer.name, layer.weights.tril() / layer.weights.tril().sum(-1, keepdim=True), None, 0.0)
        for layer in attention(len(text)).layers
    )
    return TextFigures(AttentionMaps(causal, None, "last", tokens=(tuple(text),)))
