"""The run folder: what its files are called, claiming it, and what it has before the first step."""

from pathlib import Path

from safetensors.torch import save_file

from nadaraya.errors import InputError
from nadaraya.files import PARTIAL, reading, write_file, write_into
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.recipe import Recipe, read_mapping
from nadaraya.training.schema import parse_yaml
from nadaraya.training.task import Task

RECIPE_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
MODEL_FILE = "model.safetensors"
INITIAL_KERNELS_FILE = "initial_kernels.safetensors"
AVERAGE_FILE = "ema.safetensors"
IMAGES_FILE = "images.json"
SAMPLE_FILE = "sample.txt"
STATE_FOLDER = "training_state"


def read_recipe(folder: Path) -> Recipe | ImageRecipe:
    """The recipe of a run folder; an InputError where the folder has none, or it cannot be read."""
    path = folder / RECIPE_FILE
    if not path.is_file():
        raise InputError(f"{folder} is not a run folder: it has no {RECIPE_FILE}")
    with reading(path):
        mapping = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(mapping, dict):
        raise InputError(f"{path} is not a recipe")
    return read_mapping(mapping)


def is_run_of(folder: Path, recipe: Recipe | ImageRecipe, resume: bool) -> bool:
    """Whether the folder has a run of this very recipe; refuses one of another recipe, and anything else."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    if not (folder / RECIPE_FILE).is_file():
        if any(not item.name.startswith(PARTIAL) for item in folder.iterdir()):
            raise InputError(f"{folder} has files in it and is not a run folder: choose another one")
        return False
    difference = read_recipe(folder).first_difference(recipe)
    if difference:
        key, theirs, ours = difference
        raise InputError(
            f"{folder} has a run with {key} = {theirs!r}, not {ours!r}: choose another folder, or its recipe"
        )
    if not resume:
        raise InputError(f"{folder} has a run already and resuming was not wanted: choose another folder")
    return True


def begin_folder(folder: Path, recipe: Recipe | ImageRecipe, task: Task) -> None:
    """What a run folder has before the first step; the recipe comes first: it makes the folder a run."""
    write_file(folder / RECIPE_FILE, recipe.to_yaml())
    with write_into(folder) as scratch:
        task.begin(scratch)
        kernels = {name: value.detach().contiguous() for name, value in kernel_parameters(task.model)}
        save_file(kernels, scratch / INITIAL_KERNELS_FILE)
