"""Models on the operator: language models of transformers (`models` extra), timm's vision models (`vision`).

Importing this registers the language models with transformers' Auto classes, where transformers is installed;
`nadaraya.models.vit` needs timm alone.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadaraya.models.gpt import KernelGPTConfig, KernelGPTForCausalLM, KernelGPTModel

__all__ = ["KernelGPTConfig", "KernelGPTForCausalLM", "KernelGPTModel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("nadaraya.models.gpt"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Auto classes take classes, not names to be loaded later. An ImportError comes again from `__getattr__`.
with suppress(ImportError):
    import_module("nadaraya.models.gpt")
