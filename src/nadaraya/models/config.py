"""The configuration of KernelGPT."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

from huggingface_hub.errors import StrictDataclassError
from pydantic import Field, ValidationError, create_model
from transformers import PreTrainedConfig

from nadaraya.attention import variants
from nadaraya.attention.caching import factorises
from nadaraya.attention.content import why_not_causal
from nadaraya.attention.gates import OutputGate
from nadaraya.attention.suffixes import renamed
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.models.presets import preset_fields
from nadaraya.stored import Stored, accepted

_Kind = TypeVar("_Kind", bound=type[Any])
_Count = Annotated[int, Field(ge=1, lt=2**31)]
_Tokens = Annotated[int, Field(ge=1, lt=2**63)]
_Layers = Annotated[int, Field(ge=1, le=4096)]
_Lags = Annotated[int, Field(ge=2, lt=2**31)]
_Magnitude = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Cap = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, lt=1)]


def _one_line(kind: _Kind) -> _Kind:
    """A class of configurations whose refusals, those of transformers among them, are InputErrors."""
    make: Callable[..., None] = kind.__init__

    @wraps(make)
    def make_checked(self: Any, **given: Any) -> None:
        try:
            make(self, **given)
        except InputError:
            raise
        except (StrictDataclassError, ArithmeticError, AttributeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"configuration cannot have these values: {reason}") from error

    kind.__init__ = make_checked
    return kind


_LAYER_TYPES = {"S": ("sliding_attention", "hybrid_sliding"), "L": ("full_attention", "hybrid")}


@_one_line
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
        prune_tol: share of the weights that may be left out at long lags, see `kernel_attention`; default 0.
        bias: biases in the linear layers; default False.
        dropout: probability of dropping embeddings, attention weights and block outputs in training.
        initializer_range: standard deviation of the initial weights; default 0.02.
        norm_eps: added to the variance in the norms.
        pruned_heads: heads that a layer has not, by the index of the layer, e.g. {"3": [0, 2]}: the others
            keep their numbers and their width D / H. Default None, all are there. See `prune_heads`.
        intermediate_sizes: widths of feed-forward layers that are smaller than `intermediate_size`, by the
            index of the layer, e.g. {"3": 768}. Default None, all have that width. See `prune_units`.
        variant_names: the edition of the variants' names, 2. What was saved without it is of the first, where
            `gpa` and `gpa-rope` had the paper's start, and is read as `gpa-paper` and `gpa-rope-paper`.

    Raises:
        InputError: values that are not accepted or do not fit together, or fields that do not exist.

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

    vocab_size: _Count = 93
    hidden_size: _Count = 512
    intermediate_size: _Count | None = None
    num_hidden_layers: _Layers = 4
    num_attention_heads: _Count = 4
    num_key_value_heads: _Count | None = None
    max_position_embeddings: _Tokens = 256
    variant: str | list[str] = "rope"
    variant_options: dict[str, Any] | None = None
    window_pattern: str | None = None
    sliding_window: _Tokens | None = None
    layer_types: list[str] | None = None
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    hidden_act: Literal["gelu", "relu2", "silu", "relu"] = "gelu"
    tie_word_embeddings: bool = False
    head_norm: bool | None = None
    head_norm_eps: _Magnitude | None = None
    embedding_norm: bool = False
    logit_cap: _Cap | None = None
    short_convolution: _Lags | None = None
    value_embeddings: Literal["all", "alternate"] | None = None
    output_gate: bool = False
    prune_tol: _Share = 0.0
    bias: bool = False
    dropout: _Share = 0.0
    initializer_range: _Magnitude = 0.02
    norm_eps: _Magnitude = 1e-5
    pruned_heads: dict[str | int, list[int]] | None = None
    intermediate_sizes: dict[str | int, int] | None = None
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    variant_names: Literal[2] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.dtype is None:  # transformers' name for it before
            self.dtype = kwargs.pop("torch_dtype", None)
        if self.transformers_version is not None and "negligible" in kwargs:  # its name in files of before
            self.prune_tol = kwargs.pop("negligible")
        given = {name: getattr(self, name) for name in (*_OWN_FIELDS, *_OTHER_FIELDS)}
        given["dtype"] = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        quantized = kwargs.get("quantization_config")  # plain, or one of the classes of transformers
        quantized = None if hasattr(quantized, "to_dict") else quantized
        try:
            _Fields(**given, num_labels=kwargs.get("num_labels"), quantization_config=quantized)
        except ValidationError as error:
            raise _refusal(error) from None
        if self.variant_names is None and self.transformers_version is not None:  # it was saved
            self.variant = renamed(self.variant, self.variant_options)
        self.variant_names = 2
        _check_names(kwargs, self.layer_variants)
        for name, options in self._layers():
            if (reason := why_not_causal(options.get("content"))) is not None:
                where = "in a layer that is not causal, as image models have"
                raise InputError(f"variant {name!r} must be {where}: {reason}")
        if self.hidden_size % self.num_attention_heads:
            heads = f"a multiple of num_attention_heads = {self.num_attention_heads}"
            raise must_be("hidden_size", heads, self.hidden_size)
        if self.num_key_value_heads is not None and self.num_attention_heads % self.num_key_value_heads:
            heads = f"a divisor of num_attention_heads = {self.num_attention_heads}"
            raise must_be("num_key_value_heads", heads, self.num_key_value_heads)
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size
        if self.sliding_window is None and self.window_pattern is not None:
            self.sliding_window = max(1, self.max_position_embeddings // 2)
        pattern = self.window_pattern or "L"
        if set(pattern) - set("SL"):
            raise must_be("window_pattern", "made of S (sliding window) and L (full)", pattern)
        letters = [pattern[layer % len(pattern)] for layer in range(self.num_hidden_layers - 1)] + ["L"]
        # What a cache of transformers has to keep: "hybrid" layers have inputs of a convolution, or a state.
        layer_types = [
            _LAYER_TYPES[letter][self.short_convolution is not None or factorises(options.get("content"))]
            for letter, (_, options) in zip(letters, self._layers(), strict=True)
        ]
        if self.layer_types not in (None, layer_types):
            raise must_be("layer_types", "left out: they follow from window_pattern", self.layer_types)
        self.layer_types = layer_types
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
        if (kind := config_dict.get("model_type", cls.model_type)) != cls.model_type:
            raise must_be("model_type", repr(cls.model_type), kind)
        fields = {name: value for name, value in config_dict.items() if name != "model_type"}
        changes = {name: kwargs.pop(name) for name in _OWN_FIELDS if name in kwargs}
        if changes:  # what follows from other fields follows from them as they are now
            changes = {"layer_types": None, **changes}
            if fields.get("num_key_value_heads") == fields.get("num_attention_heads"):
                changes = {"num_key_value_heads": None, **changes}
        wants_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_dict({**fields, **changes}, return_unused_kwargs=True, **kwargs)
        if not wants_unused:
            _check_names(unused, config.layer_variants)
        return (config, unused) if wants_unused else config

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
        if "sliding" in self.layer_types[layer]:
            assert self.sliding_window is not None
            options["window"] = min(self.sliding_window, options.get("window") or self.sliding_window)
        options["prune_tol"] = self.prune_tol
        if self.output_gate:
            options["output_gate"] = OutputGate
        return options

    def has_value_embedding(self, layer: int) -> bool:
        """Return whether tokens add to the values of a layer.

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
            name: "dickens" (the papers' character model), "demo", "recommended" (the same sizes as "dickens",
                with the attention to begin with), or "nano-d20" with any number for 20: the family of
                nanochat (Karpathy 2025) with that many blocks, and with a variant after it, as in
                "nano-d20-gka", that variant's form of it. See `nadaraya.models.presets`.
            changes: fields that differ from it.

        Raises:
            InputError: no such preset, or no such field.

        >>> from nadaraya.models import KernelGPTConfig
        >>> config = KernelGPTConfig.preset("nano-d20-gka")
        >>> config.hidden_size, config.num_attention_heads, config.sliding_window
        (1280, 10, 1024)
        """
        return cls(**{**preset_fields(name, changes.get("variant")), **changes})


def _check_names(given: dict[str, Any], used: list[str]) -> None:
    """Refuse fields that neither the configuration nor that of transformers has; some belong to a variant."""
    for name in given:
        if name in _OF_TRANSFORMERS:
            continue
        for variant in used:
            if name in variants.options(variant):
                raise InputError(
                    f"{name} must be given as variant_options={{{name!r}: …}}: it is an option of {variant!r}"
                )
        raise unknown_name("configuration field", name, _OWN_FIELDS)


def _refusal(error: ValidationError) -> InputError:
    """One line on the first value of another kind, in the most particular of the forms that it may have."""
    first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    name = str(first["loc"][0])
    if first["type"] == "literal_error" and "'" in first["ctx"]["expected"]:
        return unknown_name(name, first["input"], re.findall(r"'(\w+)'", first["ctx"]["expected"]))
    return must_be(name, accepted(first), first["input"])


_OWN_FIELDS = tuple(KernelGPTConfig.__annotations__)
# What transformers and libraries on it give a configuration or write beside its fields.
_OF_TRANSFORMERS = {
    *vars(PreTrainedConfig()), "_commit_hash", "attn_implementation", "auto_map", "custom_pipelines",
    "model_type", "name_or_path", "num_labels", "output_attentions",
    "quantization_config", "tokenizer_class",
}  # fmt: skip
_OTHER_FIELDS: dict[str, Any] = {
    "architectures": list[str] | None,
    "dtype": Literal["float16", "bfloat16", "float32", "float64"] | None,
    "is_encoder_decoder": Literal[False],
    "output_hidden_states": bool | None,
    "return_dict": bool | None,
}
_Fields: Any = create_model(  # type: ignore[call-overload]
    "_Fields",
    __base__=Stored,
    **{name: (kind, ...) for name, kind in _OTHER_FIELDS.items()},
    quantization_config=(dict[str, Any] | None, None),
    num_labels=(Annotated[int, Field(ge=1, lt=2**20)] | None, None),
    **{name: (KernelGPTConfig.__annotations__[name], ...) for name in _OWN_FIELDS},
)
