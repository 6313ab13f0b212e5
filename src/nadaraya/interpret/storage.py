"""Attention maps as a file: the weights of all layers as safetensors, read anywhere, nothing unpickled."""

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save

from nadaraya.files import reading, write_file
from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps


def save_maps(maps: AttentionMaps, path: str | Path) -> None:
    """Write attention maps as a .safetensors file.

    It holds, for each layer counted from 0, `layer-00.weights`, (B, H, N, N) float32, query by key, and where
    the layer has bandwidths `layer-00.bandwidth`, (H,) or (H, d); `padding`, (B, N), where there is any. The
    metadata entry `maps` is JSON: the other attributes of the maps, and name, error and heads of every layer.

    Args:
        maps: from `capture_attention`; their output is not kept.
        path: the file to write; one that is there is replaced.

    Raises:
        WriteFailed: the disk is full or refuses; the file is then as it was.

    >>> import torch
    >>> from nadaraya.interpret import AttentionMaps, load_maps, save_maps
    >>> from nadaraya.interpret.attention_maps import LayerMaps
    >>> layer = LayerMaps("attn", torch.full((1, 2, 3, 3), 1 / 3), bandwidth=None, error=0.0)
    >>> save_maps(AttentionMaps((layer,), output=None, reads="last"), "weights.safetensors")
    >>> load_maps("weights.safetensors").weights[0].shape
    torch.Size([1, 2, 3, 3])
    """
    write_file(Path(path), maps_as_bytes(maps))


def maps_as_bytes(maps: AttentionMaps) -> bytes:
    """The content of the file that `save_maps` writes."""
    tensors = {}
    for number, layer in enumerate(maps.layers):
        tensors[f"layer-{number:02d}.weights"] = layer.weights.contiguous()
        if layer.bandwidth is not None:
            tensors[f"layer-{number:02d}.bandwidth"] = layer.bandwidth.detach().contiguous()
    if maps.padding is not None:
        tensors["padding"] = maps.padding.cpu().contiguous()
    described = {
        "layers": [{"name": layer.name, "error": layer.error, "heads": layer.heads} for layer in maps.layers],
        "reads": maps.reads,
        "num_prefix_tokens": maps.num_prefix_tokens,
        "class_token": maps.class_token,
        "grid": maps.grid,
        "tokens": maps.tokens,
    }
    return save(tensors, {"maps": json.dumps(described)})


def load_maps(path: str | Path) -> AttentionMaps:
    """Read attention maps that `save_maps`, or `nadaraya maps`, wrote.

    Args:
        path: the .safetensors file.

    Returns:
        The maps, their output None: what `ImageFigures` and `TextFigures` draw.

    Raises:
        InputError: it is not such a file.

    >>> from nadaraya.interpret import load_maps
    >>> load_maps("absent.safetensors")
    Traceback (most recent call last):
    nadaraya.errors.InputError: absent.safetensors cannot be read as attention maps: ...
    """
    with reading(Path(path), "attention maps"), safe_open(path, framework="pt") as file:
        described = json.loads((file.metadata() or {})["maps"])
        names = set(file.keys())
        layers = []
        first = 0 if "layer-00.weights" in names else 1  # from which they were once counted
        for number, layer in enumerate(described["layers"], first):
            weights = file.get_tensor(f"layer-{number:02d}.weights")
            sigma = f"layer-{number:02d}.bandwidth"
            bandwidth = file.get_tensor(sigma) if sigma in names else None
            heads = tuple(layer.get("heads", ()))
            layers.append(LayerMaps(layer["name"], weights, bandwidth, layer["error"], heads))
        grid, tokens = described["grid"], described["tokens"]
        return AttentionMaps(
            tuple(layers),
            output=None,
            reads=described["reads"],
            num_prefix_tokens=described["num_prefix_tokens"],
            class_token=described["class_token"],
            grid=None if grid is None else (grid[0], grid[1]),
            tokens=None if tokens is None else tuple(map(tuple, tokens)),
            padding=file.get_tensor("padding") if "padding" in names else None,
        )
