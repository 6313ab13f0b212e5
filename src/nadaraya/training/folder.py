"""The run folder: what its files are called, claiming it, and what it has before the first step."""

from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout
from safetensors.torch import save_file

from nadaraya.errors import InputError
from nadaraya.files import PARTIAL, check_utf8, exists, reading, write_file, write_into, writing
from nadaraya.names import CORPORA
from nadaraya.plain_yaml import read_yaml
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.recipe import Recipe, read_mapping
from nadaraya.training.task import Task

RECIPE_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
MODEL_FILE = "model.safetensors"
CONFIGURATION_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
INITIAL_KERNELS_FILE = "initial_kernels.safetensors"
AVERAGE_FILE = "ema.safetensors"
BEST_FILE = "best.safetensors"
IMAGES_FILE = "images.json"
TEXT_FILE = "text.json"
WINDOWS_FILE = "windows.jsonl"
SAMPLE_FILE = "sample.txt"
STATE_FOLDER = "training_state"
LOCK_FILE = ".lock"


def read_recipe(folder: Path) -> Recipe | ImageRecipe:
    """The recipe of a run folder; an InputError where the folder has none, or it cannot be read."""
    path = folder / RECIPE_FILE
    if not path.is_file():
        raise InputError(f"{folder} is not a run folder: it has no {RECIPE_FILE}")
    with reading(path):
        if not path.read_bytes().endswith(b"\n"):  # cut off: keys that are not there would have defaults
            raise InputError(f"{path} is damaged: its end is missing")
    return read_mapping(read_yaml(path, "a recipe"))


def is_run_of(folder: Path, recipe: Recipe | ImageRecipe, resume: bool) -> bool:
    """Whether the folder has a run of this recipe, keys that may change apart; refuses everything else."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    if not (folder / RECIPE_FILE).is_file():
        if any(not item.name.startswith((PARTIAL, LOCK_FILE)) for item in folder.iterdir()):
            raise InputError(f"{folder} has files in it and is not a run folder: choose another one")
        return False
    difference = read_recipe(folder).first_conflict(recipe)
    if difference:
        key, theirs, ours = difference
        if key in ("data.corpus", "data.source") and ours and not _may_be_there(ours):
            raise InputError(f"no such file or folder: {ours}, the {key} of the recipe")
        raise InputError(
            f"{folder} has a run with {key} = {theirs!r}, not {ours!r}: choose another folder (--run), or "
            "its recipe"
        )
    if not resume:
        raise InputError(f"{folder} has a run already and resuming was not wanted: choose another folder")
    return True


def _may_be_there(source: str) -> bool:
    """Whether a source of data is the name of some, a pattern, or there."""
    return source in CORPORA or any(mark in source for mark in ":*?[") or exists(Path(source))


def begin_folder(folder: Path, recipe: Recipe | ImageRecipe, task: Task) -> None:
    """What a run folder has before the first step; the recipe comes first: it makes the folder a run."""
    write_file(folder / RECIPE_FILE, recipe.to_yaml())
    with write_into(folder) as scratch:
        task.begin(scratch)
        kernels = {name: value.detach().contiguous() for name, value in kernel_parameters(task.model)}
        save_file(kernels, scratch / INITIAL_KERNELS_FILE)


def renew_folder(folder: Path, recipe: Recipe | ImageRecipe, task: Task) -> None:
    """Put a recipe that differs in what may differ, see `is_run_of`, in the place of the folder's own.

    It comes last: a run that becomes longer must not look finished in between.
    """
    if read_recipe(folder) != recipe:
        with write_into(folder) as scratch:
            task.begin(scratch)
        write_file(folder / RECIPE_FILE, recipe.to_yaml())


class FolderLock:
    """Lets one process at a time write a run folder; the lock of a killed process is free.

    A context: what `take` took is given back at its end. It waits so many seconds for another process.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self._folder, self._lock = folder, FileLock(folder / LOCK_FILE, timeout=patience)

    def take(self) -> None:
        """Take the lock, in a folder made when absent; an InputError where another process has it."""
        check_utf8("the path of a run folder", str(self._folder))
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire()
            except Timeout:
                raise InputError(
                    f"{self._folder} is being trained by another process: wait for it, or choose another "
                    "folder"
                ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release(force=True)
