"""Whether a run can fit in memory, counted before anything is allocated; and the reuse of freed memory."""

import ctypes
import os
from typing import TYPE_CHECKING

import torch
from torch import nn

from nadaraya.errors import InputError
from nadaraya.kernels.bank import shared_by_layers

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTConfig
    from nadaraya.training.image_recipe import ImageRecipe
    from nadaraya.training.recipe import Recipe

# mallopt's names for two thresholds of glibc, and the highest values that it takes.
_GLIBC_THRESHOLDS = {-3: 2**25, -1: 2**31 - 1}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
STATE_BYTES = 16  # per parameter in training: weight, gradient and AdamW's two averages, in float32


def machine_memory(device: str = "cpu") -> int:
    """Bytes of memory of this machine, or in all of its GPU's for "cuda"."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties("cuda").total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(what: str, needed: int, smaller: str, device: str = "cpu") -> None:
    """Refuse what needs more memory than there is.

    Args:
        what: what needs it.
        needed: bytes, at the least.
        smaller: the recipe keys that make it smaller.
        device: "cpu" or "cuda".

    Raises:
        InputError: there is not so much.
    """
    there = machine_memory(device)
    if needed > there:
        raise InputError(
            f"{what} needs at least {size(needed)} of memory, this machine has {size(there)}: "
            f"reduce {smaller}"
        )


def reuse_freed_memory() -> None:
    """Let glibc keep tensors of up to 32 MiB that are freed, for the next ones.

    By default it gives large freed blocks back to the system, which then clears every page anew for the
    activations of the next update. Nothing is done without glibc, or where the environment sets thresholds.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for threshold, highest in _GLIBC_THRESHOLDS.items():
            mallopt(threshold, highest)


def size(count: int) -> str:
    """Bytes as people read them: 3.2 GB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def count_parameters(config: "KernelGPTConfig", layers: int) -> int:
    """Parameters of a language model of so many layers, whose variants repeat as in `config`."""
    from nadaraya.models import KernelGPTForCausalLM

    with torch.device("meta"):
        model = KernelGPTForCausalLM(config)
    blocks: list[nn.Module] = list(model.model.blocks)
    shared = [set(shared_by_layers(block)) for block in blocks]  # counted once, with the rest
    by_layer = [
        sum(parameter.numel() for name, parameter in block.named_parameters() if name not in names)
        for block, names in zip(blocks, shared, strict=True)
    ]
    return _count(model) - sum(by_layer) + sum(by_layer[i % len(blocks)] for i in range(layers))


def text_training_bytes(recipe: "Recipe", parameters: int, vocab_size: int) -> int:
    """What training takes at the least: the state of the optimizer, a batch, and what its pieces keep."""
    training, context = recipe.training, recipe.data.context
    share = training.batch_size // (training.gradient_accumulation * _processes()) or 1
    piece = training.micro_batch_size or share
    # Kept for the backward pass: the inputs of the linear layers and of the activation, and the logits.
    model = recipe.model
    blocks = 1 if training.activation_checkpointing else model.num_hidden_layers
    kept = 2 * 12 * blocks * model.hidden_size + 4 * vocab_size
    state = STATE_BYTES * parameters // (_processes() if training.sharded else 1)
    return state + 8 * training.batch_size * context + piece * context * kept


def image_batch_bytes(recipe: "ImageRecipe", channels: int) -> int:
    """What the images of one update take at the least in a process, in float32."""
    images = recipe.training.batch_size // _processes() or 1
    return 4 * images * channels * recipe.model.image_size**2


def training_device() -> str:
    """Where training computes: a GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
