"""Costs of a model: parameters by part, operations of the running model, size of its weights."""

import copy
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log2, prod
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.serialization import skip_data
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from nadaraya.errors import InputError
from nadaraya.files import first_line

if TYPE_CHECKING:
    from nadaraya.attention.layer import KernelSelfAttention
    from nadaraya.models import KernelGPTForCausalLM


@dataclass(frozen=True)
class ModelCost:
    """Counts of one language model; parameters that two modules share are counted once."""

    parameters: int
    value_embedding_parameters: int  # tables of what tokens add to the values, with their factors
    attention_parameters: int  # projections, lag kernels and bandwidths
    mlp_parameters: int
    kernel_parameters: int  # lag kernels, bandwidths and learned angles alone
    flops_per_token: float  # forward, 2 × multiply-adds, at full context
    training_flops_per_token: int  # by the formula of `training_flops`
    context: int
    weight_bytes: int


@dataclass(frozen=True)
class ImageModelCost:
    """Counts of one image model, those of Kundu et al. (2026), tables 2, 3 and 5."""

    parameters: int
    attention_parameters: int  # within attention modules, bandwidths and kernels of lags included
    mlp_parameters: int
    kernel_parameters: int  # bandwidths and kernels of lags alone
    flops_per_image: int  # forward of one image, 2 × multiply-adds
    image_shape: tuple[int, int, int]  # channels, rows, columns
    weight_bytes: int
    checkpoint_bytes: int  # the file that torch.save makes of the state dictionary


def model_cost(model: "KernelGPTForCausalLM", context: int | None = None) -> ModelCost:
    """Count a language model's parameters, operations and bytes.

    Operations are counted by PyTorch's counter over one forward pass of the model's own code, without
    computing it; attention counts every pair of tokens, seen or masked, as is usual, and where content
    factorises what the operator's form for that length takes. Short convolutions, of which the counter knows
    nothing, have 2 K per channel; a Fourier transform of n real numbers 2.5 n log₂ n.

    Args:
        model: the model; it is left as it is.
        context: tokens of the counted sequence; default the model's own context.

    Returns:
        The counts.
    """
    from nadaraya.models import KernelGPTForCausalLM

    context = model.config.max_position_embeddings if context is None else context
    with torch.device("meta"):
        shape_only = KernelGPTForCausalLM(model.config).eval()
        tokens = torch.zeros((1, context), dtype=torch.long)
    convolutions = 2 * _count(_outermost(shape_only, ("ShortConvolution",)))
    with (counter := flop_counter()), torch.no_grad():
        shape_only(tokens, use_cache=False)
    return ModelCost(
        **_counts(model),
        value_embedding_parameters=_count(_outermost(model, ("ValueEmbedding",))),
        flops_per_token=counter.get_total_flops() / context + convolutions,
        training_flops_per_token=training_flops(model, context),
        context=context,
    )


def training_flops(model: "KernelGPTForCausalLM", context: int) -> int:
    """Operations of a training update per token, 6 P + 12 Σ_layers H d min(window, context).

    The estimate of Kundu et al. (2026), table 8: forward and backward, with P the weights of linear
    maps, the output layer included (embeddings are looked up), and a layer's window for all of its tokens.
    H d, heads times their width, is the width D of the model, less where heads were removed. Kernels of the
    lag are not in it. Layers whose content factorises and local lines have no such formula: what is counted
    of their forward pass, three times.

    Args:
        model: the model.
        context: tokens of a sequence.

    Returns:
        FLOPs, 2 × multiply-adds.
    """
    from nadaraya.attention.caching import factorises
    from nadaraya.attention.layer import KernelSelfAttention

    modules = list(model.modules())
    matrices = sum(module.weight.numel() for module in modules if isinstance(module, nn.Linear))
    layers = [module for module in modules if isinstance(module, KernelSelfAttention)]
    others = {place for place, layer in enumerate(layers) if factorises(layer.content) or layer.degree}
    pairs = sum(
        layer.projections.o_proj.in_features * min(layer.window or context, context)
        for place, layer in enumerate(layers)
        if place not in others
    )
    counted = 0.0
    if others:
        with torch.device("meta"):
            shape_only = type(model)(model.config).eval()
        made = [module for module in shape_only.modules() if isinstance(module, KernelSelfAttention)]
        counted = sum(_without_linear_maps(made[place], context) for place in others)
    return 6 * matrices + 12 * pairs + round(3 * counted)


