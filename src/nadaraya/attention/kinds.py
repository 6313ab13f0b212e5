"""Kinds of calls: what decides which kernels a call launches, and calls of a kind with drawn numbers."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.factored import Factored
from nadaraya.attention.positions import GridLogits, LagMixture
from nadaraya.attention.triton.backend import decodes

_TERMS = 4  # of a mixture
_NARROW = 8  # widths up to here are compiled one by one


class Kind(NamedTuple):
    """All of a call that kernels are compiled for; its lengths are not."""

    dtype: torch.dtype
    width: int
    value_width: int
    content: str = "dot"  # or "gaussian", "factored"
    position: str = ""  # or "table", "mixed logits", "mixed kernels", "grid"
    # Of "causal", "window", "exclude_self", "key_bias", "padding", "documents", "pruned".
    flags: tuple[str, ...] = ("causal",)
    shared: tuple[str, ...] = ()  # "key", queries are the keys; "value", keys are the values
    gradients: tuple[str, ...] = ()  # what the output is differentiated by, names of `_tensors`
    group: int = 1  # query heads of a key head
    queries: int = 0  # of decoding, few against many keys; 0, as many as keys

    @property
    def precision(self) -> str:
        """The name of the dtype."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def name(self) -> str:
        """The feature that costs most, under which calls are timed."""
        by_key = {"key_bias", "padding", "documents"}.intersection(self.flags)
        features = (
            (self.queries, "decoding"), ("exclude_self" in self.flags, "excluded self"),
            (self.position not in ("", "table"), "mixed positions"), ("window" in self.flags, "window"),
            (self.content == "gaussian", "Gaussian"), (by_key, "key bias"),
            ("table" in self.gradients, "bank"), (self.position, "table"), (True, "dot product"),
        )  # fmt: skip
        return next(name for given, name in features if given)

    def __str__(self) -> str:
        gradients = "with gradients" if self.gradients else ""
        said = (self.precision, f"width {self.width}", self.content, self.position, *self.flags, gradients)
        return ", ".join(filter(None, said))


