"""The training loop: one explicit loop for every task, everything it leaves in a folder of plain files.

The batch and the dropout of an update are functions of the seed and the update's number, a checkpoint keeps
the rest: on the CPU a resumed run is bit for bit an uninterrupted one. Processes that a launcher started take
an equal part of every batch each and average their gradients; the main one writes.
"""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from nadaraya.errors import must_be
from nadaraya.files import sha256, sync, write_into
from nadaraya.training.checkpoint import (
    Checkpoint,
    drop_old_checkpoints,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
    write_tensors,
)
from nadaraya.training.folder import BEST_FILE, METRICS_FILE, STATE_FOLDER, FolderLock
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import BandwidthWatch, kernel_parameters
from nadaraya.training.metrics import (
    Meter,
    Records,
    TrainingDiverged,
    check_tracker,
    digest_of,
    read_metrics,
    step_seconds,
)
from nadaraya.training.optimizer import make_optimizer
from nadaraya.training.processes import Processes, gather_weights, repeated_blocks, shard_model, whole_weights
from nadaraya.training.progress import StopRequest, TrainingProgress
from nadaraya.training.run import Run
from nadaraya.training.starting import copy_best, find_start, is_finished, prepare_folder, tidy, tidy_finished
from nadaraya.training.task import Task
from nadaraya.training.text_recipe import Recipe

_DROPOUT = 1  # a stream of random numbers of its own; batches have that of 0


def train(
    recipe: Recipe | ImageRecipe, folder: str | Path, *, progress: bool = True, resume: bool = True
) -> Run:
    """Train a model, or go on where an earlier call with the same recipe and folder was stopped.

    Args:
        recipe: what to train; `load_recipe` makes one.
        folder: the run folder; made when absent.
        progress: show step, losses, speed and time left on standard error.
        resume: go on from the folder's newest complete checkpoint; False refuses a folder that has a run.
            What does not alter the result (`training.log_every`, `data.workers`, …) may then differ from the
            run's own recipe, and `training.steps` or `epochs` may be more: a finished run is extended.

    Returns:
        The finished run. One that was finished already is returned as it is.

    Raises:
        InputError: the recipe, its data or the folder cannot be used; nothing was overwritten. Or another
            process of the run was killed; the checkpoints are intact.
        TrainingDiverged: the loss or its gradient is not finite, or a bandwidth left the usable range; names
            the step and the last checkpoint.
        WriteFailed: the disk is full; what was saved before is intact.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP, whose number is its argument; a checkpoint was saved.
        SystemExit: in all processes but the main one, where one of these ends them all.

    >>> from nadaraya.training import load_recipe, train
    >>> overrides = ["training.steps=2", "training.warmup_steps=0", "model.hidden_size=8", "data.limit=9000"]
    >>> run = train(load_recipe("demo", [*overrides, "training.batch_size=1"]), "runs/tiny", progress=False)
    >>> run.final["step"]
    2
    """
    folder, processes = Path(folder), Processes()
    shown = TrainingProgress(progress and processes.is_main_process)
    with processes.surviving(), FolderLock(folder) as lock:
        with processes.barrier():
            finished = is_finished(folder, recipe, resume)
        if not finished:
            if folder.exists():  # refuse before the data are read; a new folder is made after that
                processes.on_main_process(lock.take)
            with shown.waiting(f"{recipe.name}: reading the data, building the model"):
                task = processes.main_process_first(lambda: open_task(recipe, processes))
            processes.on_main_process(lock.take)
            with processes.barrier():  # the other process may have finished in between
                finished = is_finished(folder, recipe, resume)
        if finished:
            processes.on_main_process(tidy_finished, folder, lock)
            shown.say(f"{folder} is finished already: nothing to do")
        else:
            _run(recipe, folder, task, processes, shown)
    return Run(folder)


def open_task(recipe: Recipe | ImageRecipe, processes: Processes) -> Task:
    """The task of a recipe: its data read, its model built; refuses what this many processes cannot train."""
    recipe.training.pieces(processes.count)
    check_tracker(recipe.training.tracker)
    if isinstance(recipe, ImageRecipe):
        from nadaraya.training.images import ImageTask

        return ImageTask(recipe, processes)
    from nadaraya.training.text import TextTask

    return TextTask(recipe, processes)


