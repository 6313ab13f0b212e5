"""Attention of low rank: softmax to a few means or mixtures of the tokens, in place of all of them."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.attention.autocast import full_precision
from nadaraya.attention.factored import Factored
from nadaraya.attention.landmarks import averaging, check_heads, every_token, newton_inverse, visible
from nadaraya.attention.projections import LayerShape
from nadaraya.errors import check_name, must_be
from nadaraya.kernels.heads import PartByHead
from nadaraya.kernels.parameters import count

Share = Literal["none", "heads", "keys-values"]


class NystromformerContent(PartByHead):
    """softmax(q k̃ᵀ/√d) Z softmax(q̃ kᵀ/√d) with the means q̃ and k̃ of m segments (Xiong et al. 2021).

    Z ≈ softmax(q̃ k̃ᵀ/√d)^{-1} by six iterations. A text with no more tokens than landmarks has plain
    softmax attention. Segments are of equal length, as near as may be, and padding is in none. The paper
    adds a convolution of the values: `ValueConvolution`.

    Args:
        shape: sizes of the layer.
        num_landmarks: m. Default 64.

    Raises:
        InputError: a number that is not a positive whole one, or heads that share keys.
    """

    takes_key_mask = True
    causal = False
    normalise = False
    why_not_causal = "its landmarks are means over the whole text"
    steps = 6

    def __init__(self, shape: LayerShape, num_landmarks: int = 64) -> None:
        super().__init__(shape.num_heads)
        check_heads(shape)
        self.num_landmarks = count("num_landmarks", num_landmarks)

    def forward(
        self, query: Tensor, key: Tensor, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Factored]:
        """Features of queries and keys, (B, H, N, m), and the operator's `content`."""
        with full_precision(query):
            x, y = (visible(t, key_mask) * t.shape[-1] ** -0.25 for t in (query, key))
            mask = every_token(y) if key_mask is None else key_mask
            means = averaging(mask, self.num_landmarks, y.dtype)
            present = means.any(-1)
            of_query, of_key = means @ x, means @ y
            left = _softmax(x @ of_key.mT, present[:, :, None])
            right = _softmax(of_query @ y.mT, mask[:, None, None])
            between = _softmax(of_query @ of_key.mT, present[:, :, None])
            identity = torch.eye(between.shape[-1]).to(between)
            between = torch.where(present[..., None], between, identity)
            # Texts in which each token is a landmark need no inverse: A A^{-1} A = A.
            whole = (mask.sum(-1) <= self.num_landmarks)[:, None, None, None]
            left = left @ torch.where(whole, identity, newton_inverse(between, self.steps))
            right = torch.where(whole, means, right)
        return left.to(query.dtype), right.mT.to(query.dtype), Factored(normalise=False)

    def extra_repr(self) -> str:
        return f"num_landmarks={self.num_landmarks}"


class LinformerContent(PartByHead):
    """softmax(q (E k)ᵀ/√d) F v: attention to k mixtures of the keys and values (Linformer, Wang et al. 2020).

    Args:
        shape: sizes of the layer.
        num_tokens: longest N; a shorter text takes the first columns of E and F. Default 1024.
        num_mixtures: k, at most num_tokens. Default 256.
        share: "heads", E and F are all heads' (default); "keys-values", and E = F; or "none".

    Raises:
        InputError: an unknown way to share, more mixtures than tokens, or heads that share keys.
    """

    takes_key_mask = True
    causal = False
    normalise = False
    why_not_causal = "each mixture of keys is over the whole text"

    def __init__(
        self, shape: LayerShape, num_tokens: int = 1024, num_mixtures: int = 256, share: Share = "heads"
    ) -> None:
        super().__init__(shape.num_heads)
        check_name("share", share, get_args(Share))
        check_heads(shape)
        if count("num_mixtures", num_mixtures) > count("num_tokens", num_tokens):
            raise must_be("num_mixtures", f"at most num_tokens = {num_tokens}", num_mixtures)
        self.num_tokens, self.num_mixtures, self.share = num_tokens, num_mixtures, share
        self.per_head = ("of_keys", "of_values") if share == "none" else ()
        rows = num_mixtures * (shape.num_heads if share == "none" else 1)
        self.of_keys = nn.Linear(num_tokens, rows, bias=False)
        self.of_values = None if share == "keys-values" else nn.Linear(num_tokens, rows, bias=False)
        for linear in (self.of_keys, self.of_values or self.of_keys):
            nn.init.normal_(linear.weight, std=num_mixtures**-0.5)
            linear.keeps_start = True  # type: ignore[assignment]

    def forward(
        self, query: Tensor, key: Tensor, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Factored]:
        """Features of queries and keys, (B, H, N, k), and the operator's `content`.

        Raises:
            InputError: more tokens than `num_tokens`.
        """
        tokens = key.shape[2]
        if tokens > self.num_tokens:
            raise must_be("number of tokens", f"at most num_tokens = {self.num_tokens} of Linformer", tokens)
        with full_precision(query):
            x, y = visible(query, None), visible(key, key_mask)
            of_keys, of_values = (
                linear.weight[:, :tokens].to(y.dtype).unflatten(0, (-1, self.num_mixtures))[None]
                for linear in (self.of_keys, self.of_values or self.of_keys)
            )
            left = torch.softmax(x @ (of_keys @ y).mT * x.shape[-1] ** -0.5, -1)
        right = of_values.mT.to(query.dtype).expand(*key.shape[:3], -1)
        return left.to(query.dtype), right, Factored(normalise=False)

    def extra_repr(self) -> str:
        return f"num_tokens={self.num_tokens}, num_mixtures={self.num_mixtures}, share={self.share!r}"


class ValueConvolution(PartByHead):
    """Σ_t c_h(t) v_(i+t): a convolution of each head's values along the tokens, added to what it found.

    Args:
        shape: sizes of the layer.
        size: tokens that it covers: those around a token, or in a causal layer it and those before.
            Default 33 (Nyströmformer, Xiong et al. 2021).

    Raises:
        InputError: a size that is not a positive odd number.
    """

    per_head = ("weight",)

    def __init__(self, shape: LayerShape, size: int = 33) -> None:
        super().__init__(shape.num_heads)
        if count("size", size) % 2 == 0:
            raise must_be("size", "odd", size)
        self.weight = nn.Parameter(
            torch.empty(shape.num_heads, 1, size, 1).uniform_(-(size**-0.5), size**-0.5)
        )
        self.keeps_start = True

    def forward(self, value: Tensor, num_queries: int, causal: bool, key_mask: Tensor | None) -> Tensor:
        """The addition to the last tokens, (B, H, num_queries, d), from all values (B, G, Nk, d)."""
        heads, _, size, _ = self.weight.shape
        value = value.repeat_interleave(heads // value.shape[1], 1)
        if key_mask is not None:
            value = value.masked_fill(~key_mask[:, None, :, None], 0.0)
        padded = F.pad(value, (0, 0, size - 1, 0) if causal else (0, 0, size // 2, size // 2))
        return F.conv2d(padded[:, :, -(num_queries + size - 1) :], self.weight.to(value.dtype), groups=heads)


def _softmax(logits: Tensor, seen: Tensor) -> Tensor:
    """Rows of sum 1 over what is seen; zero where that is nothing."""
    lowest = torch.finfo(logits.dtype).min
    return torch.softmax(logits.masked_fill(~seen, lowest), -1).masked_fill(~seen, 0.0)
