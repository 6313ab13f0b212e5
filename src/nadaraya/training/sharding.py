"""Models whose weights, gradients and optimizer state the processes share out (PyTorch's FSDP2).

What takes seconds to import is imported where it is used.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from nadaraya.errors import must_be


def shard_model(model: nn.Module, device: torch.device) -> None:
    """Give each process its part of every parameter, on the device; all must have the same weights before.

    A block is whole while it computes. Buffers are whole in every process.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    blocks = repeated_blocks(model)
    places = Counter(parameter for block in blocks for parameter in block.parameters())
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    refused = f"with the scalar parameter {scalars[0]}" if scalars else ""
    if any(count > 1 for count in places.values()):
        refused = "whose layers share a bank of kernels"
    if refused:
        raise must_be("recipe key training.parallel", f"ddp for a model {refused}", "fsdp")
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model of transformers."""
    names = getattr(model, "_no_split_modules", None) or ()
    return [module for module in model.modules() if type(module).__name__ in names]


def is_sharded(module: nn.Module) -> bool:
    """Whether `shard_model` shared the parameters of a module out."""
    return hasattr(module, "unshard")


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all processes, which must all ask for it."""
    complete: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return complete


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Let each process use the model as often as it likes, without the others: all have all weights."""
    parts: list[Any] = [module for module in model.modules() if is_sharded(module)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not model, recurse=False)


def gather_weights(model: nn.Module, target: nn.Module) -> None:
    """Copy the weights of a sharded model into `target` in the main process; all processes call it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if state:  # in the main process alone
        target.load_state_dict(state)
