"""KernelGPT from transformers' nanochat and back: the same weights give the same logits.

Both rotate queries and keys by their positions. Nanochat pairs channel p with p + d/2 and turns the other way
round, KernelGPT pairs 2p with 2p + 1: the rows of W_Q and W_K change places, and nothing else changes.
"""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig, NanoChatConfig, NanoChatForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from nadaraya.errors import must_be
from nadaraya.models.config import KernelGPTConfig
from nadaraya.models.gpt import KernelGPTForCausalLM
from nadaraya.models.inputs import loading

# Beginnings and parts of the names of weights, there and here.
_NAMES = (
    ("model.embed_tokens.", "model.embedding."),
    ("model.layers.", "model.blocks."),
    (".self_attn.", ".attention.projections."),
    (".mlp.fc1.", ".mlp.up_proj."),
    (".mlp.fc2.", ".mlp.down_proj."),
)
# Fields of the configuration that mean the same in both.
_SAME = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "hidden_act", "tie_word_embeddings",
    "initializer_range", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip


def from_nanochat(source: NanoChatForCausalLM | str | Path) -> KernelGPTForCausalLM:
    """A model of transformers' nanochat as KernelGPT, with the same logits.

    Args:
        source: the model, which is left as it is; or the folder, or the name on the Hub, of its safetensors.

    Returns:
        KernelGPT with copies of the weights, in their dtype and on their device. Dropout of attention, which
        acts in training only, is not carried over.

    Raises:
        InputError: no such model, one of another type, or with biases in attention or scaled positions.

    >>> import torch
    >>> from transformers import NanoChatConfig, NanoChatForCausalLM
    >>> from nadaraya.models import from_nanochat
    >>> small = NanoChatConfig(
    ...     vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    ... )
    >>> there, tokens = NanoChatForCausalLM(small).eval(), torch.arange(20)[None]
    >>> here = from_nanochat(there)
    >>> torch.allclose(here(tokens).logits, there(tokens).logits, atol=1e-5)
    True
    """
    model = source if isinstance(source, NanoChatForCausalLM) else _loaded(source, NanoChatForCausalLM)
    config = model.config
    rope: Any = config.rope_parameters or {}
    _require(config, {"attention_bias": False})
    width = config.hidden_size // config.num_attention_heads
    if (head_dim := getattr(config, "head_dim", width)) != width:
        raise must_be("head_dim of the converted model", f"its width per head, {width}", head_dim)
    if rope.get("rope_type", "default") != "default":
        raise must_be("rope_type of the converted model", "'default'", rope["rope_type"])
    own = KernelGPTConfig(
        **{name: getattr(config, name) for name in _SAME},
        variant="rope",
        variant_options={"rotary_base": float(rope.get("rope_theta", 10_000.0))},
        norm="rmsnorm",
        norm_eps=config.rms_norm_eps,
        head_norm=True,
        head_norm_eps=config.rms_norm_eps,
        embedding_norm=True,
        logit_cap=config.final_logit_softcapping,
    )
    return _converted(KernelGPTForCausalLM, own, _moved(model, _NAMES, _neighbours), model)


