"""Tiny models of transformers with random weights, large enough that every part of the attention is felt."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.inkling import InklingForCausalLM
from transformers.models.inkling.configuration_inkling import InklingTextConfig
from transformers.models.inkling2 import Inkling2ForCausalLM
from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig

VOCABULARY = 29

_TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED: dict[str, Any] = {
    **_TOKENS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3,
}  # fmt: skip
_BUCKETS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0,
    "initializer_factor": 3.0,
}  # fmt: skip
_MIXED: dict[str, Any] = {
    **_TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8,
    "sliding_window_size": 5, "d_rel": 3, "rel_extent": 6, "layer_types": ["hybrid_sliding", "hybrid"],
    "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "log_scaling_n_floor": 3,
    "log_scaling_alpha": 0.5, "unpadded_vocab_size": VOCABULARY, "initializer_range": 0.4,
}  # fmt: skip
_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED)),
    "llama4": lambda: Llama4ForCausalLM(
        Llama4TextConfig(
            **_GROUPED,
            intermediate_size_mlp=16,
            attention_chunk_size=6,
            num_local_experts=2,
            layer_types=["chunked_attention", "full_attention"],
        )
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_GROUPED)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_GROUPED, sliding_window=5)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**_GROUPED, sliding_window=5, query_pre_attn_scalar=8, attn_logit_softcapping=0.7)
    ),
    "gpt-oss": lambda: GptOssForCausalLM(
        GptOssConfig(**_GROUPED, sliding_window=5, num_local_experts=2, num_experts_per_tok=1)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(**_TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3)
    ),
    "bert": lambda: BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, initializer_range=0.3,
        )
    ),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**_BUCKETS)),
    "mt5": lambda: MT5ForConditionalGeneration(MT5Config(**_BUCKETS)),
    "switch": lambda: SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(
            **_BUCKETS, num_decoder_layers=2, num_experts=2, num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
        )
    ),
    "inkling": lambda: InklingForCausalLM(
        InklingTextConfig(
            **_MIXED, intermediate_size=16, n_shared_experts=1, mlp_layer_types=["dense", "sparse"]
        )
    ),
    "inkling2": lambda: Inkling2ForCausalLM(Inkling2TextConfig(**_MIXED, n_layers_per_attn_res_block=1)),
}  # fmt: skip
CAUSAL = ("llama", "llama4", "qwen3", "mistral", "gemma2", "gpt-oss", "gpt2")
RELATIVE = ("t5", "mt5", "switch", "inkling", "inkling2")
ENCODER_DECODERS = ("t5", "mt5", "switch")
ALL = (*CAUSAL, "bert", *RELATIVE)


def make(name: str) -> PreTrainedModel:
    """The model, with the library's eager attention, in evaluation, every parameter away from zero."""
    torch.manual_seed(0)
    model = _MODELS[name]().eval()
    model.set_attn_implementation("eager")
    if name in ENCODER_DECODERS:  # the others round the weights to float32 themselves
        model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def some_tokens(length: int = 17, batch: int = 2, seed: int = 1) -> torch.Tensor:
    """(batch, length) without the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def padded(side: str, length: int = 17) -> torch.Tensor | None:
    """(2, length) 1 where there is a token; the first of two texts has four tokens less."""
    mask = torch.ones(2, length, dtype=torch.long)
    if side == "none":
        return None
    mask[0, slice(4) if side == "left" else slice(-4, None)] = 0
    return mask


def logits_and_gradients(
    model: PreTrainedModel, mask: torch.Tensor | None = None, **inputs: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits where there are tokens, and the gradient of a weighted sum of them for every parameter."""
    if model.config.is_encoder_decoder:
        inputs = {"decoder_input_ids": some_tokens(seed=2), "decoder_attention_mask": mask, **inputs}
    logits = model(some_tokens(), attention_mask=mask, **inputs).logits
    logits = logits if mask is None else logits[mask.bool()]
    model.zero_grad()
    (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    gradients = {
        name.removeprefix("_orig_mod."): parameter.grad.clone()  # the prefix is that of compiled models
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return logits.detach(), gradients


def assert_close(
    got: tuple[torch.Tensor, dict[str, torch.Tensor]], want: tuple[torch.Tensor, dict[str, torch.Tensor]]
) -> None:
    """Equal but for rounding of float32."""
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5 * want[0].abs().max().item())
    assert got[1].keys() == want[1].keys()
    # Some gradients are 0 but for rounding, as of a bias of keys: that of the others is their scale.
    rounding = 1e-6 * max(gradient.abs().max().item() for gradient in want[1].values())
    for name, gradient in want[1].items():
        atol = 1e-4 * gradient.abs().max().item() + rounding
        torch.testing.assert_close(
            got[1][name], gradient, rtol=1e-3, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def shaken(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def open_gates(adapter: nn.Module) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += torch.randn_like(parameter).to(parameter) * 0.5
