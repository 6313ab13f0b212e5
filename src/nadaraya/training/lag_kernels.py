"""The lag kernels of a language model, read from its weights without building it, which takes seconds."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from safetensors.torch import load_file

from nadaraya.attention import variants
from nadaraya.attention.projections import LayerShape
from nadaraya.files import reading
from nadaraya.kernels import Kernel
from nadaraya.kernels.bank import shared_by_layers
from nadaraya.kernels.heads import keep_kernel_heads
from nadaraya.stored import Stored, read_stored


class _Configuration(Stored):
    """What config.json says of the kernels of a model."""

    variant: str | list[str]
    variant_options: dict[str, Any] | None = None
    num_hidden_layers: Annotated[int, Field(gt=0, le=4096)]
    num_attention_heads: Annotated[int, Field(gt=0, le=2**20)]
    hidden_size: Annotated[int, Field(gt=0, le=2**20)]
    pruned_heads: dict[str, list[int]] | None = None


def read_lag_kernels(path: Path, configuration: Path) -> list[tuple[int, Kernel]]:
    """Layer index and kernel of every layer whose position is a kernel of the lag.

    Args:
        path: the weights of the model, or of its kernels alone.
        configuration: the config.json of the model.
    """
    config = read_stored(configuration, _Configuration, "the configuration of a model")
    heads = config.num_attention_heads
    shape = LayerShape(config.hidden_size, heads, heads)
    layers = variants.by_layer(config.variant, config.num_hidden_layers, config.variant_options)
    pruned = config.pruned_heads or {}
    kernels, first = [], dict[str, int]()
    with reading(path, "the kernels of this run"):
        values = load_file(path)
        for layer, (variant, options) in enumerate(layers):
            kernel = options["position"](shape) if "position" in options else None
            if isinstance(kernel, Kernel):
                removed = pruned.get(str(layer), ())
                keep_kernel_heads(kernel, [head for head in range(heads) if head not in removed])
                source, shared = first.setdefault(variant, layer), set(shared_by_layers(kernel))
                for part, tensor in kernel.named_parameters():
                    block = source if part in shared else layer
                    tensor.data.copy_(values[f"model.blocks.{block}.attention.position.{part}"])
                kernels.append((layer, kernel))
    return kernels
