"""The training loop: one explicit loop for every task, everything it leaves in a folder of plain files.

The batch and the dropout of an update are functions of the seed and the update's number, a checkpoint keeps
the rest: on the CPU a resumed run is bit for bit an uninterrupted one. Processes that a launcher started take
an equal part of every batch each and average their gradients; the main one writes.
"""

import math
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from nadaraya.errors import InputError
from nadaraya.files import PARTIAL, remove_folder, remove_partial, sha256, sync, write_into
from nadaraya.training.checkpoint import (
    Checkpoint,
    drop_later_checkpoints,
    drop_old_checkpoints,
    find_checkpoint,
)
from nadaraya.training.folder import (
    BEST_FILE,
    METRICS_FILE,
    RECIPE_FILE,
    STATE_FOLDER,
    FolderLock,
    begin_folder,
    is_run_of,
    read_recipe,
    renew_folder,
)
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import BandwidthWatch, kernel_parameters
from nadaraya.training.learner import Learner
from nadaraya.training.metrics import Meter, TrainingDiverged, digest_of, read_metrics, step_seconds
from nadaraya.training.processes import Processes
from nadaraya.training.progress import StopRequest, TrainingProgress
from nadaraya.training.recipe import Recipe
from nadaraya.training.records import Records, check_tracker, open_records
from nadaraya.training.run import Run
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
    shown = TrainingProgress(progress and processes.main)
    with processes.surviving(), FolderLock(folder) as lock:
        with processes.together():
            finished = _is_finished(folder, recipe, resume)
        if not finished:
            if folder.exists():  # refuse before the data are read; a new folder is made after that
                processes.alone(lock.take)
            with shown.waiting(f"{recipe.name}: reading the data, building the model"):
                task = processes.main_first(lambda: open_task(recipe, processes))
            processes.alone(lock.take)
            with processes.together():  # the other process may have finished in between
                finished = _is_finished(folder, recipe, resume)
        if finished:
            processes.alone(_tidy_finished, folder, lock)
            shown.say(f"{folder} is finished already: nothing to do")
        else:
            _run(recipe, folder, task, processes, shown)
    return Run(folder)


def _run(
    recipe: Recipe | ImageRecipe, folder: Path, task: Task, processes: Processes, shown: TrainingProgress
) -> None:
    """Train in a folder that no other process writes."""
    with processes.together():
        checkpoint = _find_checkpoint(folder, recipe, task)
    if checkpoint:
        processes.alone(_go_back, folder, recipe, checkpoint)
    processes.alone(renew_folder if checkpoint else begin_folder, folder, recipe, task)
    learner = Learner(task, recipe, processes)
    with processes.together():
        learner.resume(checkpoint)
    if checkpoint:  # a run that was killed may have been about to
        options = recipe.training
        processes.alone(drop_old_checkpoints, checkpoint.path, options.checkpoints_kept, options.decay_start)
    done, state = (checkpoint.step, checkpoint.state) if checkpoint else (0, {})
    if done:
        shown.say(f"{folder}: resuming after step {done}")
    with processes.together():
        records = open_records(folder, recipe, checkpoint, shown) if processes.main else Records()
        if processes.main:
            task.record(folder, done)
    shown.begin(recipe.name, task, done)
    meter = Meter(state.get("losses", []), state.get("seconds", 0.0))
    watch = BandwidthWatch(learner.model)
    best = math.inf
    if (folder / BEST_FILE).exists():
        best = min(map(task.score, Run(folder).series("validation")), default=math.inf)
    saved = time.monotonic()
    patience = 60 * (recipe.training.checkpoint_minutes or float("inf"))
    with closing(records), StopRequest().listening() as stop:
        batches = iter(task.batches(done))
        for step in range(done + 1, task.steps + 1):
            with processes.together():
                inputs, targets = next(batches)
            meter.add(*learner.update(step, inputs, targets))
            if processes.device.type == "cpu":  # elsewhere looking means waiting for the device
                with processes.together(), _diverging(folder):
                    watch.check(step)
            shown.advance(step)

            last, waited = step == task.steps, time.monotonic() - saved > patience
            stopping = processes.greatest(stop.signal or -int(waited))  # −1: all clocks say so
            log = step % recipe.training.log_every == 0 or last
            evaluate = step % task.evaluate_every == 0 or last
            save = step % recipe.training.checkpoint_every == 0 or last or stopping
            save = save or step == recipe.training.decay_start
            if not (log or evaluate or save):
                continue
            with processes.together(), _diverging(folder):
                meter.collect(step, processes.mean)
                watch.check(step)
            if log:
                figures = {
                    "loss": meter.take(),
                    "learning_rate": learner.learning_rate,
                    task.unit: step * task.units_per_step,
                    "seconds": meter.seconds,
                    "gradient_norm": meter.gradient_norm,
                }
                with processes.together():
                    records.add("train", step, figures)
            if evaluate:
                with processes.together():
                    validation = learner.validate()
                    records.add("validation", step, validation)
                if recipe.training.keep_best and task.score(validation) < best:
                    best = task.score(validation)
                    learner.gather()
                    processes.alone(learner.save_weights, folder / BEST_FILE)
            if save:
                if step == recipe.training.decay_start:
                    processes.alone(_copy_best, folder, folder / STATE_FOLDER)
                with processes.together():
                    learner.write_parts(folder / STATE_FOLDER)
                processes.alone(_save, folder, learner, step, meter)
                saved = time.monotonic()
            if stopping > 0:
                shown.say(f"step {step} is saved in {folder}")
                raise KeyboardInterrupt(stopping)
            meter.start()
        shown.say("writing the model and its figures")
        learner.gather()
        if processes.main:
            task.model.to(processes.device)
        processes.alone(_finish, folder, task, learner, records)