def _run(
    recipe: Recipe | ImageRecipe, folder: Path, task: Task, processes: Processes, shown: TrainingProgress
) -> None:
    """Train in a folder that no other process writes."""
    options, states = recipe.training, folder / STATE_FOLDER
    with processes.barrier():
        checkpoint = find_start(folder, recipe, task)
    processes.on_main_process(prepare_folder, folder, recipe, task, checkpoint)

    # Model, optimizer and schedule as they were after update `done`.
    learner = Learner(task, recipe, processes)
    with processes.barrier():
        learner.resume(checkpoint)
    done, state = (checkpoint.step, checkpoint.state) if checkpoint else (0, {})
    if done:
        shown.say(f"{folder}: resuming after step {done}")

    # Losses and times: in metrics.jsonl, on the terminal, with a tracker.
    records: Records | None = None
    with processes.barrier():
        if processes.is_main_process:
            digest = state.get("metrics_sha256")
            records = Records(folder, done, digest, shown, options.tracker, recipe.name)
            task.record(folder, done)
    shown.begin(recipe.name, task, done)
    meter = Meter(state.get("losses", []), state.get("seconds", 0.0))
    watch = BandwidthWatch(learner.model)
    best = math.inf
    if (folder / BEST_FILE).exists():
        best = min(map(task.score, Run(folder).series("validation")), default=math.inf)

    saved, patience = time.monotonic(), 60 * (options.checkpoint_minutes or math.inf)
    with ExitStack() as closed, StopRequest().listening() as stop:
        if records:
            closed.callback(records.close)
        batches = iter(task.batches(done))
        for step in range(done + 1, task.steps + 1):
            with processes.barrier():
                inputs, targets = next(batches)
            meter.add(*learner.update(step, inputs, targets))
            shown.advance(step)

            # What is due after this update.
            last, waited = step == task.steps, time.monotonic() - saved > patience
            stopping = processes.greatest(stop.signal or -int(waited))  # −1: all clocks say so
            log = last or step % options.log_every == 0
            evaluate = last or step % task.evaluate_every == 0
            save = last or stopping or step % options.checkpoint_every == 0 or step == options.decay_start
            due = log or evaluate or save
            if due or processes.device.type == "cpu":  # elsewhere looking means waiting for the device
                with processes.barrier(), _diverging(folder):
                    if due:
                        meter.collect(step, processes.mean)
                    watch.check(step)
            if not due:
                continue
            if log:
                metrics = learner.metrics(step, meter)
                with processes.barrier():
                    if records:
                        records.add("train", step, metrics)
            if evaluate:
                with processes.barrier():
                    validation = learner.validate()
                    if records:
                        records.add("validation", step, validation)
                if options.keep_best and task.score(validation) < best:
                    best = task.score(validation)
                    learner.gather()
                    processes.on_main_process(learner.save_weights, folder / BEST_FILE)
            if save:
                if step == options.decay_start:
                    processes.on_main_process(copy_best, folder, states)
                with processes.barrier():
                    learner.write_parts(states)
                processes.on_main_process(_save, folder, learner, step, meter)
                saved = time.monotonic()
            if stopping > 0:
                shown.say(f"step {step} is saved in {folder}")
                raise KeyboardInterrupt(stopping)
            meter.start()

        shown.say("writing the model and its metrics")
        learner.gather()
        processes.on_main_process(_finish, folder, task, learner, records)


