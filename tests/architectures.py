"""Every architecture of the installed transformers, built tiny from its own default configuration."""

import re
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TASKS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM")
VOCABULARY = 40
LAYERS = 2

# A number takes the size of the first pattern that its name has.
_SIZES: list[tuple[str, Any]] = [
    (r"(?<!type_)vocab_size|group_vocab$", VOCABULARY),
    (r"^(t2u_)?pad_(token_id|index)$|padding_idx", 0),
    (r"bos_(token_id|index)$|start_token_id|cls_token_id", 1),
    (r"eos_(token_id|index)$|sep_token_id", 2),
    (r"(token|_id|_index|eo[dc])(_id|_index)$", VOCABULARY - 1),
    (r"topk_blocks", 1), (r"index_topk", 3), (r"(?<!global_)block_size$", 4), (r"index_n_heads", 2),
    (r"rotary_dim", 4), (r"global_block_size|local_radius", 3),
    (r"(key_value|kv)_heads|num_key_heads", 2), (r"head_ratio|n_groups|num_groups|hidden_groups", 1),
    (r"mamba_d_head", 16), (r"qk_rope_head_dim", 4), (r"qk_head_dim", 12),
    (r"head_dim|head_size|dim_head|d_kv|d_head|kv_channels", 8),
    (r"heads?$|num_heads_per_layer", 4),
    (r"mtp|num_nextn|kv_shared_layers", 0),
    (r"(num|n|coder|hidden)_layers?(_per_stack)?$|num_blocks|encoder_layers|decoder_layers", LAYERS),
    (r"first_k_dense|num_dense_layers|moe_layer_start", 1),
    (r"sliding_window$|attention_chunk_size|window_size|keep_window|local_attention(_window_len)?$", 6),
    (r"experts_per_tok|top_?k$|moe_k$|cross_attn_k", 2), (r"n_group$|topk_group|expert_group", 1),
    (r"shared_experts$|zero_expert", 1), (r"(num|n|routed|local)_experts$", 4),
    (r"rank$|d_rel$", 8), (r"rel_extent", 6),
    (r"position|max_seq|n_ctx|context_length|max_len|model_max_length", 64),
    (r"image_size", 16), (r"patch_size", 4), (r"chunk_size$", 4),
    (r"state|d_conv|conv_kernel|conv_L_cache", 4),
    (r"intermediate|ffn_dim|ffn_hidden|d_ff|dff|n_inner|ff_dim|dim_ff|d_inner|inner_dim|mlp_dim|mlp$", 32),
    (r"hidden_size|d_model|n_embd|embed|emb_dim|hidden_dim|model_dim|lru_width|^dim$|dim_model_base", 32),
]  # fmt: skip
_KEPT = (
    r"chunk_size_feed_forward|multiplier|drop|^num_labels|scal|type_vocab|buckets|initializer|_std|eps"
    r"|altup_num|interval|is_|use_"
)

# What no rule by names finds.
_GIVEN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"num_hidden_layers": LAYERS},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "convbert": {"conv_kernel_size": 3},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8}},
    "dots3_note_text": {
        "layer_types": ["sliding_attention", "indexed_attention", "indexed_attention"], "head_dim": 12,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_q_lora_rank": 8, "use_dsa": True,
        "swa_kv_lora_rank": 8, "swa_qk_nope_head_dim": 8, "swa_qk_rope_head_dim": 4, "swa_v_head_dim": 8,
        "swa_head_dim": 12, "sliding_window": 6,
    },
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0, "mask_token_id": VOCABULARY - 1},
    "esmc": {"num_key_value_heads": 4},
    **{
        kind: {
            "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
        }
        for kind in ("gemma3n_text", "gemma4_text", "gemma4_unified_text")
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_hidden_layers": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"head_dim": 16},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "mobilebert": {"intra_bottleneck_size": 32},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "nystromformer": {"conv_kernel_size": 3},
    "nemotron": {"num_key_value_heads": 2},
    "perceiver": {"d_latents": 32, "num_latents": 4},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4,
        "attention_hidden_size": 64, "attention_head_dim": 16,
    },
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16},
}  # fmt: skip


