"""The processes of one run: one, or several that a launcher started (`torchrun`, `accelerate launch`).

They have the whole model each, or share its weights, gradients and optimizer state out (PyTorch's FSDP2).
What takes seconds to import is imported where it is used.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor, distributed, nn

from nadaraya.device import reuse_freed_memory
from nadaraya.errors import InputError, must_be

# How long the others wait while the main process writes or predicts by itself.
_PATIENCE = timedelta(hours=2)
_T = TypeVar("_T")


def is_main_process() -> bool:
    """Return whether this process is the one of its run that writes and speaks, as without a launcher."""
    return int(os.environ.get("RANK", 0)) == 0


class Processes:
    """This process, number `rank` of `count`, among those of the run: its device, and what they agree on.

    The main process writes the run folder and speaks.
    """

    def __init__(self) -> None:
        for engine in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
            if os.environ.get(f"ACCELERATE_USE_{engine}", "false").lower() == "true":
                raise InputError(
                    f"accelerate is configured for {engine}: launch without it; training.parallel=fsdp "
                    "shares the weights out"
                )
        self._accelerator = Accelerator(
            cpu=not torch.cuda.is_available(),
            mixed_precision="no",  # the recipe says it and what is compiled, not the launcher
            dynamo_backend="no",
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        )
        self.rank, self.count = self._accelerator.process_index, self._accelerator.num_processes
        self.is_main_process: bool = self._accelerator.is_main_process
        self.device: torch.device = self._accelerator.device
        if self.device.type == "cpu":
            reuse_freed_memory()
        self._control: Any = None
        if self.count > 1:  # on the CPU: what is agreed here must not wait for a GPU's queue
            self._control = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def prepare(self, network: nn.Module) -> Any:
        """Move a model to the device, in place; with several processes, let them average its gradients."""
        return self._accelerator.prepare(network)

    def backward(self, loss: Tensor, network: nn.Module, more: bool) -> None:
        """Add the gradients of a loss; `more` says that the update has further pieces."""
        if is_sharded(network):
            parts: Any = network
            parts.set_requires_gradient_sync(not more)
        with self._accelerator.no_sync(network) if more else contextlib.nullcontext():
            self._accelerator.backward(loss)

    def clip(self, model: nn.Module, limit: float | None) -> Tensor:
        """The norm of all gradients, which are scaled down to `limit` where they exceed it."""
        return whole(self._accelerator.clip_grad_norm_(model.parameters(), limit or float("inf")))

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the processes, elementwise."""
        return self._accelerator.reduce(values, "mean")

    def total(self, value: float) -> float:
        """The sum of a number over the processes, in float64."""
        number = torch.tensor(value, dtype=torch.float64, device=self.device)
        return float(self._accelerator.reduce(number, "sum"))

    def greatest(self, number: int) -> int:
        """The greatest of a number over the processes; waits for them, not for their devices."""
        if self.count == 1:
            return number
        numbers = torch.tensor(number)
        distributed.all_reduce(numbers, distributed.ReduceOp.MAX, group=self._control)
        return int(numbers)

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Report a lost process, which ends the run, in one line on every rank that is left."""
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not (isinstance(error, distributed.DistError) or "gloo" in str(error)):
                raise
            raise InputError(
                f"process {self.rank} of {self.count} cannot reach another one, which was killed or lost its "
                "connection: run the same command again to go on from the newest checkpoint"
            ) from error

    @contextlib.contextmanager
    def barrier(self) -> Iterator[None]:
        """Let every process, or the main one, do something; they go on when all are through.

        The first InputError that any of them met is raised in the main one; the others exit, to tell it once.
        """
        error: InputError | None = None
        try:
            yield
        except InputError as raised:
            error = raised
        if not self.greatest(error is not None):
            return
        errors = [error]
        if self.count > 1:
            errors = [None] * self.count
            distributed.all_gather_object(errors, error, group=self._control)
        if self.is_main_process:
            raise next(found for found in errors if found is not None)
        raise SystemExit(2)

    def on_main_process(self, act: Callable[..., object], *arguments: Any) -> None:
        """Let the main process do something that the others wait for; errors are those of `barrier`."""
        with self.barrier():
            if self.is_main_process:
                act(*arguments)

    def main_process_first(self, make: Callable[[], _T]) -> _T:
        """The result of `make`, by the main process first: it may download what the others then find."""
        made: list[_T] = []
        for turn in (True, False):
            with self.barrier():
                if self.is_main_process is turn:
                    made.append(make())
        return made[0]


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
    """Return whether `shard_model` shared the parameters of a module out."""
    return hasattr(module, "unshard")


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all processes, which must all ask for it."""
    complete: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return complete


@contextlib.contextmanager
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
