"""The attention weights of every layer of a model, from one forward pass without gradients.

Fused attention never forms its weights. Hooks therefore compute them again from the input of every attention
layer, by the definition (Kundu et al. 2026, section 7.8), and check them against the layer's own output.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from nadaraya.attention.content import GaussianContent
from nadaraya.attention.functional import kernel_attention
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import InputError, must_be
from nadaraya.files import reading, write_file
from nadaraya.interpret.labels import head_label
from nadaraya.modes import evaluating

#: What may read the last layer: the class token, all patches in equal parts, or the last token of a text.
QUERIES = ("cls", "mean", "last")
# Plain values of `AttentionMaps` in the metadata of its file.
_DESCRIBED = ("reads", "num_prefix_tokens", "class_token", "grid", "tokens")


@dataclass(frozen=True)
class LayerMaps:
    """The attention of one layer, float32 on the CPU.

    The error is the largest difference between the layer's own output and the one that these weights give, as
    a fraction of the largest output.
    """

    name: str  # path of the layer in the model, such as "blocks.0.attn"
    weights: Tensor  # (B, H, N, N), query by key
    bandwidth: Tensor | None  # σ in the units of the features, (H,), or (H, d) per channel
    error: float
    heads: tuple[int, ...] = ()  # their numbers, as before any was removed; default all from 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", self.heads or tuple(range(self.weights.shape[1])))


@dataclass(frozen=True)
class AttentionMaps:
    """The attention of all layers in one forward pass, and what its tokens are.

    Attributes:
        layers: in the order in which they were called.
        output: what the model returned.
        reads: the query that the model reads its answer from, one of `QUERIES`.
        num_prefix_tokens: tokens before the patches: class token and registers.
        class_token: whether the first token is a class token.
        grid: rows and columns of patches, in row-major order after the prefix; None where there are none.
        tokens: the tokens of each text of the batch as strings; None where they are not known.
        padding: (B, N) bool, True where a token is padding; None without padding.

    >>> import torch
    >>> from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
    >>> layer = LayerMaps("attn", torch.full((1, 2, 3, 3), 1 / 3), bandwidth=None, error=0.0)
    >>> AttentionMaps((layer,), output=None, reads="last").num_tokens
    3
    """

    layers: tuple[LayerMaps, ...]
    output: Any
    reads: str
    num_prefix_tokens: int = 0
    class_token: bool = False
    grid: tuple[int, int] | None = None
    tokens: tuple[tuple[str, ...], ...] | None = None
    padding: Tensor | None = None

    @property
    def weights(self) -> list[Tensor]:
        """(B, H, N, N) of every layer."""
        return [layer.weights for layer in self.layers]

    def labels(self, layer: int) -> list[str]:
        """The heads of a layer, counted from 0, as LAYER.HEAD."""
        return [head_label(layer, head) for head in self.layers[layer].heads]

    @property
    def num_tokens(self) -> int:
        """N."""
        return self.layers[0].weights.shape[-1]


@torch.no_grad()
def capture_attention(
    model: nn.Module, *inputs: Any, tokenizer: Any = None, max_bytes: int = 2**30, **options: Any
) -> AttentionMaps:
    """Run a model once and compute the attention weights of all its layers (Kundu et al. 2026, section 7.8).

    The model runs in evaluation mode, without gradients and without a cache of earlier tokens. It is left as
    it was, also after an error: hooks, training mode, random generators, fused attention.

    Args:
        model: a model whose attention is `KernelSelfAttention` (the language models), `VisionAttention` or
            timm's `Attention` (vision transformers), also mixed.
        inputs: positional arguments of the model: images (B, C, height, width), token numbers (B, N).
        tokenizer: makes the token strings of a language model from its token numbers; default none.
        max_bytes: the largest size of all weights together; default 1 GiB.
        options: keyword arguments of the model, such as attention_mask.

    Returns:
        The maps, on the CPU.

    Raises:
        InputError: the model has no such layer or an attention layer of another kind, the weights would be
            larger than max_bytes, or tokens were cached before.

    >>> import torch
    >>> from nadaraya import KernelSelfAttention
    >>> from nadaraya.interpret import capture_attention
    >>> maps = capture_attention(torch.nn.Sequential(KernelSelfAttention(8, 2)), torch.randn(1, 4, 8))
    >>> maps.weights[0].shape  # batch, heads, queries, keys
    torch.Size([1, 2, 4, 4])
    """
    # A compiled model runs past hooks; what it was made from has them.
    model = getattr(model, "_orig_mod", model)
    layers = _attention_layers(model)
    heads = sum(int(layer.num_heads) for layer in layers)  # type: ignore[arg-type, misc]
    found: list[LayerMaps] = []
    masks: list[Tensor | None] = []

    def record(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> None:
        named = dict(zip(("x", "attn_mask", "is_causal"), args, strict=False)) | given
        x = named.pop("x")
        batch, num_tokens = x.shape[:2]
        if num_tokens > (most := int((max_bytes / (4 * heads * batch)) ** 0.5)):
            needed = 4 * heads * batch * num_tokens**2 / 2**30
            raise InputError(
                f"the input must have at most {most:,} tokens, got {num_tokens:,}: "
                f"the weights of {heads} heads would take {needed:.1f} GiB"
            )
        for unwanted in ("cache", "return_weights"):
            named.pop(unwanted, None)
        output = result[0] if isinstance(result, tuple) else result
        found.append(_layer_maps(layers[layer], layer, x, named, output))
        masks.append(named.get("key_mask"))

    device = next(model.parameters()).device
    random = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with evaluating(model), random, ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(_check_cache, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(record, with_kwargs=True).remove)
        output = model(*inputs, **options)
    if not found:
        raise InputError(f"{type(model).__name__} called none of its attention layers")
    first = inputs[0] if inputs else options.get("input_ids")
    if isinstance(first, Tensor) and first.dim() == 2:
        tokens = None
        if tokenizer is not None:
            tokens = tuple(tuple(str(tokenizer.decode([token])) for token in text) for text in first.tolist())
        padding = None if masks[0] is None else ~masks[0]
        return AttentionMaps(tuple(found), output, reads="last", tokens=tokens, padding=padding)
    prefix, grid = _patches(model, first, found[0].weights.shape[-1])
    class_token = getattr(model, "cls_token", None) is not None
    reads_it = class_token and getattr(model, "global_pool", "token") == "token"
    return AttentionMaps(tuple(found), output, "cls" if reads_it else "mean", prefix, class_token, grid)


def _attention_layers(model: nn.Module) -> dict[nn.Module, str]:
    """The attention layers that can be looked into, with their names; refuses models that have others too."""
    timm = sys.modules.get("timm.layers")  # without it loaded no model can have timm's layers
    known = (KernelSelfAttention,) if timm is None else (KernelSelfAttention, timm.Attention)
    accepted = "KernelSelfAttention, VisionAttention or timm's Attention"
    layers: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        inside = name.startswith(tuple(f"{layer}." for layer in layers.values()))
        if isinstance(module, known):
            layers[module] = name
        elif "Attention" in kind and "Pool" not in kind and not inside:
            raise InputError(f"{name} of {type(model).__name__} must be {accepted}, got {kind}")
    if not layers:
        raise must_be("model", f"one with {accepted}, but it has no attention layer", type(model).__name__)
    return layers


def _check_cache(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    cache = given.get("cache")
    if cache is not None and (earlier := cache.length()) > 0:
        raise InputError(f"{earlier} tokens were cached before: maps need the whole text in one pass")


def _layer_maps(
    name: str, layer: nn.Module, x: Tensor, options: Mapping[str, Any], output: Tensor
) -> LayerMaps:
    """The weights of one call, after checking that they give its output."""
    bandwidth, heads = None, tuple[int, ...]()
    if isinstance(layer, KernelSelfAttention):
        heads = tuple(layer.projections.heads)
        backend, layer.backend = layer.backend, "reference"
        try:  # `forward` itself, so that no hook runs again
            out, weights = layer.forward(x, **options, return_weights=True)
        finally:
            layer.backend = backend
        if isinstance(layer.content, GaussianContent):
            bandwidth = layer.content.bandwidth.float().cpu()
    else:
        out, weights = _timm_attention(layer, x, **options)
    largest = output.abs().amax().clamp_min(torch.finfo(torch.float32).tiny)
    error = ((out - output).abs().amax() / largest).item()
    # Half precision rounds the output of a layer by a percent at most; another formula is far beyond this.
    if not error <= 0.05:
        raise InputError(
            f"{name} is {type(layer).__name__}, but its output is not that of its weights by the "
            f"definition (they differ by {error:.0%} of the largest output): no maps can be made of it"
        )
    return LayerMaps(name, weights.float().cpu(), bandwidth, error, heads)


def _timm_attention(
    layer: Any, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Output and weights of timm's `Attention`, by the definition."""
    batch, tokens, _ = x.shape
    qkv = layer.qkv(x).reshape(batch, tokens, 3, layer.num_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    query, key = layer.q_norm(query).to(value.dtype), layer.k_norm(key).to(value.dtype)
    options: Any = {"content": layer.scale, "causal": is_causal, "attn_mask": attn_mask}
    out, weights = kernel_attention(query, key, value, return_weights=True, **options)
    out = layer.norm(out.transpose(1, 2).flatten(2))
    gate = getattr(layer, "gate", None)  # older releases of timm have none
    out = out if gate is None else out * gate(x).sigmoid()
    return layer.proj_drop(layer.proj(out)), weights


def _patches(model: Any, images: Any, num_tokens: int) -> tuple[int, tuple[int, int] | None]:
    """Number of prefix tokens and the patch grid of a timm model; no grid where it does not fit."""
    prefix = int(getattr(model, "num_prefix_tokens", 0))
    embedding = getattr(model, "patch_embed", None)
    if embedding is None or not isinstance(images, Tensor) or images.dim() != 4:
        return prefix, None
    if getattr(model, "dynamic_img_size", False):
        rows, columns = embedding.dynamic_feat_size(tuple(images.shape[-2:]))
    else:
        rows, columns = getattr(embedding, "grid_size", None) or (0, 0)
    return prefix, (rows, columns) if prefix + rows * columns == num_tokens else None


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
    >>> from nadaraya.interpret import load_maps, save_maps
    >>> from nadaraya.interpret.attention_maps import AttentionMaps
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
        **{name: getattr(maps, name) for name in _DESCRIBED},
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
        given = {name: described[name] for name in _DESCRIBED}
        grid, tokens = given["grid"], given["tokens"]
        given["grid"] = None if grid is None else tuple(grid)
        given["tokens"] = None if tokens is None else tuple(map(tuple, tokens))
        padding = file.get_tensor("padding") if "padding" in names else None
        return AttentionMaps(tuple(layers), output=None, padding=padding, **given)
