"""A block of KernelGPT: attention, the feed-forward layer, and what a configuration may put beside them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import must_be
from nadaraya.kernels.heads import kept_blocks
from nadaraya.models.config import KernelGPTConfig
from nadaraya.models.growing import let_grow

if TYPE_CHECKING:
    from transformers.cache_utils import Cache


class LayerCache:
    """One layer of a model's transformers cache, in the form that `KernelSelfAttention` asks for."""

    def __init__(self, cache: "Cache", layer: int, cached: int) -> None:
        self._cache, self._layer, self._cached = cache, layer, cached

    def length(self) -> int:
        """Number of tokens seen before this call."""
        return self._cached

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends (B, G, n, ·) and returns all that is kept, in order of position."""
        so_far = self._cached + keys.shape[2]
        earlier = self._cache.layers[self._layer] if self._layer < len(self._cache.layers) else None
        for name, new in (("keys", keys), ("values", values)):
            kept = getattr(earlier, name, None)
            if kept is not None and kept.numel() and kept.shape[1::2] != new.shape[1::2]:
                accepted = f"made by this model, whose {name} prefix tuning does not have"
                raise must_be("past_key_values", accepted, tuple(kept.shape))
        let_grow(self._cache, self._layer)
        keys, values = self._cache.update(keys, values, self._layer)
        # A cache of fixed size gives all of its room, the filled part first.
        return (keys[:, :, :so_far], values[:, :, :so_far]) if keys.shape[2] > so_far else (keys, values)

    def state(self) -> Tensor | None:
        """The state of a layer that keeps one in place of tokens; None at the beginning."""
        if not self._cached:
            return None
        states = getattr(self._cache.layers[self._layer], "recurrent_states", None)
        found: Tensor | None = states.get(0) if isinstance(states, dict) else states
        if found is None:
            accepted = "made by this model, whose state prefix tuning does not have"
            raise must_be("past_key_values", accepted, type(self._cache).__name__)
        return found

    def keep_state(self, state: Tensor, tokens: int) -> None:
        """Keeps the state after so many more tokens; refuses where earlier ones will be asked for."""
        if getattr(self._cache.layers[self._layer], "record_past", False):
            accepted = "one that is not cropped, as in assisted decoding: a state takes no token back"
            raise must_be("past_key_values", accepted, type(self._cache).__name__)
        self._cache.update_recurrent_state(state, self._layer)
        # Transformers counts tokens by its keys: here one number, seen once for each of them.
        layer: Any = self._cache.layers[self._layer]
        if hasattr(layer, "max_cache_len"):
            counted = state.new_zeros((len(state), 1, tokens, 1))
            self._cache.update(counted, counted, self._layer)
            return
        counted = state.new_zeros(1).expand(len(state), 1, self._cached + tokens, 1)
        if not layer.is_initialized:
            layer.lazy_initialization(counted, counted)
        layer.keys = layer.values = counted

    def with_earlier(self, columns: Tensor, earlier: int) -> Tensor:
        """The inputs (B, D, n) of a convolution after up to `earlier` of those before, which it keeps."""
        return self._cache.update_conv_state(columns, self._layer, conv_kernel_size=earlier)


class ShortConvolution(nn.Module):
    """x_t ← x_t + Σ_{k < K} w_k ⊙ x_{t−k}: each channel sees its last K tokens.

    Starts as the identity, w = 0, and weight decay pulls towards it: the factor of x_t is 1 + w_0.
    """

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, 1, length))  # the oldest token first

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The tokens (B, N, D), convolved: padding counts as zero, and so do other documents.

        Args:
            x: (B, N, D); with a cache the newest N tokens.
            key_mask: (B, cached + N) bool, True for tokens and False for padding.
            document_ids: (B, N) 0, 1, … from the first document of each row.
            cache: the inputs of earlier tokens; receives those of x.
        """
        tokens, weight = x.shape[1], self.weight[:, 0].t().to(x.dtype)
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, -tokens:, None], 0.0)
        if cache is not None:
            x = cache.with_earlier(x.transpose(1, 2), len(weight) - 1).transpose(1, 2)
        added: Tensor = _LagSum.apply(x, weight, document_ids)
        return added[:, -tokens:]