def architectures() -> dict[str, str]:
    """The type of the configuration by the name of every model class; of several, that of texts alone."""
    found = {"MistralLarge4ForConditionalGeneration": "mistral_large4"}  # indices, in no other mapping
    for task in TASKS:
        for kind, names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            name = names if isinstance(names, str) else names[0]
            if name not in found or kind.endswith("_text"):
                found[name] = kind
    return found


def build(name: str) -> PreTrainedModel:
    """A tiny model with eager attention, in evaluation, every parameter away from zero."""
    model_class = getattr(transformers, name)
    config = tiny_config(CONFIG_MAPPING[architectures()[name]])
    if not isinstance(config, model_class.config_class):
        config = config.decoder if hasattr(config, "decoder") else config.get_text_config()
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter += 0.05 * torch.randn_like(parameter)
    return model


def tiny_config(kind: type[PreTrainedConfig]) -> PreTrainedConfig:
    """A configuration with every size small."""
    return kind(**_tiny(kind()))


def _tiny(default: PreTrainedConfig) -> dict[str, Any]:
    before = {name: value for name, value in vars(default).items() if not name.startswith("_")}
    count = next((before[name] for name in _DEPTHS if isinstance(before.get(name), int)), 0)
    lists = {name: each for name, each in before.items() if isinstance(each, list) and len(each) == count > 1}
    kept = _one_of_each(list(lists.values()), count)
    values: dict[str, Any] = {}
    for name, value in before.items():
        if isinstance(value, PreTrainedConfig):
            values[name] = type(value)(**_tiny(value))
        elif name in lists:
            values[name] = [_size(name, value[layer]) for layer in kept]
        elif name.startswith("rope_") and isinstance(value, dict):
            values[name] = _rope(value)
        elif name == "initializer_range":
            values[name] = 0.2
        elif (
            name in ("head_dim", "n_routed_experts", "n_shared_experts", "num_experts_per_tok")
            and value is None
        ):
            values[name] = _size(name, 999)
        elif (small := _size(name, value)) != value:
            values[name] = small
    for name in _DEPTHS:
        if lists and name in values:
            values[name] = len(kept)
    if before.get("head_dim") is not None and before["head_dim"] == before.get("qk_rope_head_dim"):
        values["head_dim"] = values["qk_rope_head_dim"]  # of rotations alone
    if "kv_lora_rank" in before and "num_key_value_heads" in before:
        values["num_key_value_heads"] = values["num_attention_heads"]
    return values | _GIVEN.get(default.model_type, {})


_DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


def _one_of_each(columns: list[list[Any]], count: int) -> list[int]:
    """The first layer of each kind, up to four, and at least two layers."""
    rows = [str([column[layer] for column in columns]) for layer in range(count)]
    first = [layer for layer, row in enumerate(rows) if row not in rows[:layer]][:4]
    return first if len(first) > 1 else list(range(min(LAYERS, count)))


def _size(name: str, value: Any) -> Any:
    named = "token" in name or "index" in name
    if not isinstance(value, int) or isinstance(value, bool) or re.search(_KEPT, name):
        return value
    if not value and not named:
        return value
    small = next((small for pattern, small in _SIZES if re.search(pattern, name)), value)
    return small if value < 0 or value > small or named else value


def _rope(value: dict[str, Any]) -> dict[str, Any]:
    changed = dict(value)
    for name, each in value.items():
        if isinstance(each, dict):
            changed[name] = _rope(each)
        elif name == "mrope_section":
            changed[name] = [2, 1, 1]
        elif name in ("short_factor", "long_factor"):
            changed[name] = each[:4]
        elif name == "partial_rotary_factor":
            changed[name] = max(each, 0.5)
    return changed
