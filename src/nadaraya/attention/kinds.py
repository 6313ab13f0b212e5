"""Kinds of calls: what decides which kernels a call launches, and calls of a kind with numbers of their own."""

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


class Kind(NamedTuple):
    """All of a call that kernels are compiled for; its lengths are not."""

    dtype: torch.dtype = torch.float32
    width: int = 64
    value_width: int = 64
    shared: str = ""  # "key", queries are the keys; "value", keys are the values; "key, value", all three
    group: int = 1  # query heads of a key head
    content: str = "dot"  # or "gaussian", "factored"
    position: str = ""  # or "table", "mixed logits", "mixed kernels", "grid"
    causal: bool = True
    window: bool = False
    exclude_self: bool = False
    key_bias: bool = False
    padding: bool = False
    documents: bool = False
    pruned: bool = False
    gradients: tuple[
        str, ...
    ] = ()  # tensors that the output is differentiated by, as `tensors_of` names them
    queries: int = 0  # of decoding, few against many keys; 0, as many as keys

    @property
    def name(self) -> str:
        """The feature that costs most, under which calls are timed."""
        named = {
            "decoding": self.queries > 0,
            "excluded self": self.exclude_self,
            "mixed positions": self.position not in ("", "table"),
            "window": self.window,
            "Gaussian": self.content == "gaussian",
            "key bias": self.key_bias or self.padding or self.documents,
            "bank": "table" in self.gradients,
            "table": self.position == "table",
        }
        return next((name for name, given in named.items() if given), "dot product")

    def __str__(self) -> str:
        said = (self.content, self.position, "gradients" if self.gradients else "")
        flags = [name for name, value in self._asdict().items() if value is True]
        return ", ".join([str(self.dtype)[6:], f"width {self.width}", *filter(None, said), *flags])


def kind_of(args: AttentionArguments) -> Kind:
    """The kind of a call that the Triton kernels can do."""
    tensors = tensors_of(args)
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
    position = "table" if args.lag_logits is not None else "grid" if args.grid is not None else ""
    if args.mixture is not None:
        position = "mixed kernels" if args.mixture.of_kernels else "mixed logits"
    shared = (args.key is args.query and "key", args.value is args.key and "value")
    return Kind(
        dtype=args.query.dtype,
        width=args.query.shape[3],
        value_width=args.value.shape[3],
        shared=", ".join(name for name in shared if name),
        group=args.query.shape[1] // args.key.shape[1],
        content="dot" if args.bandwidth is None else "gaussian",
        position=position,
        causal=args.causal,
        window=args.window is not None,
        exclude_self=args.exclude_self,
        key_bias=args.key_bias is not None,
        padding=args.key_padding_mask is not None,
        documents=args.document_ids is not None,
        pruned=args.prune_tol > 0.0 and args.lag_logits is not None,
        gradients=tuple(
            name
            for name, tensor in tensors.items()
            if differentiated and (tensor.requires_grad or name in ("query", "key", "value"))
        ),
        queries=args.query.shape[2] if decodes(args) else 0,
    )


def tensors_of(args: AttentionArguments) -> dict[str, Tensor]:
    """What a call can be differentiated by, by name, each tensor once."""
    mixture, grid = args.mixture, args.grid
    named = {
        "query": args.query,
        "key": None if args.key is args.query else args.key,
        "value": None if args.value is args.key else args.value,
        "bandwidth": args.bandwidth,
        "table": args.lag_logits,
        "key_bias": args.key_bias,
        "weights": None if mixture is None else mixture.weights,
        "profiles": None if mixture is None else mixture.profiles,
        "grid": None if grid is None else grid.logits,
    }
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def drawn(kind: Kind, batch: int, heads: int, tokens: int) -> dict[str, Tensor]:
    """Tensors of a call, on the CPU, the same numbers each time; `tensors_of` has their names.

    Args:
        kind: of the call; features have its dtype, all others float32.
        batch, heads: of the queries.
        tokens: keys.
    """
    generator, queries = torch.Generator().manual_seed(0), kind.queries or tokens
    side = math.isqrt(tokens - 1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    keys = (batch, heads // kind.group, tokens)
    made = {"query": draw(batch, heads, queries, kind.width)}
    if "key" not in kind.shared:
        made["key"] = draw(*keys, kind.width)
    if "value" not in kind.shared:
        made["value"] = draw(*keys, kind.value_width)
    made = {name: tensor.to(kind.dtype) for name, tensor in made.items()}
    if kind.content == "gaussian":
        made["bandwidth"] = torch.full((heads,), kind.width**0.25)  # where a layer starts
    if kind.position == "table":
        lags = torch.arange(1 - tokens, tokens)
        made["table"] = draw(heads, 2 * tokens - 1) - (0.5 * lags.abs() if kind.pruned else 0.0)
    if kind.position.startswith("mixed"):
        weights = draw(batch, heads, queries, _TERMS)
        made["weights"] = weights.abs() + 0.1 if kind.position == "mixed kernels" else weights
        made["profiles"] = draw(1, _TERMS, tokens | 1)
    if kind.position == "grid":
        made["grid"] = draw(heads, 2 * side - 1, 2 * side - 1)
    if kind.key_bias:
        made["key_bias"] = draw(batch, heads, tokens)
    return made


def arguments(kind: Kind, tensors: dict[str, Tensor]) -> AttentionArguments:
    """The call of a kind with tensors as `drawn` makes them, in any dtype and on any device."""
    query, position = tensors["query"], kind.position
    key = tensors.get("key", query)
    value, tokens = tensors.get("value", key), key.shape[2]
    if kind.content == "factored":
        query, key = F.softplus(query), F.softplus(key)
    places = torch.arange(tokens, device=query.device).expand(len(query), -1)
    mixture, grid = None, None
    if position.startswith("mixed"):
        mixture = LagMixture(tensors["weights"], tensors["profiles"], position == "mixed kernels")
    if position == "grid":
        side = (tensors["grid"].shape[1] + 1) // 2
        grid = GridLogits(tensors["grid"], tokens - side**2)
    return AttentionArguments(
        query=query, key=key, value=value,
        scale=1.0 if kind.content != "dot" else kind.width**-0.5,
        bandwidth=tensors.get("bandwidth"), kernel=None, lag_logits=tensors.get("table"), mixture=mixture,
        grid=grid, causal=kind.causal, window=tokens // 3 if kind.window else None,
        exclude_self=kind.exclude_self, attn_mask=None, key_bias=tensors.get("key_bias"),
        key_padding_mask=places >= tokens - tokens // 8 if kind.padding else None,
        document_ids=(8 * places) // (3 * tokens) if kind.documents else None,
        dropout_p=0.0, eps=0.0, prune_tol=1e-6 if kind.pruned else 0.0,
        factored=Factored() if kind.content == "factored" else None,
    )  # fmt: skip
