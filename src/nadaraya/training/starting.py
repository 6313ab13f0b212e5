"""A run folder at the start and at the end of training: claimed, gone back in, begun, tidied.

Each act leaves the folder such that a run which is killed in it can be started again.
"""

import shutil
from pathlib import Path

from safetensors.torch import save_file

from nadaraya.errors import InputError
from nadaraya.files import PARTIAL, exists, remove_folder, remove_partial, write_file, write_into
from nadaraya.names import CORPORA
from nadaraya.training import folder as layout
from nadaraya.training.checkpoint import (
    Checkpoint,
    drop_later_checkpoints,
    drop_old_checkpoints,
    find_checkpoint,
)
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.metrics import read_metrics
from nadaraya.training.recipe import read_recipe
from nadaraya.training.run import Run
from nadaraya.training.task import Task
from nadaraya.training.text_recipe import Recipe


def is_finished(folder: Path, recipe: Recipe | ImageRecipe, resume: bool) -> bool:
    """Return whether the folder has a finished run of this recipe; refuse what is not one of this recipe."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    if not (folder / layout.RECIPE_FILE).is_file():
        if any(not item.name.startswith((PARTIAL, layout.LOCK_FILE)) for item in folder.iterdir()):
            raise InputError(f"{folder} has files in it and is not a run folder: choose another one")
        return False
    run = Run(folder)
    if difference := run.recipe.first_conflict(recipe):
        key, theirs, ours = difference
        source = key in ("data.corpus", "data.source") and ours not in (None, *CORPORA)
        if source and not any(mark in ours for mark in ":*?[") and not exists(Path(ours)):
            raise InputError(f"no such file or folder: {ours}, the {key} of the recipe")
        raise InputError(
            f"{folder} has a run with {key} = {theirs!r}, not {ours!r}: choose another folder (--run), or "
            "its recipe"
        )
    if not resume:
        raise InputError(f"{folder} has a run already and resuming was not wanted: choose another folder")
    return run.final is not None and run.recipe.length == recipe.length


def find_start(folder: Path, recipe: Recipe | ImageRecipe, task: Task) -> Checkpoint | None:
    """The newest complete checkpoint that leads to this recipe, if its run was started on the same data."""
    checkpoint = find_checkpoint(folder / layout.STATE_FOLDER, _common_updates(folder, recipe))
    records = [] if checkpoint else read_metrics(folder / layout.METRICS_FILE)
    if any(record["kind"] == "final" for record in records):
        raise InputError(f"{folder} has no checkpoint left to go on from: choose another folder")
    if checkpoint and not task.fingerprint.items() <= checkpoint.state.items():
        raise InputError(
            f"{task.fingerprint_error} that {folder} was started on: restore it, or choose another folder"
        )
    return checkpoint


def prepare_folder(
    folder: Path, recipe: Recipe | ImageRecipe, task: Task, checkpoint: Checkpoint | None
) -> None:
    """Begin a run folder, or bring one to where a checkpoint goes on.

    In a new folder the recipe comes first: it makes it a run. In one that goes on it comes last: a run that
    becomes longer must not look finished in between, and can still be finished as it was.
    """
    states, options = folder / layout.STATE_FOLDER, recipe.training
    if checkpoint is None:
        write_file(folder / layout.RECIPE_FILE, recipe.to_yaml())
        with write_into(folder) as scratch:
            task.begin(scratch)
            kernels = {name: value.detach().contiguous() for name, value in kernel_parameters(task.model)}
            save_file(kernels, scratch / layout.INITIAL_KERNELS_FILE)
    else:
        if _common_updates(folder, recipe) is not None:  # what came after it belongs to the shorter run
            drop_later_checkpoints(checkpoint.path)
            if not (states / layout.BEST_FILE).exists():
                (folder / layout.BEST_FILE).unlink(missing_ok=True)
            copy_best(states, folder)
        if read_recipe(folder) != recipe:
            with write_into(folder) as scratch:
                task.begin(scratch)
            write_file(folder / layout.RECIPE_FILE, recipe.to_yaml())
        # A run that was killed may have been about to.
        drop_old_checkpoints(checkpoint.path, options.checkpoints_kept, options.decay_start)
    for place in (folder, states):
        remove_partial(place)


def _common_updates(folder: Path, recipe: Recipe | ImageRecipe) -> int | None:
    """Number of updates that a longer run has in common with the folder's; None where it goes on from all."""
    if not (folder / layout.RECIPE_FILE).exists():
        return None
    own = read_recipe(folder)
    return own.training.decay_start if own.length < recipe.length else None


def copy_best(source: Path, target: Path) -> None:
    """Copy the best weights, if there are some, from one folder to another.

    Those of before the decay stay with its checkpoint: a longer run goes on from both.
    """
    if (source / layout.BEST_FILE).exists():
        with write_into(target, layout.BEST_FILE) as scratch:
            shutil.copy(source / layout.BEST_FILE, scratch)


def tidy_finished(folder: Path, lock: layout.FolderLock) -> None:
    """Do what a run that was killed after its last record left undone."""
    recipe, states = read_recipe(folder), folder / layout.STATE_FOLDER
    dropped = recipe.training.drop_checkpoints and states.exists()
    if dropped or any(list(place.glob(f"{PARTIAL}*")) for place in (folder, states)):
        lock.take()
        tidy(folder, recipe)


def tidy(folder: Path, recipe: Recipe | ImageRecipe) -> None:
    """Remove the checkpoints of a finished run where its recipe says so, and what is half-written."""
    if recipe.training.drop_checkpoints:
        remove_folder(folder / layout.STATE_FOLDER)
    for place in (folder, folder / layout.STATE_FOLDER):
        remove_partial(place)
