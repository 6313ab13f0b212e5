"""Projections to queries, keys and values, and from heads back to tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.errors import check_name, must_be
from nadaraya.kernels.heads import keep_columns, keep_rows, seen_keys
from nadaraya.kernels.parameters import count

FORMS = ("qkvo", "qko", "vo", "o", "q(kv)o", "(qkv)o")


class LayerShape(NamedTuple):
    """Sizes of an attention layer, for the functions that make its parts.

    Attributes:
        dim: width D of the tokens.
        num_heads: heads H.
        num_key_value_heads: heads of keys and values G.
        own_head_dim: width d of a head; default D / H.
    """

    dim: int
    num_heads: int
    num_key_value_heads: int
    own_head_dim: int | None = None

    @property
    def head_dim(self) -> int:
        """Width d of a head."""
        return self.dim // self.num_heads if self.own_head_dim is None else self.own_head_dim

    @property
    def heads_dim(self) -> int:
        """Width of all heads together, H d."""
        return self.num_heads * self.head_dim


class Projections(nn.Module):
    """Queries, keys and values of tokens, split into heads, and W_O.

    Args:
        shape: sizes of the layer.
        form: which of W_Q, W_K, W_V, W_O exist: "qkvo" (default), "qko", "vo" or "o"; letters in parentheses
            share one matrix: "q(kv)o", where keys are the values, and "(qkv)o". Without a matrix the heads'
            slices of the tokens serve (Kundu et al. (2026), eq. 3–5; its value-less attention is "qko").
        head_norm: root-mean-square normalisation of each head's queries and keys; default False.
        head_norm_eps: ε added to the mean square in it; default the resolution of the dtype.
        bias: whether the matrices have biases; default False.
        out_bias: whether W_O has one; default as `bias`.

    Raises:
        InputError: an unknown form, heads that do not divide, or fewer heads of keys without projections.
    """

    def __init__(
        self,
        shape: LayerShape,
        form: str = "qkvo",
        head_norm: bool = False,
        head_norm_eps: float | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
    ) -> None:
        super().__init__()
        dim, num_heads, num_key_value_heads, head_dim = shape
        if num_heads < 1 or dim < 1 or (head_dim is None and dim % num_heads):
            raise must_be("num_heads", f"a divisor of dim = {dim}", num_heads)
        if num_key_value_heads < 1 or num_heads % num_key_value_heads:
            raise must_be("num_key_value_heads", f"a divisor of num_heads = {num_heads}", num_key_value_heads)
        check_name("projections", form, FORMS)
        if num_key_value_heads != num_heads and form not in ("qkvo", "q(kv)o"):
            raise must_be("projections", "'qkvo' or 'q(kv)o' with num_key_value_heads", form)
        if count("head_dim", shape.head_dim) * num_heads != dim and form not in ("qkvo", "q(kv)o", "(qkv)o"):
            raise must_be("projections", "'qkvo', 'q(kv)o' or '(qkv)o' with heads not D / H wide", form)
        self.shape, self.form = shape, form
        self.head_norm, self.head_norm_eps = head_norm, head_norm_eps
        self.heads, self.kv_heads = tuple(range(num_heads)), tuple(range(num_key_value_heads))
        kv_dim = num_key_value_heads * shape.head_dim
        has_k, has_v = form in ("qkvo", "qko", "q(kv)o"), form in ("qkvo", "vo")
        self.q_proj = nn.Linear(dim, shape.heads_dim, bias=bias) if "q" in form else None
        self.k_proj = nn.Linear(dim, kv_dim, bias=bias) if has_k else None
        self.v_proj = nn.Linear(dim, kv_dim, bias=bias) if has_v else None
        self.o_proj = nn.Linear(shape.heads_dim, dim, bias=bias if out_bias is None else out_bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, N, d), keys and values (B, G, N, d) of tokens (B, N, D).

        What is one tensor by the form is one object; values that are keys are normalised as these.
        """
        query = self._tokens(x) if self.q_proj is None else self._split(self.q_proj(x))
        key = query if self.k_proj is None else self._split(self.k_proj(x))
        if self.head_norm:
            query = self._normalised(query)
            key = query if self.k_proj is None else self._normalised(key)
        if self.v_proj is not None:
            return query, key, self._split(self.v_proj(x))
        return query, key, self._tokens(x) if self.form == "qko" else key

    def merged(self, out: Tensor) -> Tensor:
        """The heads (B, H, N, d) as tokens (B, N, D), through W_O."""
        tokens: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return tokens

    def keep_heads(self, heads: Sequence[int]) -> None:
        """Keep some heads, in place, and of the keys and values those that one of them sees.

        Args:
            heads: some of `heads`, as they were numbered before any was removed, ascending.
        """
        shared = self.shape.num_heads // self.shape.num_key_value_heads
        kv_heads = tuple(sorted({head // shared for head in heads}))
        rows = [self.heads.index(head) for head in heads]
        kv_rows = [self.kv_heads.index(head) for head in kv_heads]
        if self.q_proj is not None:
            keep_rows(self.q_proj, rows, len(self.heads))
        for linear in (self.k_proj, self.v_proj):
            if linear is not None:
                keep_rows(linear, kv_rows, len(self.kv_heads))
        keep_columns(self.o_proj, rows, len(self.heads))
        self.heads, self.kv_heads = tuple(heads), kv_heads

    @property
    def seen_keys(self) -> list[int] | None:
        """Index of the keys and values that each head sees, where not shared out evenly; else None."""
        return seen_keys(self.heads, self.shape.num_heads // self.shape.num_key_value_heads)

    def _tokens(self, x: Tensor) -> Tensor:
        """The tokens themselves, split into the heads that there are."""
        heads = by_head(x, self.shape.num_heads)
        return heads if len(self.heads) == self.shape.num_heads else heads[:, list(self.heads)]

    def _split(self, x: Tensor) -> Tensor:
        return by_head(x, x.shape[2] // self.shape.head_dim)

    def _normalised(self, x: Tensor) -> Tensor:
        normalised = F.rms_norm(x, (self.shape.head_dim,), eps=self.head_norm_eps)
        return normalised.to(x.dtype)  # autocast may widen the norm's result

    def extra_repr(self) -> str:
        return f"form={self.form!r}, head_norm={self.head_norm}"


def by_head(x: Tensor, num_heads: int) -> Tensor:
    """Tokens (B, N, H e) as heads, (B, H, N, e)."""
    return x.view(*x.shape[:2], num_heads, x.shape[2] // num_heads).transpose(1, 2)
