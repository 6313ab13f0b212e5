"""The configuration of KernelGPT."""

import inspect
import math
from difflib import get_close_matches
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from nadaraya.attention import variants
from nadaraya.attention.gates import OutputGate
from nadaraya.errors import must_be, unknown_name
from nadaraya.models.presets import preset_fields

NORMS = ("layernorm", "rmsnorm")
VALUE_EMBEDDINGS = ("all", "alternate")
ACTIVATIONS = ("gelu", "relu2", "silu", "relu")


@strict
class KernelGPTConfig(PreTrainedConfig):
    """A decoder-only Transformer whose attention is any variant of the operator.

    The defaults are the character model of Bunks et al. (2025) and of Gaussian Process Attention (anonymous):
    LayerNorm, GELU, 4 layers of 4 heads, D = 512, context 256.

    Args:
        vocab_size: number of tokens.
        hidden_size: width D.
        intermediate_size: width of the feed-forward layers; default 4 D.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads H; D must be a multiple of it.
        num_key_value_heads: key and value heads, a divisor of H; default H.
        max_position_embeddings: the context trained on, in tokens. Relative position biases and rotary
            positions go on beyond it.
        variant: a name of `nadaraya.variants.names()` or of `hybrids()`; or several names, repeated over the
            depth (a hybrid).
        variant_options: options of the variants, e.g. {"num_terms": 16}; in a hybrid each goes to the
            variants that have it.
        window_pattern: letters repeated over the depth, "S" for a layer with a sliding window, "L" for a
            full one, e.g. "SSSL"; the last layer is always full. Default: all full.
        sliding_window: window of an "S" layer, in tokens; default half of the context.
        norm: "layernorm", or "rmsnorm" without parameters.
        hidden_act: "gelu", "relu2", "silu" or "relu".
        tie_word_embeddings: the output layer shares the embedding's weights; default False.
        head_norm: root-mean-square normalisation of queries and keys; default: that of the variant.
        head_norm_eps: ε added to the mean square in it; default the resolution of the dtype.
        embedding_norm: a norm of the embedding, ahead of the first block; default False.
        logit_cap: c in logits c·tanh(logits / c), which keeps them within ±c; default None, as they are.
        short_convolution: tokens that a causal convolution of each channel sees, ahead of every attention
            layer, at least 2; 4 is usual. Default None, no convolution.
        value_embeddings: what tokens add to the values by number, from a table for each layer ("all") or for
            the last layer and every second before it ("alternate"); default None, nothing.
        output_gate: gates on the output of every attention layer, `OutputGate`; default False.
        negligible: share of the weights that may be left out at long lags, see `kernel_attention`; default 0.
        bias: biases in the linear layers; default False.
        dropout: probability of dropping embeddings, attention weights and block outputs in training.
        initializer_range: standard deviation of the initial weights; default 0.02.
        norm_eps: added to the variance in the norms.
        pruned_heads: heads that a layer has not, by the index of the layer, e.g. {"3": [0, 2]}: the others
            keep their numbers and their width D / H. Default None, all are there. See `prune_heads`.
        intermediate_sizes: widths of feed-forward layers that are smaller than `intermediate_size`, by the
            index of the layer, e.g. {"3": 768}. Default None, all have that width. See `prune_units`.

    Raises:
        InputError: values that are not accepted or do not fit together.

    >>> from nadaraya.models import KernelGPTConfig
    >>> config = KernelGPTConfig(vocab_size=100, variant=["gka", "rope"], num_hidden_layers=3)
    >>> config.layer_variants
    ['gka', 'rope', 'gka']
    """

    model_type = "kernel_gpt"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the base class declares it so)
    # Not of attention: kernels have their own parameters per head, which no plan for linear layers cuts.
    base_model_tp_plan = {  # noqa: RUF012 (the base class declares it so)
        "blocks.*.mlp.up_proj": "colwise",
        "blocks.*.mlp.down_proj": "rowwise",
    }

    vocab_size: int = 93
    hidden_size: int = 512
    intermediate_size: int | None = None
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 256
    variant: str | list[str] = "rope"
    variant_options: dict[str, Any] | None = None
    window_pattern: str | None = None
    sliding_window: int | None = None
    layer_types: list[str] | None = None
    norm: str = "layernorm"
    hidden_act: str = "gelu"
    tie_word_embeddings: bool = False
    head_norm: bool | None = None
    head_norm_eps: float | int | None = None
    embedding_norm: bool = False
    logit_cap: float | int | None = None
    short_convolution: int | None = None
    value_embeddings: str | None = None
    output_gate: bool = False
    negligible: float | int = 0.0
    bias: bool = False
    dropout: float | int = 0.0
    initializer_range: float = 0.02
    norm_eps: float = 1e-5
    pruned_heads: dict[str | int, list[int]] | None = None
    intermediate_sizes: dict[str | int, int] | None = None
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name in kwargs:
            # transformers keeps fields that it does not know: a misspelt one would do nothing.
            if get_close_matches(name, _OWN_FIELDS, n=1, cutoff=0.8):
                raise unknown_name("configuration field", name, _OWN_FIELDS)
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise must_be(name, "at least 1", value)
        if self.hidden_size % self.num_attention_heads:
            heads = f"a multiple of num_attention_heads = {self.num_attention_heads}"
            raise must_be("hidden_size", heads, self.hidden_size)
        if self.num_key_value_heads is not None and self.num_attention_heads % self.num_key_value_heads:
            heads = f"a divisor of num_attention_heads = {self.num_attention_heads}"
            raise must_be("num_key_value_heads", heads, self.num_key_value_heads)
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.norm not in NORMS:
            raise unknown_name("norm", self.norm, NORMS)
        if self.hidden_act not in ACTIVATIONS:
            raise unknown_name("hidden_act", self.hidden_act, ACTIVATIONS)
        if self.value_embeddings is not None and self.value_embeddings not in VALUE_EMBEDDINGS:
            raise unknown_name("value_embeddings", self.value_embeddings, VALUE_EMBEDDINGS)
        if self.short_convolution is not None and self.short_convolution < 2:
            raise must_be("short_convolution", "at least 2 tokens, or None", self.short_convolution)
        if not 0.0 <= self.negligible < 1.0:
            raise must_be("negligible", "0 or a share between 0 and 1", self.negligible)
        if not 0.0 <= self.dropout < 1.0:
            raise must_be("dropout", "in [0, 1)", self.dropout)
        for name in ("initializer_range", "norm_eps", "head_norm_eps"):
            if not 0.0 <= (getattr(self, name) or 0.0) < math.inf:
                raise must_be(name, "a finite number of at least 0", getattr(self, name))
        if self.logit_cap is not None and not 0.0 < self.logit_cap < math.inf:
            raise must_be("logit_cap", "a positive finite number, or None", self.logit_cap)
        if self.sliding_window is None and self.window_pattern is not None:
            self.sliding_window = max(1, self.max_position_embeddings // 2)
        pattern = self.window_pattern or "L"
        if set(pattern) - set("SL"):
            raise must_be("window_pattern", "made of S (sliding window) and L (full)", pattern)
        letters = [pattern[layer % len(pattern)] for layer in range(self.num_hidden_layers - 1)] + ["L"]
        # What a cache of transformers has to keep: "hybrid" layers have inputs of a convolution too.
        kinds = {"S": "sliding_attention", "L": "full_attention"}
        if self.short_convolution is not None:
            kinds = {"S": "hybrid_sliding", "L": "hybrid"}
        self.layer_types = [kinds[letter] for letter in letters]
        for layer in range(self.num_hidden_layers):
            self.attention_options(layer)
        self.pruned_heads = self._checked_pruned_heads()
        self.intermediate_sizes = self._checked_sizes()
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """A configuration from its mapping; fields in `kwargs` replace those of the mapping and are checked.

        Args:
            config_dict: what `to_dict` gave.
            kwargs: fields that differ, and the options of transformers' method of the same name.

        Raises:
            InputError: values that do not fit together.
        """
        changes = {name: kwargs.pop(name) for name in _OWN_FIELDS if name in kwargs}
        return super().from_dict({**config_dict, **changes}, **kwargs)

    @property
    def layer_variants(self) -> list[str]:
        """The variant of each layer."""
        return [name for name, _ in self._layers()]

    def attention_options(self, layer: int) -> dict[str, Any]:
        """Keyword arguments of the layer's `KernelSelfAttention`, width and heads excepted.

        Args:
            layer: index from 0.

        Raises:
            InputError: an unknown variant, or an option that no variant of the model has.
        """
        _, options = self._layers()[layer]
        if self.head_norm is not None:
            options["head_norm"] = self.head_norm
        options["head_norm_eps"] = self.head_norm_eps
        assert self.layer_types is not None
        options["window"] = self.sliding_window if "sliding" in self.layer_types[layer] else None
        options["negligible"] = self.negligible
        if self.output_gate:
            options["output_gate"] = OutputGate
        return options

    def has_value_embedding(self, layer: int) -> bool:
        """Whether tokens add to the values of a layer.

        Args:
            layer: index from 0.
        """
        if self.value_embeddings == "alternate":
            return (self.num_hidden_layers - 1 - layer) % 2 == 0
        return self.value_embeddings == "all"

    def kept_heads(self, layer: int) -> list[int] | None:
        """The heads that a layer has, by number; None where it has all.

        Args:
            layer: index from 0.
        """
        pruned = (self.pruned_heads or {}).get(str(layer))
        return pruned and [head for head in range(self.num_attention_heads) if head not in pruned]

    def feed_forward_size(self, layer: int) -> int:
        """The width of a feed-forward layer.

        Args:
            layer: index from 0.
        """
        assert self.intermediate_size is not None
        return (self.intermediate_sizes or {}).get(str(layer), self.intermediate_size)

    def _checked_sizes(self) -> dict[str | int, int] | None:
        """Layers as text, as JSON has them; layers of the usual width left out."""
        assert self.intermediate_size is not None
        found: dict[str | int, int] = {}
        for layer, size in (self.intermediate_sizes or {}).items():
            self._check_layer("intermediate_sizes", layer, size)
            if not 1 <= size <= self.intermediate_size:
                accepted = f"from 1 to intermediate_size = {self.intermediate_size} in layer {layer}"
                raise must_be("intermediate_sizes", accepted, size)
            if size < self.intermediate_size:
                found[str(int(layer))] = size
        return found or None

    def _check_layer(self, field: str, layer: str | int, given: Any) -> None:
        """Refuse what is given for a layer that is not there."""
        if not str(layer).isdecimal() or int(layer) >= self.num_hidden_layers:
            raise must_be(field, f"by layer, from 0 to {self.num_hidden_layers - 1}", {layer: given})

    def _checked_pruned_heads(self) -> dict[str | int, list[int]] | None:
        """Layers as text, as JSON has them, and heads ascending; layers that lose none left out."""
        found: dict[str | int, list[int]] = {}
        for layer, heads in (self.pruned_heads or {}).items():
            self._check_layer("pruned_heads", layer, heads)
            pruned = sorted({*heads, *found.get(str(int(layer)), [])})
            if not set(pruned) < set(range(self.num_attention_heads)):
                accepted = f"of 0 … {self.num_attention_heads - 1} in layer {layer}, and not all of them"
                raise must_be("pruned_heads", accepted, list(heads))
            if pruned:
                found[str(int(layer))] = pruned
        if found and (self.variant_options or {}).get("share") == "layers":
            accepted = "None where layers share the banks of their heads (share='layers')"
            raise must_be("pruned_heads", accepted, self.pruned_heads)
        return found or None

    def _layers(self) -> list[tuple[str, dict[str, Any]]]:
        return variants.by_layer(self.variant, self.num_hidden_layers, self.variant_options)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "KernelGPTConfig":
        """A named configuration.

        Args:
            name: "dickens" (the papers' character model), "demo", or "nano-d20" with any number for 20: the
                family of nanochat (Karpathy 2025) with that many blocks, and with a variant after it, as in
                "nano-d20-gka", that variant's form of it. See `nadaraya.models.presets`.
            changes: fields that differ from it.

        Raises:
            InputError: no such preset, or no such field.

        >>> from nadaraya.models import KernelGPTConfig
        >>> config = KernelGPTConfig.preset("nano-d20-gka")
        >>> config.hidden_size, config.num_attention_heads, config.sliding_window
        (1280, 10, 1024)
        """
        accepted = inspect.signature(cls).parameters
        for field in changes:
            if field not in accepted:
                raise unknown_name("configuration field", field, accepted)
        return cls(**{**preset_fields(name, changes.get("variant")), **changes})


_OWN_FIELDS = tuple(KernelGPTConfig.__annotations__)
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "sliding_window",
)
