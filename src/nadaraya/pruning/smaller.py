"""A run with a smaller model: tuned again on request, and written as a finished run of its own."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from nadaraya.errors import InputError, must_be
from nadaraya.files import check_new_folder, sha256, write_file, write_into
from nadaraya.training.folder import INITIAL_KERNELS_FILE, METRICS_FILE, RECIPE_FILE
from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.loop import Learner
from nadaraya.training.metrics import Meter, digest_of
from nadaraya.training.optimizer import make_schedule
from nadaraya.training.processes import Processes
from nadaraya.training.recipe import read_mapping
from nadaraya.training.run import Run
from nadaraya.training.schema import LONGEST_NAME
from nadaraya.training.text import TextData, TextTask
from nadaraya.training.text_recipe import Recipe

TUNE_RATE = 0.1  # of the learning rate of the run
_ROUNDS = 5


@dataclass(frozen=True)
class PrunedCost:
    """The scores and costs of a model."""

    loss: float  # of the whole validation text, in nats/token
    bits_per_byte: float  # of the same
    parameters: int
    step_seconds: float  # of a training step, the median of a few, in turns with the other model
    cache_bytes_per_token: int  # of one text


def prune_run(
    run: Run,
    heads: Mapping[int, Sequence[int]],
    folder: str | Path,
    *,
    units: Mapping[int, Sequence[int]] | None = None,
    tune: int = 0,
    tune_rate: float = TUNE_RATE,
) -> tuple[Run, PrunedCost, PrunedCost]:
    """Write a run whose model has fewer heads, and on request smaller feed-forward layers.

    Args:
        run: a finished run on text; left as it is.
        heads: the heads to remove by layer, as they were numbered before any was removed.
        folder: of the new run; made when absent, and refused where it has files.
        units: hidden units of the feed-forward layers to remove by layer, numbered as the run has them;
            default None, none.
        tune: updates after the removal, by the recipe of the run, on the text that would have come next, with
            a new optimiser and a schedule of their own: the learning rates rise over the first tenth and fall
            to 0 as a cosine does. Default 0.
        tune_rate: the highest of these learning rates as a share of the run's own. Default 0.1.

    Returns:
        The new run, finished, and what both models score and cost: the old one, the new one.

    Raises:
        InputError: a run on images, an unfinished one or one whose text has changed; heads or units that it
            has not; a tune_rate that is no positive number up to 1; a folder with files in it.

    >>> from nadaraya.training import load_recipe, train
    >>> from nadaraya.pruning import prune_run
    >>> overrides = ["training.steps=2", "training.warmup_steps=0", "model.hidden_size=8", "data.limit=9000"]
    >>> run = train(load_recipe("demo", [*overrides, "training.batch_size=1"]), "runs/whole", progress=False)
    >>> smaller, before, after = prune_run(run, {0: [1]}, "runs/pruned")
    >>> after.parameters < before.parameters, smaller.load_model().config.pruned_heads
    (True, {'0': [1]})
    """
    run.text_recipe()
    check_new_folder(folder := Path(folder))
    whole = run.load_model(weights="trained")
    smaller = without(whole, heads, units)
    kernels = {
        name: value.detach().contiguous()
        for name, value in kernel_parameters(without(run.load_model(initial=True), heads, units))
    }
    task = SmallerTask(run, smaller, tune, tune_rate)
    assert run.final is not None
    records = [record for record in run.metrics if record["kind"] != "final"]
    if tune:
        records.append(task.tune(max((record["seconds"] for record in run.series("train")), default=0.0)))
    validation = task.learner.validate()
    records.append({"kind": "validation", "step": task.steps, **validation})
    seconds = _step_seconds([whole.to(task.model.device), task.model], task)
    with write_into(folder) as scratch:
        write_file(scratch / RECIPE_FILE, task.recipe.to_yaml())
        task.begin(scratch)
        save_file(kernels, scratch / INITIAL_KERNELS_FILE)
        with task.learner.cast:
            metrics = task.finish(scratch, None, validation, seconds[1])
        after = _cost(task.model, metrics, seconds[1])
        final = {
            "kind": "final",
            "step": task.steps,
            **{key: value for key, value in asdict(after).items() if key != "cache_bytes_per_token"},
            "kernel_parameters": sum(value.numel() for value in kernels.values()),
            **task.fingerprint,
            **_removed(smaller),
        }
        digests = {path.name: sha256(path) for path in sorted(scratch.iterdir())}
        digests[METRICS_FILE] = digest_of([*records, final])
        lines = [json.dumps(record) + "\n" for record in [*records, {**final, "sha256": digests}]]
        write_file(scratch / METRICS_FILE, "".join(lines))
    return Run(folder), _cost(whole, run.final, seconds[0]), after


def without(
    model: Any, heads: Mapping[int, Sequence[int]], units: Mapping[int, Sequence[int]] | None = None
) -> Any:
    """A model without some heads and hidden units, by layer."""
    from nadaraya.models import prune_heads, prune_units

    smaller = prune_heads(model, heads)
    return prune_units(smaller, units) if units else smaller


def check_tuning(tune: int, tune_rate: float) -> None:
    """Refuse updates and a learning rate that no smaller model can be tuned by."""
    if tune < 0:
        raise must_be("tune", "at least 0 updates", tune)
    if not 0 < tune_rate <= 1:  # false for NaN
        raise must_be("tune_rate", "a positive share of the run's learning rate, at most 1", tune_rate)


class SmallerTask(TextTask):
    """The task of a run with a smaller model, and what makes updates after the run's last one.

    Args:
        run: a finished run on text.
        smaller: the model, whose weights `model` gets.
        tune, tune_rate: as of `prune_run`.
        text: that of the run, where it is open already.

    Attributes:
        recipe: that of the smaller model, so many updates longer.
        learner: of the model.
    """

    def __init__(
        self, run: Run, smaller: Any, tune: int, tune_rate: float, text: TextData | None = None
    ) -> None:
        check_tuning(tune, tune_rate)
        whole, processes = run.text_recipe(), Processes()
        mapping = whole.to_mapping()
        name = f"{whole.name.removesuffix('-pruned')}-pruned"
        mapping["name"] = name if len(name.encode()) <= LONGEST_NAME else whole.name
        mapping["model"]["extra"] |= _removed(smaller)
        mapping["training"] |= {"steps": run.steps + tune, "keep_best": False}
        mapping["training"] |= {"compile": False, "tracker": None}
        recipe = read_mapping(mapping)
        assert isinstance(recipe, Recipe)
        super().__init__(recipe, processes, text)
        assert run.final is not None
        if any(run.final.get(key) != value for key, value in self.fingerprint.items()):
            raise InputError(f"{self.fingerprint_error} that {run.path} was trained on: restore it")
        self.model.load_state_dict(smaller.state_dict())
        rates = {"learning_rate": tune_rate * whole.training.learning_rate, "min_learning_rate": 0.0}
        counts = {"steps": tune, "warmup_steps": tune // 10}
        self._schedule = whole.training.model_copy(update={**rates, **counts, "schedule": "cosine"})
        self.recipe, self.learner = recipe, Learner(self, recipe, processes)

    def schedule(self, optimizer: torch.optim.Optimizer, done: int) -> Callable[[int], None]:
        """One of its own: the rates that a long run ends with change nothing any more."""
        scheduler = make_schedule(optimizer, self._schedule)
        return lambda updates: scheduler.step()

    def tune(self, seconds: float = 0.0) -> dict[str, Any]:
        """Make the updates; their record, in which training took so many seconds before."""
        done = self.steps - self._schedule.steps
        self.learner.resume(None, done)
        meter = Meter([], seconds)
        for step, (inputs, targets) in enumerate(self.batches(done), start=done + 1):
            meter.add(*self.learner.update(step, inputs, targets))
        meter.collect(self.steps)
        return {"kind": "train", "step": self.steps, **self.learner.metrics(self.steps, meter)}


def _removed(model: Any) -> dict[str, Any]:
    """The removed parts of a model, as fields of its configuration; those that are None left out."""
    fields = {name: getattr(model.config, name) for name in ("pruned_heads", "intermediate_sizes")}
    return {name: value for name, value in fields.items() if value is not None}


def _step_seconds(models: list[Any], task: TextTask) -> list[float]:
    """Median seconds of loss and gradients of one batch, the models in turns, so that drift affects all."""
    device = models[0].device
    inputs, targets = (part.to(device) for part in next(islice(task.batches(task.steps - 1), 1)))
    seconds = np.empty((_ROUNDS + 1, len(models)))
    for turn, index in np.ndindex(seconds.shape):
        model = models[index].train()
        begun = time.perf_counter()
        logits = model(input_ids=inputs, use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        model.zero_grad()
        seconds[turn, index] = time.perf_counter() - begun
    found: list[float] = np.median(seconds[1:], axis=0).tolist()  # the first fetches memory and compiles
    return found


@torch.no_grad()
def _cost(model: Any, metrics: Mapping[str, Any], seconds: float) -> PrunedCost:
    from transformers.cache_utils import DynamicCache

    from nadaraya.evaluation.decoding import cache_bytes

    model.eval()
    cache = DynamicCache(config=model.config)
    held = []
    for _ in range(2):
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache)
        held.append(cache_bytes(cache))
    return PrunedCost(
        metrics["loss"], metrics["bits_per_byte"], model.num_parameters(), seconds, held[1] - held[0]
    )