class Learner:
    """A model with its optimizer and schedule, in one of the run's processes, on the device of that process.

    Its `model` is `task.model`; with `training.parallel=fsdp` and several processes this process's part of
    it, while `gather` brings `task.model` up to date in the main process.
    """

    def __init__(self, task: Task, recipe: Recipe | ImageRecipe, processes: Processes) -> None:
        self._task, self._processes, self._seed = task, processes, recipe.seed
        self.device = processes.device
        options = self._options = recipe.training
        parallel = recipe.training.parallel if isinstance(recipe, Recipe) else "ddp"
        self._sharded = parallel == "fsdp" and processes.count > 1
        mode = options.compile if isinstance(options.compile, str) else None
        self.model: nn.Module = task.model
        if options.activation_checkpointing:
            _checkpoint_activations(self.model)
        if self._sharded:
            self.model = copy.deepcopy(task.model)
            if not processes.is_main_process:
                task.model.to("meta")
            for block in repeated_blocks(self.model) if options.compile else ():
                block.compile(mode=mode)
            shard_model(self.model, self.device)
        self._optimizer = make_optimizer(self.model, options)
        # Evaluation uses the network itself: processes that average gradients must call theirs equally often.
        self._network = self.model
        if options.compile and not self._sharded:
            self._network = torch.compile(self.model, mode=mode)  # type: ignore[assignment]
        self._trained = self._network if self._sharded else processes.prepare(self._network)
        self._average = task.average()
        self.averaged = self._average.module if self._average else None
        self.learning_rate = 0.0  # of the last update, in the first group of parameters
        device, precision = self.device.type, options.precision
        bfloat16 = precision == "bfloat16" or (precision == "auto" and device == "cuda")
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
        loss = torch.zeros((), device=self.device)
        pairs = zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)
        for piece, (x, y) in enumerate(pairs, start=1):
            x, y = (part.to(self.device, non_blocking=True) for part in (x, y))
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

    def timed_update(self, step: int, inputs: Tensor, targets: Tensor) -> float:
        """Make an update; seconds until the device is done with it."""
        begun = time.perf_counter()
        self.update(step, inputs, targets)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    def metrics(self, step: int, meter: Meter) -> dict[str, Any]:
        """The training metrics of a record after update `step`, those since the record before it."""
        return {
            "loss": meter.take(),
            "learning_rate": self.learning_rate,
            self._task.unit: step * self._task.units_per_step,
            "seconds": meter.seconds,
            "gradient_norm": meter.gradient_norm,
        }

    def validate(self) -> dict[str, float]:
        """Metrics on the validation data, the same in all processes."""
        with self.cast, whole_weights(self.model):
            return self._task.validate(self._network, self.averaged)

    def gather(self) -> None:
        """Bring `task.model` up to date in the main process; all processes call it."""
        if self._sharded:
            gather_weights(self.model, self._task.model)

    def write_parts(self, folder: Path) -> None:
        """Write this process's part of the checkpoint that `save` completes; all processes call it."""
        if self._sharded:
            write_tensors(folder, self.model, self._optimizer)

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint; `state` has plain values to keep beside the tensors, `step` among them."""
        state, options = {**state, **self._task.fingerprint}, self._options
        path = save_checkpoint(
            folder, self.model, self._optimizer, state, self.averaged, sharded=self._sharded
        )
        drop_old_checkpoints(path, options.checkpoints_kept, spared=options.decay_start)

    def save_weights(self, path: Path) -> None:
        """Write the weights alone, averaged ones where training keeps them; call `gather` before."""
        with write_into(path.parent, path.name) as scratch:
            save_model(self.averaged or self._task.model, str(scratch / path.name))


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """The seed of torch's own generator (dropout) at one step, in the process of this rank."""
    return int(np.random.SeedSequence([seed, step, _DROPOUT, rank]).generate_state(1, np.uint64)[0] >> 1)


def _checkpoint_activations(model: nn.Module) -> None:
    """Let the blocks of a model compute their activations again, as transformers or timm name that."""
    for name in ("gradient_checkpointing_enable", "set_grad_checkpointing"):
        if hasattr(model, name):
            getattr(model, name)()
            return
    raise must_be("recipe key training.activation_checkpointing", "false for a model without it", True)


def _save(folder: Path, learner: Learner, step: int, meter: Meter) -> None:
    """Write a checkpoint, which must not be newer on the disk than the metrics."""
    path = folder / METRICS_FILE
    sync(path)
    state = {"step": step, "seconds": meter.seconds, "losses": meter.losses, "metrics_sha256": sha256(path)}
    learner.save(folder / STATE_FOLDER, state)


def _finish(folder: Path, task: Task, learner: Learner, records: Records) -> None:
    """The model and its metrics; the final record comes last: it makes the run finished.

    It has digests of every file that the run left, its own record among the metrics.
    """
    run, model = Run(folder), task.model.to(learner.device)
    seconds = step_seconds(run.metrics)
    validation = {k: v for k, v in run.series("validation")[-1].items() if k not in ("kind", "step")}
    with learner.cast:
        metrics = task.finish(folder, learner.averaged, validation, seconds)
    metrics |= {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "kernel_parameters": sum(parameter.numel() for _, parameter in kernel_parameters(model)),
        "step_seconds": seconds,
        **task.fingerprint,
    }
    if not math.isfinite(metrics["loss"]):
        raise TrainingDiverged(f"the validation loss became {metrics['loss']} at step {task.steps}")
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    digests = {path.name: sha256(path) for path in files}
    final = {"kind": "final", "step": task.steps, **metrics}
    digests[METRICS_FILE] = digest_of([*read_metrics(folder / METRICS_FILE), final])
    records.add("final", task.steps, {**metrics, "sha256": digests})
    sync(folder / METRICS_FILE)
    tidy(folder, run.recipe)


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