def _without_linear_maps(layer: "KernelSelfAttention", context: int) -> float:
    """Operations of a layer on "meta" per token, forward, but for those of its linear maps."""
    linear = sum(module.weight.numel() for module in layer.modules() if isinstance(module, nn.Linear))
    with (counter := flop_counter()), torch.no_grad():
        layer(torch.zeros((1, context, layer.dim), device="meta"))
    return counter.get_total_flops() / context - 2 * linear


def image_model_cost(model: nn.Module, image_size: int | None = None) -> ImageModelCost:
    """Count an image model's parameters, operations and bytes.

    Operations are those of matrix products and convolutions, patch embedding and classifier included, in one
    forward pass of the model's own code over one image, without computing it. Norms, activations, softmax and
    exponentials are not counted, nor are they in the tables of Kundu et al. (2026).

    Args:
        model: a model of timm, on any device, "meta" included; it is left as it is.
        image_size: pixels per side of the counted image; default the model's own.

    Returns:
        The counts.

    Raises:
        InputError: the model does not take images of that size.
    """
    from nadaraya.models.vit.factory import image_shape

    shape = image_shape(model, image_size)
    shape_only = copy.deepcopy(model).to("meta").eval()
    image = torch.zeros((1, *shape), dtype=next(model.parameters()).dtype, device="meta")
    try:
        with (counter := flop_counter()), torch.no_grad():
            shape_only(image)
    except (AssertionError, RuntimeError, ValueError) as error:
        size = f"{shape[1]} × {shape[2]}"
        raise InputError(f"the model does not take images of {size}: {first_line(error)}") from error
    return ImageModelCost(
        **_counts(model),
        flops_per_image=counter.get_total_flops(),
        image_shape=shape,
        checkpoint_bytes=_checkpoint_bytes(model),
    )


def _counts(model: nn.Module) -> dict[str, int]:
    """Counts that language and image models have in common."""
    kernels = getattr(model, "kernel_parameters", tuple)
    return {
        "parameters": _count([model]),
        "attention_parameters": _count(_outermost(model, ("Attention", "Attn"), "Pool")),
        "mlp_parameters": _count(_outermost(model, ("Mlp", "MLP", "SwiGLU"), "Mixer")),
        "kernel_parameters": sum(parameter.numel() for _, parameter in kernels()),
        "weight_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
    }


def _outermost(model: nn.Module, words: tuple[str, ...], without: str = " ") -> Iterator[nn.Module]:
    """The outermost modules whose class has one of the words in its name, and not the other one."""
    for child in model.children():
        name = type(child).__name__
        if any(word in name for word in words) and without not in name:
            yield child
        else:
            yield from _outermost(child, words, without)


def _count(modules: Iterable[nn.Module]) -> int:
    return sum(parameter.numel() for parameter in nn.ModuleList(modules).parameters())


def _checkpoint_bytes(model: nn.Module) -> int:
    """Bytes that torch.save writes of the state dictionary; they do not depend on the values."""
    state = model.state_dict(keep_vars=True)  # an attribute of it, the modules' versions, is written too
    # Tensors that two names share are written once; those on "meta" could not be written.
    blank = {id(tensor): torch.empty_like(tensor, device="cpu") for tensor in state.values()}
    state.update({name: blank[id(tensor)] for name, tensor in state.items()})
    with TemporaryFile() as file, skip_data():
        torch.save(state, file)
        return file.seek(0, os.SEEK_END)


def flop_counter() -> FlopCounterMode:
    """PyTorch's counter, with the attention operators that it does not know in every release."""

    def formula(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
        return sdpa_flop_count(query, key, value)

    def of_mixed(
        query: Any, key: Any, value: Any, scale: Any, weights: Any, table: Any, *args: Any, **kwargs: Any
    ) -> int:
        """With the logits by lag of every query: its M weights times M profiles, at all their lags."""
        batch, heads, num_queries, num_terms = weights
        return sdpa_flop_count(query, key, value) + 2 * batch * heads * num_queries * num_terms * table[2]

    def of_transforms(numbers: Any, *args: Any, out_shape: Any, **kwargs: Any) -> int:
        """Of real numbers, as many as the longer side has."""
        axes = args[0]
        real = max((numbers, out_shape), key=prod)
        return round(2.5 * prod(real) * log2(max(1, prod(real[axis] for axis in axes))))

    formulas: dict[Any, Any] = {
        torch.ops.nadaraya.blocked_attention: formula,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: formula,
        torch.ops.nadaraya.mixed_attention: of_mixed,
        torch.ops.aten._fft_r2c: of_transforms,
        torch.ops.aten._fft_c2r: of_transforms,
    }
    return FlopCounterMode(display=False, custom_mapping=formulas)
