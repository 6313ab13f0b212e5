"""Language models of a few thousand parameters, and windows of random tokens for them."""

from typing import Any

import torch
from causal_variants import causal_options

from nadaraya.interpret.windows import Windows
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

VOCABULARY = 11


def in_enough_digits(model: KernelGPTForCausalLM) -> KernelGPTForCausalLM:
    """The model, in float64 where it solves for lines of which float32 keeps but three digits."""
    return model.double() if "local-linear" in model.config.layer_variants else model


def small_model(**changes: Any) -> KernelGPTForCausalLM:
    """A model in eval mode, the same every time; `changes` are fields of its configuration."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    options = {"variant_options": causal_options(changes.get("variant"))}
    config = KernelGPTConfig(**{**sizes, **options, **changes})
    return in_enough_digits(KernelGPTForCausalLM(config).eval())


def moved(model: KernelGPTForCausalLM) -> KernelGPTForCausalLM:
    """The model with every parameter off its start."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def random_windows(count: int = 3, length: int = 12) -> Windows:
    """Windows of random tokens, the same every time."""
    text = torch.randint(VOCABULARY, (count, length + 1), generator=torch.Generator().manual_seed(1))
    return Windows(text[:, :-1], text[:, 1:])
