"""Attention as kernel regression: one operator, explicit kernels, everything around it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nadaraya.errors import InputError

if TYPE_CHECKING:
    from nadaraya.attention import variants
    from nadaraya.attention.functional import kernel_attention
    from nadaraya.attention.layer import KernelSelfAttention

__version__ = "0.1.0"
__all__ = ["InputError", "KernelSelfAttention", "__version__", "kernel_attention", "variants"]
# Imported when they are asked for: the help of the command line needs no torch.
_LATER = {
    "KernelSelfAttention": "nadaraya.attention.layer",
    "kernel_attention": "nadaraya.attention.functional",
    "variants": "nadaraya.attention",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LATER[name])
    value = import_module(f"{module.__name__}.variants") if name == "variants" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