def to_nanochat(source: KernelGPTForCausalLM | str | Path) -> NanoChatForCausalLM:
    """KernelGPT as a model of transformers' nanochat, with the same logits, which needs transformers alone.

    Args:
        source: the model, which is left as it is; or its folder, as a run's, or its name on the Hub. Of the
            family "nano-d20" it must be one without windows and value embeddings, which transformers' model
            has not: `KernelGPTConfig.preset("nano-d20", window_pattern=None, value_embeddings=None)`.

    Returns:
        The model with copies of the weights, in their dtype and on their device. Dropout, which acts in
        training only, is not carried over; nor is a padding token outside the vocabulary.

    Raises:
        InputError: no such model, or one with a part that nanochat has not, by name.

    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, to_nanochat
    >>> plain = {"window_pattern": None, "value_embeddings": None, "vocab_size": 50}
    >>> here = KernelGPTForCausalLM(KernelGPTConfig.preset("nano-d1", **plain))
    >>> to_nanochat(here).config.model_type
    'nanochat'
    """
    model = source if isinstance(source, KernelGPTForCausalLM) else _loaded(source, KernelGPTForCausalLM)
    config = model.config
    other = next((name for name in config.layer_variants if name != "rope"), None)
    if other is not None:
        raise must_be("variant of the converted model", "'rope'", other)
    if "sliding_attention" in (config.layer_types or []):
        raise must_be("window_pattern of the converted model", "None", config.window_pattern)
    _require(
        config,
        {
            "norm": "rmsnorm", "head_norm": True, "head_norm_eps": config.norm_eps, "embedding_norm": True,
            "bias": False, "value_embeddings": None, "short_convolution": None, "output_gate": False,
            "prune_tol": 0.0, "pruned_heads": None, "intermediate_sizes": None,
        },
    )  # fmt: skip
    fields = {name: getattr(config, name) for name in _SAME}
    fields["pad_token_id"] = _within(config.pad_token_id, config.vocab_size)
    base = (config.variant_options or {}).get("rotary_base", 10_000.0)
    theirs = NanoChatConfig(
        **fields,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": float(base)},
        final_logit_softcapping=config.logit_cap,
    )
    weights = _moved(model, [(here, there) for there, here in _NAMES], _halves)
    converted = _converted(NanoChatForCausalLM, theirs, weights, model)
    generation = converted.generation_config
    generation.pad_token_id = _within(generation.pad_token_id, config.vocab_size)
    return converted


def _loaded(source: str | Path, wanted: type[PreTrainedModel]) -> Any:
    """The model of a folder or name, if it is of the wanted type."""
    expected: Any = wanted.config_class
    model_type = expected.model_type
    with loading(source, f"a {model_type} model"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        config._attn_implementation = None  # what the file names could be code on the Hub
        if config.model_type == model_type:
            return wanted.from_pretrained(source, config=config, use_safetensors=True)
    raise must_be(f"model type of {source}", repr(model_type), config.model_type)


def _require(config: Any, fields: dict[str, Any]) -> None:
    """Refuses a configuration with another value of a field."""
    for name, accepted in fields.items():
        if getattr(config, name) != accepted:
            raise must_be(f"{name} of the converted model", repr(accepted), getattr(config, name))


def _converted(wanted: type[PreTrainedModel], config: Any, weights: dict[str, Tensor], model: Any) -> Any:
    """A model of these weights that is used as the given one is."""
    with no_init_weights(), model.device:
        made: Any = wanted(config).to(model.dtype)
    made.load_state_dict(weights)
    made.generation_config = copy.deepcopy(model.generation_config)
    return made.train(model.training)


def _moved(
    model: Any, names: Iterable[tuple[str, str]], turned: Callable[[Tensor, int], Tensor]
) -> dict[str, Tensor]:
    """The weights of a model by their names in the other, with the rows of W_Q and W_K turned."""
    weights, head_dim = {}, model.config.hidden_size // model.config.num_attention_heads
    for name, weight in model.state_dict().items():
        moved = turned(weight, head_dim) if name.endswith((".q_proj.weight", ".k_proj.weight")) else weight
        for before, after in names:
            name = name.replace(before, after)
        weights[name] = moved
    return weights


def _neighbours(weight: Tensor, head_dim: int) -> Tensor:
    """Rows p + d/2 and p of every head as rows 2p and 2p + 1."""
    halves = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return halves.flip(1).transpose(1, 2).reshape(weight.shape)


def _halves(weight: Tensor, head_dim: int) -> Tensor:
    """The opposite of `_neighbours`."""
    pairs = weight.view(-1, head_dim // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).flip(1).reshape(weight.shape)


def _within(token: int | None, vocab_size: int) -> int | None:
    return None if token is None or token >= vocab_size else token
