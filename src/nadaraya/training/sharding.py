"""Models whose weights, gradients and optimizer state the processes share out (PyTorch's FSDP2).

Checkpoints have one file per process, written by `torch.distributed.checkpoint` as safetensors with JSON
inside: nothing is pickled, and any number of processes reads them. What takes seconds to import is imported
where it is used.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from nadaraya.errors import InputError, must_be


def shard_model(model: nn.Module, device: torch.device) -> None:
    """Give each process its part of every parameter, on the device; all must have the same weights before.

    A block is whole while it computes. Buffers are whole in every process.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise must_be(
            "recipe key training.parallel", f"ddp for a model with the scalar parameter {scalars[0]}", "fsdp"
        )
    blocks = repeated_blocks(model)
    places = Counter(parameter for block in blocks for parameter in block.parameters())
    if any(count > 1 for count in places.values()):
        raise must_be(
            "recipe key training.parallel", "ddp for a model whose layers share a bank of kernels", "fsdp"
        )
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


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write each process's part of the tensors into a folder, all processes together."""
    from torch.distributed import checkpoint as sharded

    writer = sharded.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _first_failure():
        sharded.save(tensors, storage_writer=writer)


def read_tensors(folder: Path, targets: dict[str, Tensor], optimized: dict[str, Tensor]) -> dict[str, Tensor]:
    """Read the safetensors of a folder, whole or in parts, as this process needs them.

    Args:
        folder: of a checkpoint.
        targets: the model's tensors, filled in place; of several names for one tensor one is in the files.
        optimized: the parameters; what the files have for them, keyed `KIND/PARAMETER NAME`, is returned.
    """
    from torch.distributed import checkpoint as sharded

    reader = sharded.HuggingFaceStorageReader(str(folder))
    found: dict[str, Any] = reader.read_metadata().state_dict_metadata
    state = {}
    for key, described in found.items():
        kind, slash, name = key.partition("/")
        if slash:  # AdamW's count of updates is one number, all else has the parameter's shape
            state[key] = torch.zeros(described.size) if kind == "step" else torch.zeros_like(optimized[name])
    wanted = {name: tensor for name, tensor in targets.items() if name in found}
    missing = {id(tensor) for tensor in targets.values()} - {id(tensor) for tensor in wanted.values()}
    shapes = {name: tuple(found[name].size) for name in wanted}
    if missing or any(shapes[name] != tuple(tensor.shape) for name, tensor in wanted.items()):
        raise InputError(f"{folder} has not the weights of this model")
    alone = not distributed.is_initialized()
    with _first_failure(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it is meant to be
        sharded.load({**wanted, **state}, storage_reader=reader, no_dist=alone)
    return state


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise what went wrong in one of the processes in place of a report on all of them."""
    from torch.distributed import checkpoint as sharded

    try:
        yield
    except sharded.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error
