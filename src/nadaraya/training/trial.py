"""The cost of a run, from a few of its own updates; no folder is made."""

import sys
from dataclasses import dataclass
from itertools import islice
from statistics import median_high

import torch

from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.loop import Learner, open_task
from nadaraya.training.processes import Processes
from nadaraya.training.text_recipe import Recipe

_UPDATES = 4  # the first one, which is slower, is left out


@dataclass(frozen=True)
class Trial:
    """The cost of a run.

    Attributes:
        parameters: of the model.
        kernel_parameters: those of kernels, banks and bandwidths among them.
        flops: of a forward pass, 2 × multiply-adds, per token or per image; training takes about three times
            as many.
        unit: "token" or "image".
        device: where it was measured.
        memory_bytes: the most that this process held; on a GPU, of its memory.
        step_seconds: median of a few updates after the first.
        steps: updates of the whole run.
        seconds: of all updates, without validation and checkpoints.
    """

    parameters: int
    kernel_parameters: int
    flops: float
    unit: str
    device: str
    memory_bytes: int
    step_seconds: float
    steps: int
    seconds: float


def try_recipe(recipe: Recipe | ImageRecipe) -> Trial:
    """Make a few updates of a recipe, and keep nothing.

    Args:
        recipe: what would be trained.

    Returns:
        Sizes, and the time that the whole run would take.

    Raises:
        InputError: as `train` does, for a recipe or data that cannot be used.

    >>> from nadaraya.training import load_recipe, try_recipe
    >>> overrides = ["training.steps=100", "model.hidden_size=8", "data.limit=9000", "training.batch_size=1"]
    >>> try_recipe(load_recipe("demo", overrides)).steps
    100
    """
    from nadaraya.evaluation.efficiency import image_model_cost, model_cost

    processes = Processes()
    task = processes.main_process_first(lambda: open_task(recipe, processes))
    if isinstance(recipe, ImageRecipe):
        flops, unit = float(image_model_cost(task.model, recipe.model.image_size).flops_per_image), "image"
    else:
        flops, unit = model_cost(task.model).flops_per_token, "token"
    learner = Learner(task, recipe, processes)
    learner.resume(None)
    batches = enumerate(islice(task.batches(0), _UPDATES), start=1)
    seconds = [learner.timed_update(step, *batch) for step, batch in batches]
    step_seconds = median_high(seconds[1:] or seconds)
    if processes.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(processes.device)
    else:
        memory = _peak_memory()
    return Trial(
        parameters=sum(parameter.numel() for parameter in task.model.parameters()),
        kernel_parameters=sum(parameter.numel() for _, parameter in kernel_parameters(task.model)),
        flops=flops,
        unit=unit,
        device=processes.device.type,
        memory_bytes=memory,
        step_seconds=step_seconds,
        steps=task.steps,
        seconds=step_seconds * task.steps,
    )


def _peak_memory() -> int:
    """The most bytes that this process has had."""
    if sys.platform == "win32":
        import psutil  # accelerate has it

        return int(psutil.Process().memory_info().peak_wset)
    import resource  # of Unix

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
