"""The training loop: one explicit loop for every task, everything it leaves in a folder of plain files.

The batch and the dropout of an update are functions of the recipe's seed and the update's number, and a
checkpoint keeps everything else. On the CPU a run that was stopped anywhere and started again gives the
losses of an uninterrupted one, bit for bit. Several processes that a launcher started each take an equal part
of every batch and average their gradients; the main one writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from nadaraya.errors import InputError
from nadaraya.training.batches import step_seed
from nadaraya.training.checkpoint import Checkpoint, find_checkpoint, load_checkpoint, save_checkpoint
from nadaraya.training.folder import begin_folder, is_run_of
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import BandwidthWatch, kernel_parameters
from nadaraya.training.metrics import Meter, TrainingDiverged
from nadaraya.training.processes import Processes
from nadaraya.training.progress import StopRequest, TrainingProgress
from nadaraya.training.recipe import Recipe
from nadaraya.training.records import Records
from nadaraya.training.run import STATE_FOLDER, Run
from nadaraya.training.task import Task


def train(
    recipe: Recipe | ImageRecipe, folder: str | Path, *, progress: bool = True, resume: bool = True
) -> Run:
    """Train a model, or go on where an earlier call with the same recipe and folder was stopped.

    Args:
        recipe: what to train; `load_recipe` makes one.
        folder: the run folder; made when absent.
        progress: show step, losses, speed and time left on standard error.
        resume: go on from the folder's newest complete checkpoint; False refuses a folder that has a run.

    Returns:
        The finished run. One that was finished already is returned as it is.

    Raises:
        InputError: the recipe, its data or the folder cannot be used; nothing was overwritten.
        TrainingDiverged: the loss or its gradient is not finite, or a bandwidth left the usable range; names
            the step and the last checkpoint.
        WriteFailed: the disk is full; what was saved before is intact.
        KeyboardInterrupt: Ctrl-C; a checkpoint was saved.
        SystemExit: in all processes but the main one, where one of these ends them all.
    """
    folder = Path(folder)
    processes, options = Processes(), recipe.training
    with processes.together():
        finished = is_run_of(folder, recipe, resume) and Run(folder).final is not None
    if finished:
        shown = TrainingProgress(recipe.name, 0, 0, 0, "", progress and processes.main)
        shown.say(f"{folder} is finished already: nothing to do")
        return Run(folder)
    task = processes.main_first(lambda: _open(recipe, processes))
    model = task.model
    optimizer = task.optimizer()
    with processes.together():
        checkpoint = _find_checkpoint(folder, task)
    with processes.together():
        if processes.main and checkpoint is None:
            begin_folder(folder, recipe, task)
    # Evaluation uses the network itself: processes that average gradients must call theirs equally often.
    network = _compiled(model, options.compile)
    trained = processes.prepare(network)
    average = task.average()
    averaged = average.module if average else None
    with processes.together():
        if checkpoint:
            load_checkpoint(checkpoint, model, optimizer, averaged)
    done, state = (checkpoint.step, checkpoint.state) if checkpoint else (0, {})
    advance = task.schedule(optimizer, done)
    shown = TrainingProgress(
        recipe.name, task.steps, done, task.units_per_step, task.unit, progress and processes.main
    )
    with processes.together():
        records = Records(folder, done, shown, options.tracker == "tensorboard") if processes.main else None
    meter = Meter(state.get("losses", []), state.get("seconds", 0.0))
    watch = BandwidthWatch(model)
    cast = torch.autocast(
        processes.device.type, torch.bfloat16, enabled=_bfloat16(options.precision, processes.device)
    )
    if done:
        shown.say(f"{folder}: resuming after step {done}")
    trained.train()
    meter.start()
    with shown, StopRequest() as stop:
        batches = iter(task.batches(done))
        for step in range(done + 1, task.steps + 1):
            with processes.together():
                inputs, targets = next(batches)
            torch.manual_seed(step_seed(recipe.seed, step, processes.rank))
            pieces = options.gradient_accumulation
            loss = torch.zeros((), device=processes.device)
            pairs = zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)
            for piece, (x, y) in enumerate(pairs, start=1):
                x, y = (part.to(processes.device, non_blocking=True) for part in (x, y))
                with cast:
                    part = task.loss(trained, x, y)
                processes.backward(part / pieces, trained, more=piece < pieces)
                loss += part.detach() / pieces
            learning_rate = float(optimizer.param_groups[0]["lr"])
            norm = processes.clip(model, options.clip)
            optimizer.step()
            advance(step)
            optimizer.zero_grad()
            if average:
                average.update(model, step)
            meter.add(loss, norm)
            if processes.device.type == "cpu":  # elsewhere looking means waiting for the device
                with processes.together(), _diverging(folder):
                    watch.check(step)
            shown.advance(step)

            last = step == task.steps
            log, evaluate, save = (
                step % every == 0 or last
                for every in (options.log_every, task.evaluate_every, options.checkpoint_every)
            )
            stopping = processes.any(stop.requested)
            if not (log or evaluate or save or stopping):
                continue
            with processes.together(), _diverging(folder):
                meter.collect(step, processes.mean)
                watch.check(step)
            if log:
                figures: dict[str, float] = {
                    "loss": meter.take(),
                    "learning_rate": learning_rate,
                    task.unit: step * task.units_per_step,
                    "seconds": meter.seconds,
                    "gradient_norm": meter.gradient_norm,
                }
                with processes.together():
                    if records:
                        records.train(step, figures)
            if evaluate:
                with processes.together(), cast:
                    validation = task.validate(network, averaged)
                    if records:
                        records.validation(step, validation, task.headline(validation))
            if save or stopping:
                with processes.together():
                    if records:
                        records.flush()
                        kept = {"step": step, "seconds": meter.seconds, "losses": meter.losses, **task.kept}
                        save_checkpoint(folder / STATE_FOLDER, model, optimizer, kept, averaged)
            if stopping:
                shown.say(f"step {step} is saved in {folder}")
                raise KeyboardInterrupt
            meter.start()
    shown.say("writing the model and its figures")
    with processes.together(), cast:
        if records:
            _finish(folder, task, averaged, records)
    return Run(folder)


def _open(recipe: Recipe | ImageRecipe, processes: Processes) -> Task:
    pieces = processes.count * recipe.training.gradient_accumulation
    if recipe.training.batch_size % pieces:
        raise InputError(
            f"training.batch_size = {recipe.training.batch_size} does not divide among {processes.count} "
            f"processes in gradient_accumulation = {recipe.training.gradient_accumulation} equal pieces each"
        )
    if isinstance(recipe, ImageRecipe):
        from nadaraya.training.images import ImageTask

        return ImageTask(recipe, processes)
    from nadaraya.training.text import TextTask

    return TextTask(recipe, processes)


def _find_checkpoint(folder: Path, task: Task) -> Checkpoint | None:
    checkpoint = find_checkpoint(folder / STATE_FOLDER)
    if checkpoint and any(checkpoint.state.get(key) != value for key, value in task.kept.items()):
        raise InputError(f"{task.changed} that {folder} was started on: restore it, or choose another folder")
    return checkpoint


def _compiled(model: nn.Module, how: bool | str) -> nn.Module:
    if how is False:
        return model
    compiled: nn.Module = torch.compile(model, mode=None if how is True else how)  # type: ignore[assignment]
    return compiled


def _bfloat16(precision: str, device: torch.device) -> bool:
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


@contextmanager
def _diverging(folder: Path) -> Iterator[None]:
    """Tell a run that diverged where its last good checkpoint is."""
    try:
        yield
    except TrainingDiverged as error:
        checkpoint = find_checkpoint(folder / STATE_FOLDER)
        good = (
            f"the last good checkpoint is {checkpoint.path}" if checkpoint else "no checkpoint was saved yet"
        )
        raise TrainingDiverged(f"{error}; {good}; a lower learning rate in a new run may help") from None


def _finish(folder: Path, task: Task, averaged: nn.Module | None, records: Records) -> None:
    """The model and its figures; the final record comes last: it makes the run finished."""
    step_seconds = records.step_seconds
    figures = task.finish(folder, averaged, records.last_validation, step_seconds)
    sizes = {
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "kernel_parameters": sum(parameter.numel() for _, parameter in kernel_parameters(task.model)),
    }
    records.final(task.steps, {**figures, **sizes, "step_seconds": step_seconds})
