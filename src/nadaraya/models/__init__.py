"""Models on the operator: language models of transformers (`models` extra), timm's vision models (`vision`).

Where transformers is installed, importing this registers the language models with its Auto classes, and
`attn_implementation="nadaraya"` for its own models; `nadaraya.models.vit` needs timm alone.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadaraya.models.attach import attach_attention, register_attention
    from nadaraya.models.gpt import KernelGPTConfig, KernelGPTForCausalLM, KernelGPTModel

__all__ = [
    "KernelGPTConfig",
    "KernelGPTForCausalLM",
    "KernelGPTModel",
    "attach_attention",
    "register_attention",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "attach" if name.endswith("_attention") else "gpt"
        return getattr(import_module(f"nadaraya.models.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Auto classes take classes, not names to be loaded later. An ImportError comes again from `__getattr__`.
with suppress(ImportError):
    import_module("nadaraya.models.attach").register_attention()
with suppress(ImportError):
    import_module("nadaraya.models.gpt")
