"""Models on the operator: language models of transformers (`models` extra), timm's vision models (`vision`).

Where transformers is installed, importing this registers the language models with its Auto classes, and
`attn_implementation="nadaraya"` for its own models; `nadaraya.models.vit` needs timm alone.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadaraya.models.attach import attach_attention, register_attention
    from nadaraya.models.extending import extend_context
    from nadaraya.models.feed_forward import prune_units
    from nadaraya.models.gpt import KernelGPTConfig, KernelGPTForCausalLM, KernelGPTModel
    from nadaraya.models.kernel_bank import KernelBankAdapter, attach_kernel_bank
    from nadaraya.models.nanochat import from_nanochat, to_nanochat
    from nadaraya.models.pruning import load_pruned, prune_heads
    from nadaraya.models.replacing import replace_attention

__all__ = [
    "KernelBankAdapter",
    "KernelGPTConfig",
    "KernelGPTForCausalLM",
    "KernelGPTModel",
    "attach_attention",
    "attach_kernel_bank",
    "extend_context",
    "from_nanochat",
    "load_pruned",
    "prune_heads",
    "prune_units",
    "register_attention",
    "replace_attention",
    "to_nanochat",
]
_HOMES = {
    "KernelBankAdapter": "kernel_bank",
    "attach_attention": "attach",
    "attach_kernel_bank": "kernel_bank",
    "extend_context": "extending",
    "from_nanochat": "nanochat",
    "load_pruned": "pruning",
    "prune_heads": "pruning",
    "prune_units": "feed_forward",
    "register_attention": "attach",
    "replace_attention": "replacing",
    "to_nanochat": "nanochat",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"nadaraya.models.{_HOMES.get(name, 'gpt')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Auto classes take classes, not names to be loaded later. An ImportError comes again from `__getattr__`.
with suppress(ImportError):
    import_module("nadaraya.models.attach").register_attention()
with suppress(ImportError):
    import_module("nadaraya.models.gpt")