class _LagSum(torch.autograd.Function):
    """x_t + Σ_k w_k ⊙ x_{t−k} of (B, N, D), lag by lag in place.

    A depthwise convolution is slow on a CPU, and so is the backward pass of slices.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, document_ids: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, document_ids)
        out = torch.addcmul(x, x, weight[-1])
        for lag in range(1, min(len(weight), x.shape[1])):
            out[:, lag:].addcmul_(_within(x[:, :-lag], document_ids, lag), weight[-1 - lag])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, document_ids = ctx.saved_tensors
        of_x, of_weight = torch.addcmul(grad, grad, weight[-1]), torch.zeros_like(weight)
        of_weight[-1] = (grad * x).sum((0, 1))
        for lag in range(1, min(len(weight), x.shape[1])):
            later = _within(grad[:, lag:], document_ids, lag)
            of_x[:, :-lag].addcmul_(later, weight[-1 - lag])
            of_weight[-1 - lag] = (later * x[:, :-lag]).sum((0, 1))
        return of_x, of_weight, None


def _within(x: Tensor, document_ids: Tensor | None, lag: int) -> Tensor:
    """The pairs (B, N − lag, D) of a lag, zero where the two tokens are of different documents."""
    if document_ids is None:
        return x
    return x.masked_fill((document_ids[:, lag:] != document_ids[:, :-lag])[..., None], 0.0)


class ValueEmbedding(nn.Module):
    """λ E[token], added to the values of a layer: what a token says of itself, whatever its context.

    λ starts at 0.1: with 0 the table E would have no gradient. Rows of E start like any embedding's, at some
    0.02 per channel, so that what they add is small beside the values.
    """

    start = 0.1

    def __init__(self, vocab_size: int, num_key_value_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.table = nn.Embedding(vocab_size, num_key_value_heads * head_dim)
        self.scale = nn.Parameter(torch.tensor(self.start))

    def keep_heads(self, kv_heads: Sequence[int]) -> None:
        """Keep what is added to some heads of the values, in place."""
        heads = self.table.embedding_dim // self.head_dim
        self.table.weight = kept_blocks(self.table.weight, kv_heads, heads, dim=1)
        self.table.embedding_dim = self.table.weight.shape[1]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the addition to the values of token numbers (B, N): (B, G, N, d)."""
        added: Tensor = self.scale * self.table(tokens)
        return added.view(*tokens.shape, -1, self.head_dim).transpose(1, 2)


class KernelGPTMLP(nn.Module):
    """The feed-forward layer: D → hidden → D with one activation."""

    def __init__(self, config: KernelGPTConfig, layer: int) -> None:
        super().__init__()
        hidden = config.feed_forward_size(layer)
        self.up_proj = nn.Linear(config.hidden_size, hidden, bias=config.bias)
        self.down_proj = nn.Linear(hidden, config.hidden_size, bias=config.bias)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


class KernelGPTBlock(GradientCheckpointingLayer):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: KernelGPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.attention_norm = make_norm(config)
        self.convolution: ShortConvolution | None = None
        if config.short_convolution is not None:
            self.convolution = ShortConvolution(config.hidden_size, config.short_convolution)
        self.value_embedding: ValueEmbedding | None = None
        if config.has_value_embedding(layer):
            heads = config.num_key_value_heads or config.num_attention_heads
            head_dim = config.hidden_size // config.num_attention_heads
            self.value_embedding = ValueEmbedding(config.vocab_size, heads, head_dim)
        self.attention = make_attention(config, layer)
        if self.value_embedding is not None:
            self.value_embedding.keep_heads(self.attention.projections.kv_heads)
        for tensor in fixed_starts(self.attention).values():
            if not tensor.is_meta:  # a meta tensor has yet to be loaded or initialised
                tensor._is_hf_initialized = True  # type: ignore[attr-defined]
        self.mlp_norm = make_norm(config)
        self.mlp = KernelGPTMLP(config, layer)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()
        for last in (self.attention.projections.o_proj, self.mlp.down_proj):
            last.ends_residual_branch = True  # type: ignore[assignment]

    def keep_heads(self, heads: Sequence[int]) -> None:
        """Remove all heads but some, in place, and what is added to their values."""
        before = self.attention.projections.kv_heads
        self.attention.keep_heads(heads)
        if self.value_embedding is not None:
            after = self.attention.projections.kv_heads
            self.value_embedding.keep_heads([before.index(head) for head in after])

    def forward(
        self,
        hidden_states: Tensor,
        tokens: Tensor | None = None,
        key_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_key_values: "Cache | None" = None,
        cached: int = 0,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        cache = None if past_key_values is None else LayerCache(past_key_values, self.layer, cached)
        x = self.attention_norm(hidden_states)
        if self.convolution is not None:
            x = self.convolution(x, key_mask, document_ids, cache)
        result = self.attention(
            x,
            key_mask=key_mask,
            document_ids=document_ids,
            added_values=None if self.value_embedding is None else self.value_embedding(tokens),
            cache=cache,
            return_weights=return_weights,
        )
        attended, weights = result if return_weights else (result, None)
        hidden_states = hidden_states + self.dropout(attended)
        return hidden_states + self.dropout(self.mlp(self.mlp_norm(hidden_states))), weights


def make_attention(config: KernelGPTConfig, layer: int) -> KernelSelfAttention:
    """The attention of a layer."""
    return KernelSelfAttention(
        config.hidden_size,
        config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        causal=True,
        bias=config.bias,
        dropout=config.dropout,
        kept_heads=config.kept_heads(layer),
        **config.attention_options(layer),
    )


def fixed_starts(attention: KernelSelfAttention) -> dict[str, Tensor]:
    """Parts that keep their own start: kernel parameters, constants, marked linear maps."""
    found = {**dict(attention.kernel_parameters()), **dict(attention.named_buffers())}
    for prefix, module in attention.named_modules():
        if getattr(module, "keeps_start", False):
            found.update((f"{prefix}.{name}", parameter) for name, parameter in module.named_parameters())
    return found


def make_norm(config: KernelGPTConfig) -> nn.Module:
    """A norm over the width of the tokens."""
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps, elementwise_affine=False)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)