def kind_of(args: AttentionArguments) -> Kind:
    """The kind of a call that the Triton kernels can do."""
    tensors, mixture = _tensors(args), args.mixture
    position = "table" if args.lag_logits is not None else "grid" if args.grid is not None else ""
    if mixture is not None:
        position = "mixed kernels" if mixture.of_kernels else "mixed logits"
    flags = (
        ("causal", args.causal), ("window", args.window is not None), ("exclude_self", args.exclude_self),
        ("key_bias", args.key_bias is not None), ("padding", args.key_padding_mask is not None),
        ("documents", args.document_ids is not None),
        ("pruned", args.lag_logits is not None and args.prune_tol > 0.0),
    )  # fmt: skip
    gradients: tuple[str, ...] = ()
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
        always = ("query", "key", "value")
        gradients = tuple(name for name, tensor in tensors.items() if name in always or tensor.requires_grad)
    return Kind(
        args.query.dtype, _width(args.query.shape[3]), _width(args.value.shape[3]),
        "dot" if args.bandwidth is None else "gaussian", position,
        tuple(name for name, given in flags if given),
        tuple(name for name in ("key", "value") if name not in tensors), gradients,
        2 ** power_of(args.query.shape[1] // args.key.shape[1]),
        2 ** (power_of(args.query.shape[2] + 1) - 1) if decodes(args) else 0,
    )  # fmt: skip


def power_of(size: int) -> int:
    """log₂ rounded up; traced, by comparisons, so that another size within the power keeps the code."""
    if not torch.compiler.is_compiling():
        return (size - 1).bit_length()
    power = 0
    while size > 2**power:
        power += 1
    return power


def _width(width: int) -> int:
    """A width that is compiled alike: filled up to the same power of two, or one itself."""
    if width <= _NARROW:
        return next(each for each in range(_NARROW + 1) if width <= each)
    padded: int = 2 ** power_of(width)
    return padded if width == padded else padded // 4 * 3


def _tensors(args: AttentionArguments) -> dict[str, Tensor]:
    """Tensors that a call can be differentiated by, by name, each once."""
    mixture, grid = args.mixture, args.grid
    named = {
        "query": args.query, "key": None if args.key is args.query else args.key,
        "value": None if args.value is args.key else args.value, "bandwidth": args.bandwidth,
        "table": args.lag_logits, "key_bias": args.key_bias, "grid": None if grid is None else grid.logits,
        "weights": None if mixture is None else mixture.weights,
        "profiles": None if mixture is None else mixture.profiles,
    }  # fmt: skip
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def drawn(kind: Kind, batch: int, heads: int, tokens: int) -> dict[str, Tensor]:
    """Tensors of a call, by the names of its gradients, on the CPU, the same numbers each time.

    Args:
        kind: of the call; queries, keys and values have its dtype, all others float32.
        batch, heads: of the queries.
        tokens: keys.
    """
    generator, queries = torch.Generator().manual_seed(0), kind.queries or tokens
    side, keys = math.isqrt(tokens - 1), (batch, heads // kind.group, tokens)
    shapes: dict[str, tuple[int, ...]] = {
        "query": (batch, heads, queries, kind.width), "key": (*keys, kind.width),
        "value": (*keys, kind.value_width),
    }  # fmt: skip
    if kind.position == "table":
        shapes["table"] = heads, 2 * tokens - 1
    if kind.position.startswith("mixed"):
        shapes |= {"weights": (batch, heads, queries, _TERMS), "profiles": (1, _TERMS, tokens | 1)}
    if kind.position == "grid":
        shapes["grid"] = heads, 2 * side - 1, 2 * side - 1
    if "key_bias" in kind.flags:
        shapes["key_bias"] = batch, heads, tokens
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made = {
        name: tensor.to(kind.dtype) if name in ("query", "key", "value") else tensor
        for name, tensor in made.items()
        if name not in kind.shared
    }
    if kind.content == "gaussian":
        made["bandwidth"] = torch.full((heads,), kind.width**0.25)  # where a layer starts
    if kind.position == "mixed kernels":
        made["weights"] = made["weights"].abs() + 0.1
    if "pruned" in kind.flags:
        made["table"] -= 0.5 * torch.arange(1 - tokens, tokens).abs()
    return made


def arguments(kind: Kind, tensors: dict[str, Tensor]) -> AttentionArguments:
    """The call of a kind with tensors as `drawn` makes them, in any dtype and on any device."""
    query, flags = tensors["query"], kind.flags
    key = tensors.get("key", query)
    value, tokens = tensors.get("value", key), key.shape[2]
    if kind.content == "factored":
        query, key = F.softplus(query), F.softplus(key)
    places = torch.arange(tokens, device=query.device).expand(len(query), -1)
    mixture, grid = None, None
    if "weights" in tensors:
        mixture = LagMixture(tensors["weights"], tensors["profiles"], kind.position == "mixed kernels")
    if "grid" in tensors:
        grid = GridLogits(tensors["grid"], tokens - ((tensors["grid"].shape[1] + 1) // 2) ** 2)
    return AttentionArguments(
        query=query, key=key, value=value, scale=kind.width**-0.5 if kind.content == "dot" else 1.0,
        bandwidth=tensors.get("bandwidth"), kernel=None, lag_logits=tensors.get("table"), mixture=mixture,
        grid=grid, causal="causal" in flags, window=tokens // 3 if "window" in flags else None,
        exclude_self="exclude_self" in flags, attn_mask=None, key_bias=tensors.get("key_bias"),
        key_padding_mask=places >= tokens - tokens // 8 if "padding" in flags else None,
        document_ids=8 * places // (3 * tokens) if "documents" in flags else None, dropout_p=0.0, eps=0.0,
        prune_tol=1e-6 if "pruned" in flags else 0.0,
        factored=Factored() if kind.content == "factored" else None,
    )  # fmt: skip
