"""The model of a run with all that an update changes, in one of the run's processes."""

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from nadaraya.errors import must_be
from nadaraya.files import write_into
from nadaraya.training.batches import step_seed
from nadaraya.training.checkpoint import (
    Checkpoint,
    drop_old_checkpoints,
    load_checkpoint,
    save_checkpoint,
    write_tensors,
)
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.optimizer import make_optimizer
from nadaraya.training.processes import Processes
from nadaraya.training.recipe import Recipe
from nadaraya.training.sharding import gather_weights, repeated_blocks, whole_weights
from nadaraya.training.task import Task


class Learner:
    """Makes updates, validates, saves and restores; the model is moved to the device of this process.

    Attributes:
        model: the one that is trained, `task.model`; with `training.parallel=fsdp` and several processes this
            process's part of it, while `gather` brings `task.model` up to date in the main process.
        averaged: the model with averaged weights, where training keeps one.
        learning_rate: that of the last update, in its first group of parameters.
    """

    def __init__(self, task: Task, recipe: Recipe | ImageRecipe, processes: Processes) -> None:
        self._task, self._processes = task, processes
        self._seed, self._options = recipe.seed, recipe.training
        self._sharded = recipe.training.sharded and processes.count > 1
        self.model = task.model
        if self._options.activation_checkpointing:
            _checkpoint_activations(self.model)
        how, mode = self._options.compile, self._options.compile_mode
        if self._sharded:
            self.model = copy.deepcopy(task.model)
            if not processes.main:
                task.model.to("meta")
            for block in repeated_blocks(self.model) if how else ():
                block.compile(mode=mode)
            processes.shard(self.model)
        self._optimizer = make_optimizer(self.model, recipe.training)
        # Evaluation uses the network itself: processes that average gradients must call theirs equally often.
        self._network: nn.Module = self.model
        if how and not self._sharded:
            self._network = torch.compile(self.model, mode=mode)  # type: ignore[assignment]
        self._trained = self._network if self._sharded else processes.prepare(self._network)
        self._average = task.average()
        self.averaged = self._average.module if self._average else None
        self.learning_rate = 0.0
        device = processes.device.type
        bfloat16 = self._options.precision == "bfloat16" or (
            self._options.precision == "auto" and device == "cuda"
        )
        self.cast = torch.autocast(device, torch.bfloat16, enabled=bfloat16)

    def resume(self, checkpoint: Checkpoint | None, done: int = 0) -> None:
        """Put back what a checkpoint has, where there is one, else go on after `done` updates; then train."""
        if checkpoint:
            load_checkpoint(checkpoint, self.model, self._optimizer, self.averaged)
        self._advance = self._task.schedule(self._optimizer, checkpoint.step if checkpoint else done)
        self._trained.train()

    def update(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Make update `step`, counted from 1, with this process's part of the batch.

        Dropout is a function of the seed, the step and the process. Returns the mean loss of the part and the
        norm of the whole gradient, scalars on the device.
        """
        processes, pieces = self._processes, self._options.pieces(self._processes.count)
        torch.manual_seed(step_seed(self._seed, step, processes.rank))
        loss = torch.zeros((), device=processes.device)
        pairs = zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)
        for piece, (x, y) in enumerate(pairs, start=1):
            x, y = (part.to(processes.device, non_blocking=True) for part in (x, y))
            with self.cast:
                part = self._task.loss(self._trained, x, y)
            processes.backward(part / pieces, self._trained, more=piece < pieces)
            loss += part.detach() / pieces
        self.learning_rate = float(self._optimizer.param_groups[0]["lr"])
        norm = processes.clip(self.model, self._options.clip)
        self._optimizer.step()
        self._advance(step)
        self._optimizer.zero_grad()
        if self._average:
            self._average.update(self.model, step)
        return loss, norm

    def validate(self) -> dict[str, float]:
        """Figures on the validation data, the same in all processes."""
        with self.cast, whole_weights(self.model):
            return self._task.validate(self._network, self.averaged)

    def gather(self) -> None:
        """Bring `task.model` up to date in the main process, on the CPU; all processes call it."""
        if self._sharded:
            gather_weights(self.model, self._task.model)

    def write_parts(self, folder: Path) -> None:
        """Write this process's part of the checkpoint that `save` completes; all processes call it."""
        if self._sharded:
            write_tensors(folder, self.model, self._optimizer)

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint; `state` has plain values to keep beside the tensors, `step` among them."""
        state = {**state, **self._task.fingerprint}
        path = save_checkpoint(
            folder, self.model, self._optimizer, state, self.averaged, sharded=self._sharded
        )
        drop_old_checkpoints(path, self._options.checkpoints_kept, spared=self._options.decay_start)

    def save_weights(self, path: Path) -> None:
        """Write the weights alone, averaged ones where training keeps them; call `gather` before."""
        with write_into(path.parent, path.name) as scratch:
            save_model(self.averaged or self._task.model, str(scratch / path.name))


def _checkpoint_activations(model: nn.Module) -> None:
    """Let the blocks of a model of transformers or timm compute their activations again when asked for."""
    for enable in (
        "activation_checkpointing_enable",
        "gradient_checkpointing_enable",
        "set_grad_checkpointing",
    ):
        if hasattr(model, enable):
            getattr(model, enable)()
            return
    raise must_be("recipe key training.activation_checkpointing", "false for a model without it", True)
