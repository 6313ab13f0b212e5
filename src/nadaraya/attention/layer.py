"""Multi-head self-attention with an explicit kernel, put together from parts that each know one thing."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from nadaraya.attention.autocast import in_autocast_dtype
from nadaraya.attention.caching import KeyValueCache, factorises, with_earlier
from nadaraya.attention.checks import RIDGE, check_options
from nadaraya.attention.content import DotProduct, why_not_causal
from nadaraya.attention.documents import log_length, starts_of
from nadaraya.attention.functional import AttentionOptions, attention_from_state
from nadaraya.attention.gates import ForgetGate, Sink
from nadaraya.attention.own_value import OwnValue, attend, own_rows, without_direction
from nadaraya.attention.positions import Position
from nadaraya.attention.projections import LayerShape, Projections
from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.attention.tables import LagTable
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.kernels import Kernel
from nadaraya.kernels.heads import keep_kernel_heads

MakePart = Callable[[LayerShape], nn.Module]


class KernelSelfAttention(nn.Module):
    """Self-attention as kernel regression of the tokens on themselves.

        y_i = W_O [Σ_j κ_h(i,j) v_j / (Σ_j κ_h(i,j) + ε)]_h
        log κ_h(i,j) = content_h(i,j) + position_h(i,j) + gate_h(j) + mask(i,j)

    Parts are modules, or functions of the layer's `LayerShape` (dim, num_heads, num_key_value_heads,
    head_dim) that make them, as in `position=lambda shape: KernelBank(shape.num_heads, num_terms=8)`.

    Args:
        dim: width D of the tokens.
        num_heads: number of heads H, a divisor of D unless `head_dim` is given.
        causal: tokens see no later token; default False.
        window: tokens see only lags |i − j| < window; default None, no limit.
        num_key_value_heads: number G of key and value heads, a divisor of H; default H. Needs W_K.
        head_dim: width d of a head; default D / H. Others need "qkvo", "q(kv)o" or "(qkv)o".
        projections: which of W_Q, W_K, W_V, W_O exist and which are one: "qkvo" (default), "qko", "vo", "o",
            "q(kv)o" or "(qkv)o", see `Projections`.
        head_norm: root-mean-square normalisation of each head's queries and keys; default False.
        head_norm_eps: ε added to the mean square in it; default the resolution of the dtype.
        content: how alike a query and a key are: `DotProduct` (default), or a kernel of their distance,
            `GaussianContent` or `KernelContent`.
        rotary: a `RotaryEmbedding` of queries and keys; default None.
        position: a `Kernel` of the lag, shared or with one value per head, by which weights are multiplied
            (Bunks et al. (2025), eq. 6); `Exp` of one adds it to the logits (Gaussian Process Attention
            (anonymous), eq. 6). Or a module that gives the operator's `position` for its tokens and a number
            of lags: `MixedProfiles`, `MixedBank`, `FIRE`. Default None.
        gate: a `ForgetGate`, a logit for every key; default None. Needs `causal`.
        exclude_self: leave-one-out regression, no token sees itself unless it sees nothing else; default
            False.
        own_value: "drop", a token weighs itself and its own value counts as 0; or "project-out", the
            direction of its own value is taken out of the output, y − (y·v̂) v̂ (XSA, Zhai 2026). Default None,
            the value is a value like the others. "drop" with dropout writes N × N weights.
        sink: a `Sink`, weight of each head that no value has; default None.
        value_convolution: a `ValueConvolution`, added to the smoothed values; default None.
        output_gate: an `OutputGate` of the smoothed values; default None.
        eps: ε of the denominator; default 0.
        prune_tol, degree, ridge, nearest: see `kernel_attention`; default 0, 0, 1e-3 and None.
        probe: a `Probe`, the slope of a line that each token asks for; default None.
        bias: whether the projections have biases; default False.
        out_bias: whether W_O has one; default as `bias`.
        dropout: probability of dropping an attention weight in training; default 0.
        kept_heads: the heads of `num_heads` that there are, by number, ascending: all are as wide
            and start as they would among all. Default all.

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
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        projections: str = "qkvo",
        head_norm: bool = False,
        head_norm_eps: float | None = None,
        content: nn.Module | MakePart | None = None,
        rotary: RotaryEmbedding | MakePart | None = None,
        position: nn.Module | MakePart | None = None,
        gate: ForgetGate | MakePart | None = None,
        exclude_self: bool = False,
        own_value: OwnValue | None = None,
        sink: Sink | MakePart | None = None,
        value_convolution: nn.Module | MakePart | None = None,
        output_gate: nn.Module | MakePart | None = None,
        eps: float = 0.0,
        prune_tol: float = 0.0,
        degree: int = 0,
        ridge: float = RIDGE,
        probe: nn.Module | MakePart | None = None,
        nearest: int | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        kept_heads: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_options(window, exclude_self, dropout, eps, prune_tol)
        kv_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        shape = LayerShape(dim, num_heads, kv_heads, head_dim)
        self.projections = Projections(shape, projections, head_norm, head_norm_eps, bias, out_bias)
        self.dim, self.num_heads, self.causal, self.window = dim, num_heads, causal, window
        if own_value not in (None, *get_args(OwnValue)):
            raise unknown_name("own_value", own_value, get_args(OwnValue))
        if exclude_self and own_value == "drop":
            raise InputError(
                "own_value='drop' must not be given with exclude_self, which leaves no weight to it"
            )
        self.exclude_self, self.own_value = exclude_self, own_value
        self.eps, self.prune_tol, self.dropout = eps, prune_tol, dropout
        self.degree, self.ridge, self.nearest = degree, ridge, nearest
        if own_value == "drop" and (degree or probe is not None or nearest is not None):
            raise InputError("own_value='drop' must not be given with degree, probe or nearest")
        self.content = _part("content", content or DotProduct, shape)
        self.rotary = _part("rotary", rotary, shape)
        self.position = _part("position", position, shape)
        self.gate = _part("gate", gate, shape)
        self.sink = _part("sink", sink, shape)
        self.value_convolution = _part("value_convolution", value_convolution, shape)
        self.output_gate = _part("output_gate", output_gate, shape)
        self.probe = _part("probe", probe, shape)
        if self.rotary is not None and factorises(self.content):
            raise InputError("rotary must not be given with content that factorises: features have no angles")
        if causal:
            self._check_causal()
        if isinstance(self.position, Kernel):
            self.position.check_serves(num_heads, "position")
        if self.sink is not None and getattr(self.content, "scales_rows", False):
            raise InputError("sink must not be given with features that are scaled row by row")
        if self.sink is not None and not getattr(self.content, "normalise", True):
            raise InputError("sink must not be given with content that has no denominator")
        if getattr(self.rotary, "values", False) and getattr(self.content, "per", "head") == "channel":
            raise InputError("rotary values need one bandwidth per head: scaled channels are no values")
        if self.gate is not None and not causal:
            raise InputError("a gate must be in a causal layer: it says how much of the past is forgotten")
        self.backend = "auto"
        self.one_tensor_cache = True  # what is key and value at once is cached once; False to compare with
        self._table = LagTable()
        self._seen_keys: list[int] | None = None
        if kept_heads is not None:
            self.keep_heads(kept_heads)

    def keep_heads(self, heads: Sequence[int]) -> None:
        """Remove all heads but some, in place: their projections, kernels, gates and columns of W_O.

        Keys and values that several heads share go with the last of these.

        Args:
            heads: the heads that remain, at least one, as they were numbered before any was removed.

        Raises:
            InputError: none or other heads, or a part that does not say which of its values are which head's.

        >>> from nadaraya import KernelSelfAttention, variants
        >>> layer = KernelSelfAttention(64, num_heads=4, causal=True, **variants.get("gpa-rope"))
        >>> layer.keep_heads([0, 3])
        >>> layer.num_heads, layer.projections.q_proj.weight.shape
        (2, torch.Size([32, 64]))
        """
        there, wanted = self.projections.heads, sorted(set(heads))
        if not wanted or not set(wanted) <= set(there):
            raise must_be("heads", f"at least one of {', '.join(map(str, there))}", list(heads))
        rows = [there.index(head) for head in wanted]
        names = ("content", "position", "gate", "sink", "value_convolution", "output_gate", "probe")
        parts = {name: getattr(self, name) for name in names}
        for name, part in parts.items():
            if not (part is None or isinstance(part, Kernel) or hasattr(part, "keep_heads")):
                raise must_be(name, "a part with keep_heads, to lose heads", part)
        for part in parts.values():
            if isinstance(part, Kernel):
                keep_kernel_heads(part, rows)
            elif part is not None:
                part.keep_heads(rows)
        self.projections.keep_heads(wanted)
        self.num_heads, self._seen_keys = len(wanted), self.projections.seen_keys

    def kernel_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and values of what shapes the kernel: all of the parts' parameters but their linear maps.

        They take no weight decay and have a learning rate of their own.
        """
        for part in ("content", "rotary", "position", "sink"):
            module = getattr(self, part)
            for prefix, inner in () if module is None else module.named_modules(prefix=part):
                if not isinstance(inner, nn.Linear):
                    for name, parameter in inner.named_parameters(recurse=False):
                        yield f"{prefix}.{name}", parameter

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        key_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        added_values: Tensor | None = None,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Smooths the tokens.

        Args:
            x: (B, N, D); with a cache the newest N tokens.
            attn_mask: broadcastable to (B, H, N, Nk), bool (True takes part) or added to the logits.
            is_causal: this call is causal even if the layer is not.
            key_mask: (B, Nk) bool, True where a token takes part, False for padding; Nk counts cached tokens.
            document_ids: (B, N) whole numbers: tokens see those of their own document only, see
                `kernel_attention`. Not with a cache.
            added_values: (B, G, N, d), added to the values; default nothing.
            cache: keys and values of earlier tokens; receives those of x.
            return_weights: also return the weights (B, H, N, Nk), by the O(N²) definition.

        Returns:
            (B, N, D), or with `return_weights` the pair of it and the weights.

        Raises:
            InputError: x or a mask of another shape, or documents with a cache.
        """
        if document_ids is not None and cache is not None:
            raise InputError("document_ids must not be given with a cache: its tokens are of one document")
        if document_ids is not None and self.value_convolution is not None:
            raise InputError("document_ids must not be given with value_convolution, which crosses borders")
        seen = 0 if cache is None else cache.length()
        self._check(x, seen, key_mask)
        x = in_autocast_dtype(x)
        query, key, value = self.projections(x)
        if is_causal:
            self._check_causal()
        if getattr(self.content, "scales_by_length", False):
            query = query * log_length(query, seen, starts_of(key_mask, document_ids))
        if getattr(self.content, "takes_key_mask", False):
            query, scored, content = self.content(query, key, key_mask)
            if document_ids is not None:
                raise InputError("document_ids must not be given to features of all tokens of a row")
        else:
            query, scored, content = self.content(query, key)
        rotates_values = value is key and self.rotary is not None and self.rotary.values
        probe = None if self.probe is None else self.probe(x)
        if self.rotary is not None:
            # Logits know lags alone: it is rotated values that tell where a text begins.
            starts = starts_of(key_mask, document_ids) if rotates_values else None
            rotated = self.rotary(query, seen, starts)
            query, scored = rotated, rotated if scored is query else self.rotary(scored, seen, starts)
            probe = None if probe is None else self.rotary(probe, seen, starts)
        if value is key and (scored is key or rotates_values):
            value = scored  # one tensor to cache, and one gradient
        if added_values is not None:
            value = value + added_values.to(value.dtype)
        log_forget = None if self.gate is None else self.gate(x)
        if log_forget is not None:  # gates are cached beside the keys that they belong to
            scored, value = self._for_heads(scored, value)
        by_state = cache is not None and self.decodes_by_state
        if cache is not None and not by_state:
            scored, value, log_forget = with_earlier(cache, scored, value, log_forget, self.one_tensor_cache)
        if log_forget is None:
            scored, value = self._for_heads(scored, value)
        earlier_mask = None if key_mask is None else key_mask[:, :seen]
        if key_mask is not None:
            key_mask = key_mask[:, -scored.shape[2] :]  # a cache of a window gives the last keys alone
            if log_forget is not None:  # padding forgets nothing
                log_forget = log_forget.masked_fill(~key_mask[:, None], 0.0)
        if cache is not None and attn_mask is not None:
            attn_mask = attn_mask[..., -scored.shape[2] :]
        options: AttentionOptions = {
            "content": content,
            "position": self._position(x, scored.shape[2], is_causal, decoding=seen > 0),
            "key_bias": None if log_forget is None else ForgetGate.key_bias(log_forget),
            "exclude_self": self.exclude_self,
            "causal": self.causal or is_causal,
            "window": self.window,
            "key_mask": key_mask,
            "attn_mask": attn_mask,
            "document_ids": document_ids,
            "dropout_p": self.dropout if self.training else 0.0,
            "eps": self.eps,
            "prune_tol": self.prune_tol,
            "degree": self.degree,
            "ridge": self.ridge,
            "probe": probe,
            "nearest": self.nearest,
            "backend": self.backend,
        }
        if by_state:
            assert cache is not None
            if return_weights or attn_mask is not None:
                name = "attn_mask" if attn_mask is not None else "return_weights"
                raise InputError(f"{name} must not be asked of a cache that keeps a state and no tokens")
            earlier = torch.tensor([seen], device=x.device) if earlier_mask is None else earlier_mask.sum(1)
            out, lse, state = attention_from_state(query, scored, value, cache.state(), earlier, **options)
            cache.keep_state(state, x.shape[1])
            if self.own_value == "project-out":
                out = without_direction(out, own_rows(value, out))
            weights = None
        else:
            with_lse = self.sink is not None
            out, weights, lse = attend(
                query, scored, value, self.own_value, options, weights=return_weights, lse=with_lse
            )
        out, weights = self._with_sink(out, weights, lse, options["key_bias"])
        if self.value_convolution is not None:
            out = out + self.value_convolution(value, out.shape[2], self.causal or is_causal, key_mask)
        merged = self._merged(out, x)
        return merged if weights is None else (merged, weights)

    def _check(self, x: Tensor, seen: int, key_mask: Tensor | None) -> None:
        if x.dim() != 3 or x.shape[2] != self.dim:
            raise must_be("x", f"of shape (batch, tokens, {self.dim})", tuple(x.shape))
        so_far = seen + x.shape[1]
        if key_mask is not None and key_mask.shape[-1] != so_far:
            accepted = f"of shape (batch, {so_far}), as many as tokens so far"
            raise must_be("key_mask", accepted, tuple(key_mask.shape))

    def _position(self, x: Tensor, num_lags: int, is_causal: bool, decoding: bool) -> Position | None:
        """The operator's position for queries of the tokens x; subclasses may have others."""
        if isinstance(self.position, Kernel) and factorises(self.content):
            return self.position  # its modes, where it has any, are more than a table
        if isinstance(self.position, Kernel):
            return self._table.logits(self.position, num_lags, self.causal or is_causal, decoding)
        found: Any = None if self.position is None else self.position(x, num_lags)
        return found

    def _with_sink(
        self, out: Tensor, weights: Tensor | None, lse: Tensor | None, gates: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.sink is None:
            return out, weights
        assert lse is not None
        if gates is not None:  # counted from the end of the text, where a token counts from itself
            lse = lse - gates[:, :, -lse.shape[2] :]
        share = self.sink(lse)[..., None]
        return out * share.to(out.dtype), None if weights is None else weights * share

    @property
    def decodes_by_state(self) -> bool:
        """Return whether a cache keeps a state of constant size in place of keys and values."""
        if not (factorises(self.content) and self.causal):
            return False
        ways = (self.window, self.gate, self.probe, self.nearest, self.value_convolution)
        if self.degree or self.own_value == "drop" or any(way is not None for way in ways):
            return False
        position = self.position
        return position is None or (isinstance(position, Kernel) and position.modes() is not None)

    def _check_causal(self) -> None:
        if (reason := why_not_causal(self.content)) is not None:
            raise InputError(f"{type(self.content).__name__} must be in a layer that is not causal: {reason}")

    def _for_heads(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values once per head, where heads that remain do not share them evenly."""
        if self._seen_keys is None:
            return key, value
        keys = key[:, self._seen_keys]
        return keys, keys if value is key else value[:, self._seen_keys]

    def _merged(self, out: Tensor, x: Tensor) -> Tensor:
        if self.output_gate is not None:
            out = self.output_gate(out, x)
        merged: Tensor = self.projections.merged(out)
        return merged

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, num_heads={self.num_heads}, causal={self.causal}, window={self.window}, "
            f"exclude_self={self.exclude_self}, own_value={self.own_value!r}"
        )


def _part(name: str, part: Any, shape: LayerShape) -> Any:
    """The part itself, or what a function of the layer's shape makes."""
    if isinstance(part, type) and issubclass(part, Kernel):
        raise must_be(name, "a kernel, as Gaussian(8.0), not its class", part)
    made = part if part is None or isinstance(part, nn.Module) else part(shape)
    if made is not None and not isinstance(made, nn.Module):
        raise must_be(name, "a module, or a function of the layer's shape that makes one", made)
    return made