def _is_finished(folder: Path, recipe: Recipe | ImageRecipe, resume: bool) -> bool:
    """Whether the folder has a finished run of this recipe; refuses what is not one of this recipe."""
    if not is_run_of(folder, recipe, resume):
        return False
    run = Run(folder)
    return run.final is not None and run.recipe.length == recipe.length


def open_task(recipe: Recipe | ImageRecipe, processes: Processes) -> Task:
    """The task of a recipe: its data read, its model built; refuses what this many processes cannot train."""
    recipe.training.pieces(processes.count)
    check_tracker(recipe.training.tracker)
    if isinstance(recipe, ImageRecipe):
        from nadaraya.training.images import ImageTask

        return ImageTask(recipe, processes)
    from nadaraya.training.text import TextTask

    return TextTask(recipe, processes)


def _find_checkpoint(folder: Path, recipe: Recipe | ImageRecipe, task: Task) -> Checkpoint | None:
    """The newest complete checkpoint that leads to this recipe, if its run was started on the same data."""
    checkpoint = find_checkpoint(folder / STATE_FOLDER, _common_updates(folder, recipe))
    records = [] if checkpoint else read_metrics(folder / METRICS_FILE)
    if any(record["kind"] == "final" for record in records):
        raise InputError(f"{folder} has no checkpoint left to go on from: choose another folder")
    if checkpoint and not task.fingerprint.items() <= checkpoint.state.items():
        raise InputError(
            f"{task.fingerprint_error} that {folder} was started on: restore it, or choose another folder"
        )
    return checkpoint


def _common_updates(folder: Path, recipe: Recipe | ImageRecipe) -> int | None:
    """How many updates of the folder's run a longer one has in common; None where it goes on from all."""
    if not (folder / RECIPE_FILE).exists():
        return None
    own = read_recipe(folder)
    return own.training.decay_start if own.length < recipe.length else None


def _go_back(folder: Path, recipe: Recipe | ImageRecipe, checkpoint: Checkpoint) -> None:
    """Where a longer run goes on from before the decay of the folder's own, drop what came after.

    The folder's recipe is renewed after this: stopped in between, it can still be finished as it was.
    """
    if _common_updates(folder, recipe) is not None:
        drop_later_checkpoints(checkpoint.path)
        if not (folder / STATE_FOLDER / BEST_FILE).exists():
            (folder / BEST_FILE).unlink(missing_ok=True)
        _copy_best(folder / STATE_FOLDER, folder)


def _copy_best(source: Path, target: Path) -> None:
    """The best weights before the decay stay with its checkpoint: a longer run goes on from both."""
    if (source / BEST_FILE).exists():
        with write_into(target, BEST_FILE) as scratch:
            shutil.copy(source / BEST_FILE, scratch)


def _save(folder: Path, learner: Learner, step: int, meter: Meter) -> None:
    """Write a checkpoint, which must not be newer on the disk than the metrics."""
    sync(folder / METRICS_FILE)
    state = {
        "step": step,
        "seconds": meter.seconds,
        "losses": meter.losses,
        "metrics_sha256": sha256(folder / METRICS_FILE),
    }
    learner.save(folder / STATE_FOLDER, state)


def _finish(folder: Path, task: Task, learner: Learner, records: Records) -> None:
    """The model and its figures; the final record comes last: it makes the run finished.

    It has digests of every file that the run left, its own record among the metrics.
    """
    run = Run(folder)
    seconds = step_seconds(run.metrics)
    validation = {k: v for k, v in run.series("validation")[-1].items() if k not in ("kind", "step")}
    with learner.cast:
        figures = task.finish(folder, learner.averaged, validation, seconds)
    sizes = {
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "kernel_parameters": sum(parameter.numel() for _, parameter in kernel_parameters(task.model)),
    }
    figures = {**figures, **sizes, "step_seconds": seconds, **task.fingerprint}
    if not math.isfinite(figures["loss"]):
        raise TrainingDiverged(f"the validation loss became {figures['loss']} at step {task.steps}")
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    digests = {path.name: sha256(path) for path in files}
    final = {"kind": "final", "step": task.steps, **figures}
    digests[METRICS_FILE] = digest_of([*read_metrics(folder / METRICS_FILE), final])
    records.add("final", task.steps, {**figures, "sha256": digests})
    sync(folder / METRICS_FILE)
    _tidy(folder, run.recipe)


def _tidy_finished(folder: Path, lock: FolderLock) -> None:
    """Do what a run that was killed after its last record left undone."""
    recipe, state = Run(folder).recipe, folder / STATE_FOLDER
    dropped = recipe.training.drop_checkpoints and state.exists()
    if dropped or any(list(place.glob(f"{PARTIAL}*")) for place in (folder, state)):
        lock.take()
        _tidy(folder, recipe)


def _tidy(folder: Path, recipe: Recipe | ImageRecipe) -> None:
    if recipe.training.drop_checkpoints:
        remove_folder(folder / STATE_FOLDER)
    for place in (folder, folder / STATE_FOLDER):
        remove_partial(place)


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
