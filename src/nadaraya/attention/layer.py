"""Multi-head self-attention with an explicit kernel: projections, heads, positions and cache."""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.attention.arguments import check_options
from nadaraya.attention.functional import AttentionOptions, kernel_attention
from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.kernels import Kernel
from nadaraya.kernels.parameters import natural

_NAMED_CHOICES = {
    "similarity": ("dot", "gaussian"),
    "projections": ("qkvo", "qko", "vo", "o"),
    "compose": ("add", "multiply"),
    "values": ("features", "rotated"),
    "bandwidths": ("head", "channel"),
    "rotary": ("static", "learned"),  # or None
}


class KeyValueCache(Protocol):
    """What the layer asks of a cache for decoding."""

    def length(self) -> int:
        """Number of tokens seen before this call, those that a window has dropped included."""
        ...

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends (B, G, n, ·) and returns all that is kept, in order of position."""
        ...


class _KeptTable(NamedTuple):
    """A table of lag logits, (H or 1, L) or signed (H or 1, 2L − 1), kept between tokens."""

    state: list[tuple[int, int]]  # of the parameters that it was made from
    num_lags: int  # L
    logits: Tensor


class KernelSelfAttention(nn.Module):
    """Self-attention as kernel regression of the tokens on themselves.

        y_i = W_O [Σ_j κ_h(i,j) v_j / (Σ_j κ_h(i,j) + ε)]_h
        log κ_h(i,j) = content_h(i,j) + b_h(i − j) + mask

    Without W_Q, W_K or W_V the per-head slices of the input serve as queries, keys or values (Kundu et al.
    (2026), eq. 3–5; its value-less attention keeps W_Q and W_K).

    Args:
        dim: width D of the tokens.
        num_heads: number of heads H, a divisor of D; the heads are d = D / H wide.
        causal: tokens see no later token; default False.
        window: tokens see only lags |i − j| < window; default None, no limit.
        num_kv_heads: number G of key and value heads, a divisor of H; default H. Needs all projections.
        similarity: content of the logits, "dot" (default) or "gaussian".
        projections: which of W_Q, W_K, W_V, W_O exist: "qkvo" (default), "qko", "vo" or "o".
        lag_kernel: a Kernel of the lags, shared or with one value per head, or a function of num_heads that
            makes one; it gives the relative position bias b.
        compose: "multiply" (b = log G, Bunks et al. (2025), eq. 6; default) or "add" (b = G, Gaussian Process
            Attention (anonymous), eq. 6).
        rotary: rotary position embedding, None (default), "static" or "learned".
        rotary_base: see `RotaryEmbedding`.
        exclude_self: leave-one-out regression, j ≠ i; default False.
        values: "features" (default) or "rotated": whether features that serve as values without W_V carry
            the rotary rotation (Kundu et al. (2026) can be read either way).
        head_norm: root-mean-square normalisation of each head's queries and keys; default False.
        bandwidth: initial σ of every head, in the units of the features; default d^(1/4), which makes the
            Gaussian of normalised features as sharp as a dot product over √d. Learned, stored as log σ.
        bandwidths: "head", one σ per head (Kundu et al. (2026); default), or "channel", one per channel:
            log κ = −Σ_c (x_ic − x_jc)² / (2σ_hc²). Channels are scaled before any rotation.
        shift: whether each head's Gaussian is centred at a learned displacement of its token, from δ = 0:
            κ = exp(−‖x_i + δ_h − x_j‖² / (2σ_h²)), so that κ(i,j) and κ(j,i) differ. Default False.
        eps: ε of the denominator; default 0.
        bias: whether the projections have biases; default False.
        out_bias: whether W_O has one; default as `bias`.
        dropout: probability of dropping an attention weight in training; default 0.

    Raises:
        InputError: arguments that do not fit together.

    >>> import torch
    >>> from nadaraya import KernelSelfAttention, variants
    >>> layer = KernelSelfAttention(64, num_heads=4, causal=True, **variants.get("gpa-rope"))
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        causal: bool = False,
        window: int | None = None,
        num_kv_heads: int | None = None,
        similarity: str = "dot",
        projections: str = "qkvo",
        lag_kernel: Kernel | Callable[[int], Kernel] | None = None,
        compose: str = "multiply",
        rotary: Literal["static", "learned"] | None = None,
        rotary_base: float = 10_000.0,
        exclude_self: bool = False,
        values: Literal["features", "rotated"] = "features",
        head_norm: bool = False,
        bandwidth: float | None = None,
        bandwidths: Literal["head", "channel"] = "head",
        shift: bool = False,
        eps: float = 0.0,
        bias: bool = False,
        out_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or dim < 1 or dim % num_heads:
            raise must_be("num_heads", f"a divisor of dim = {dim}", num_heads)
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise must_be("num_kv_heads", f"a divisor of num_heads = {num_heads}", num_kv_heads)
        chosen = (similarity, projections, compose, values, bandwidths, rotary or "static")
        for (name, choices), choice in zip(_NAMED_CHOICES.items(), chosen, strict=True):
            if choice not in choices:
                raise unknown_name(name, choice, choices)
        if num_kv_heads != num_heads and projections != "qkvo":
            raise must_be("projections", "'qkvo' with num_kv_heads", projections)
        if bandwidths == "channel" and values == "rotated":
            raise InputError("values='rotated' needs bandwidths='head': scaled channels are no values")
        check_options(window, dropout, eps)
        self.dim, self.num_heads, self.num_kv_heads = dim, num_heads, num_kv_heads
        self.head_dim = dim // num_heads
        self.causal, self.window = causal, window
        self.similarity, self.projections, self.compose = similarity, projections, compose
        self.exclude_self, self.values, self.head_norm = exclude_self, values, head_norm
        self.eps, self.dropout = eps, dropout

        kv_dim = num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(dim, dim, bias=bias) if "q" in projections else None
        self.k_proj = nn.Linear(dim, kv_dim, bias=bias) if "k" in projections else None
        self.v_proj = nn.Linear(dim, kv_dim, bias=bias) if "v" in projections else None
        self.o_proj = nn.Linear(dim, dim, bias=bias if out_bias is None else out_bias)
        self.rotary = (
            RotaryEmbedding(self.head_dim, rotary_base, learned=rotary == "learned") if rotary else None
        )
        if lag_kernel is not None and not isinstance(lag_kernel, Kernel):
            lag_kernel = lag_kernel(num_heads)
        if lag_kernel is not None and tuple(lag_kernel.batch_shape) not in ((), (num_heads,)):
            accepted = f"a kernel shared by all heads or with one value for each of {num_heads}"
            raise must_be("lag_kernel", accepted, lag_kernel)
        self.lag_kernel = lag_kernel
        if similarity == "gaussian":
            initial = self.head_dim**0.25 if bandwidth is None else float(bandwidth)
            if not 0.0 < initial < math.inf:
                raise must_be("bandwidth", "a positive finite number", bandwidth)
            shape = (num_heads,) if bandwidths == "head" else (num_heads, self.head_dim)
            self.log_bandwidth = nn.Parameter(torch.full(shape, math.log(initial)))
        else:
            given = {"bandwidth": bandwidth is not None, "bandwidths": bandwidths != "head", "shift": shift}
            for name in (name for name, is_given in given.items() if is_given):
                raise InputError(f"{name} belongs to similarity='gaussian'")
        self.shift = nn.Parameter(torch.zeros(num_heads, 1, self.head_dim)) if shift else None
        self.backend = "auto"
        self._table: _KeptTable | None = None

    @property
    def bandwidth(self) -> Tensor:
        """σ in the units of the features, (H,), or (H, d) by channel; only with similarity="gaussian"."""
        return natural(self.log_bandwidth)

    def kernel_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and values of what shapes the kernel: lag kernel, bandwidths, shift, learned angles.

        They take no weight decay and have a learning rate of their own.
        """
        for name, parameter in self.named_parameters():
            if name.startswith("lag_kernel.") or name in ("log_bandwidth", "shift", "rotary.log_angle"):
                yield name, parameter

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        key_padding_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Smooths the tokens.

        Args:
            x: (B, N, D); with a cache the newest N tokens.
            attn_mask: broadcastable to (B, H, N, Nk), bool (True takes part) or added to the logits.
            is_causal: this call is causal even if the layer is not.
            key_padding_mask: (B, Nk) bool, True where a token is padding; Nk counts cached tokens too.
            document_ids: (B, N) whole numbers: tokens see those of their own document only, see
                `kernel_attention`. Not with a cache.
            cache: keys and values of earlier tokens; receives those of x.
            return_weights: also return the weights (B, H, N, Nk), by the O(N²) definition.

        Returns:
            (B, N, D), or with `return_weights` the pair of it and the weights.

        Raises:
            InputError: x or a mask of another shape, or documents with a cache.
        """
        if document_ids is not None and cache is not None:
            raise InputError("document_ids must not be given with a cache: its tokens are of one document")
        decoding = cache is not None and cache.length() > 0
        query, key, value, key_padding_mask = self._heads(x, key_padding_mask, cache)
        options: AttentionOptions = {
            "similarity": self.similarity,
            "bandwidth": self._shared_bandwidth(),
            "lag_logits": self._lag_logits(key.shape[2], decoding),
            "causal": self.causal or is_causal,
            "window": self.window,
            "exclude_self": self.exclude_self,
            "key_padding_mask": key_padding_mask,
            "attn_mask": self._mask(attn_mask, x),
            "document_ids": document_ids,
            "dropout_p": self.dropout if self.training else 0.0,
            "eps": self.eps,
            "backend": self.backend,
        }
        if return_weights:
            out, weights = kernel_attention(query, key, value, return_weights=True, **options)
            return self._merged(out), weights
        return self._merged(kernel_attention(query, key, value, **options))

    def _shared_bandwidth(self) -> float | Tensor | None:
        """What the operator divides all channels of a head by: nothing more where each has its own σ."""
        if self.similarity != "gaussian":
            return None
        return 1.0 if self.log_bandwidth.dim() == 2 else self.bandwidth

    def _mask(self, attn_mask: Tensor | None, x: Tensor) -> Tensor | None:
        """The mask of a call on x; subclasses may add logits of their own."""
        return attn_mask

    def _merged(self, out: Tensor) -> Tensor:
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(
        self, x: Tensor, key_padding_mask: Tensor | None, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries (B, H, N, d), keys and values (B, G, Nk, d), positions applied; the mask cut to Nk."""
        if x.dim() != 3 or x.shape[2] != self.dim:
            raise must_be("x", f"of shape (batch, tokens, {self.dim})", tuple(x.shape))
        seen = 0 if cache is None else cache.length()
        so_far = seen + x.shape[1]
        if key_padding_mask is not None and key_padding_mask.shape[-1] != so_far:
            accepted = f"of shape (batch, {so_far}), as many as tokens so far"
            raise must_be("key_padding_mask", accepted, tuple(key_padding_mask.shape))
        device = x.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            # Features that serve without a projection take the dtype that projections would give them.
            x = x.to(torch.get_autocast_dtype(device))
        shared = self.projections == "o"  # the features are keys and values: one tensor is cached
        features = self._split(x, self.num_heads)
        query = features if self.q_proj is None else self._split(self.q_proj(x), self.num_heads)
        key = features if self.k_proj is None else self._split(self.k_proj(x), self.num_kv_heads)
        if self.head_norm:
            shared_norm = self.k_proj is None and self.q_proj is None
            query = self._normalised(query)
            key = query if shared_norm else self._normalised(key)
        if self.shift is not None:
            query = query + self.shift.to(query.dtype)
        if self.v_proj is not None:
            value = self._split(self.v_proj(x), self.num_kv_heads)
        else:
            value = key if shared else features
        if shared and cache is not None and self.values == "features":
            # Cached as they are, before the rotation, so that the same tensor gives keys and values.
            value, _ = cache.update(key, key[..., :0])
            query, key = self._rotate(query, seen), self._rotate(value, so_far - value.shape[2])
        else:
            same = key is query
            query = self._rotate(query, seen)
            key = query if same else self._rotate(key, seen)
            if self.v_proj is None and self.values == "rotated":
                value = key if shared else self._rotate(value, seen)
            if cache is not None and shared:
                key = value = cache.update(key, key[..., :0])[0]
            elif cache is not None:
                key, value = cache.update(key, value)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[:, -key.shape[2] :]
        return query, key, value, key_padding_mask

    def _split(self, x: Tensor, num_heads: int) -> Tensor:
        return x.view(*x.shape[:2], num_heads, self.head_dim).transpose(1, 2)

    def _normalised(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.head_dim,)).to(x.dtype)  # autocast may widen the norm's result

    def _rotate(self, x: Tensor, first_position: int) -> Tensor:
        """Queries or keys as the content score takes them: scaled by channel, then rotated."""
        if self.similarity == "gaussian" and self.log_bandwidth.dim() == 2:
            x = x * torch.exp(-self.log_bandwidth)[:, None].to(x.dtype)
        return x if self.rotary is None else self.rotary(x, first_position)

    def _lag_logits(self, num_lags: int, decoding: bool) -> Tensor | None:
        """The relative position bias of lags up to num_lags − 1.

        Decoding asks for a longer table at every token: without gradients, one with room to grow is kept
        while the text and the parameters stay the same.
        """
        if self.lag_kernel is None:
            return None
        if not decoding:
            # Parameters may have been written through `.data`, which leaves no trace: the kept table goes.
            self._table = None
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._new_table(num_lags)
        tensors = (*self.lag_kernel.parameters(), *self.lag_kernel.buffers())
        if any(t.is_inference() for t in tensors):  # these do not say when they change
            return self._new_table(num_lags)
        state = [(t.data_ptr(), t._version) for t in tensors]
        if self._table is None or self._table.state != state or self._table.num_lags < num_lags:
            longer = 1 << (num_lags - 1).bit_length()
            self._table = _KeptTable(state, longer, self._new_table(longer))
        if self.lag_kernel.symmetric or self.causal:
            return self._table.logits[:, :num_lags]
        past = self._table.num_lags - num_lags
        return self._table.logits[:, past : past + 2 * num_lags - 1]

    def _new_table(self, num_lags: int) -> Tensor:
        assert self.lag_kernel is not None
        table = self.lag_kernel.lag_logits(num_lags, compose=self.compose, causal=self.causal)
        return table if table.dim() == 2 else table[None]

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, num_heads={self.num_heads}, similarity={self.similarity!r}, "
            f"projections={self.projections!r}, causal={self.causal}, window={self.window}, "
            f"exclude_self={self.exclude_self}, compose={self.compose!r}"
        )
