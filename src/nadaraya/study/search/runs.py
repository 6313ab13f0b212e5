"""The runs of a search in its folder, in the queue of studies; the same call goes on where it was."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from nadaraya.attention import variants
from nadaraya.errors import InputError, must_be
from nadaraya.kernels import parse_expression
from nadaraya.stored import Stored, read_stored
from nadaraya.study.file import check_changes
from nadaraya.study.kept import MEASURED_FILE, RESULTS_FILE, RUNS_FOLDER
from nadaraya.study.plan import Cell, Measurements
from nadaraya.study.queue import Ended, Job
from nadaraya.study.runs import finished_row, run_all, versions, worker_job
from nadaraya.study.search.progress import Progress, SearchPlan, most_runs, search_progress
from nadaraya.training import Recipe, load_recipe
from nadaraya.training.folder import FolderLock
from nadaraya.training.schema import NonNegativeInt


class _Found(Stored):
    expression: str
    losses: dict[NonNegativeInt, float | None]
    """By seed; null where training diverged."""


class _Results(Stored):
    """The content of results.json; `others` are losses that its plan does not ask for."""

    search: SearchPlan
    recipe: dict[str, Any]
    candidates: list[_Found]
    others: list[_Found] = Field(default_factory=list)


@dataclass(frozen=True)
class SearchSession:
    """The outcome of one call of `run_search`.

    Attributes:
        ended: how the queue ended.
        progress: how far the search has come.
    """

    ended: Ended
    progress: Progress


class SearchRuns:
    """The runs of a search: `FOLDER/runs/EXPRESSION/seedN`, and a .json of figures beside each.

    Runs that are gone count by their losses in results.json; that of another recipe is refused.
    """

    def __init__(self, recipe: Recipe, plan: SearchPlan, folder: Path) -> None:
        self._recipe, self._plan, self._folder = recipe, plan, folder
        self._found: dict[tuple[str, int], float] = {}
        if not (folder / RESULTS_FILE).is_file():
            return
        before = _read_results(folder)
        for row in (*before.candidates, *before.others):
            for seed, loss in row.losses.items():
                self._found[row.expression, seed] = math.inf if loss is None else loss
        if Recipe.from_mapping(before.recipe) != recipe:
            path = folder / RESULTS_FILE
            raise InputError(f"{path} was found with another recipe: choose another --out, or that recipe")

    def progress(self) -> Progress:
        """The state of the search."""
        return search_progress(self._plan, self.loss)

    def pending(self) -> list[Job]:
        """The runs that can be started now."""
        return [
            worker_job(
                f"{expression}, seed {seed}",
                candidate_recipe(self._recipe, expression, seed),
                self._run_folder(expression, seed),
                parse_expression(expression).num_kernels,
            )
            for expression, seed in self.progress().pending
        ]

    def loss(self, expression: str, seed: int) -> float | None:
        """The final loss of a run, infinite where it diverged; None while there is none."""
        if (expression, seed) not in self._found:
            wanted = candidate_recipe(self._recipe, expression, seed)
            row = finished_row(self._run_folder(expression, seed), wanted, "search")
            if row is None:
                return None
            self._found[expression, seed] = float(row.get("loss", "inf"))
        return self._found[expression, seed]

    def results(self) -> dict[str, Any]:
        """Everything that was found, as plain values."""
        progress = self.progress()
        asked = {(each.expression, seed) for each in progress.candidates for seed in each.losses}
        others: dict[str, dict[int, float]] = {}
        for (expression, seed), loss in self._found.items():
            if (expression, seed) not in asked:
                others.setdefault(expression, {})[seed] = loss
        candidates = [
            {**asdict(each), "losses": _plain(each.losses), "parameters_per_head": each.parameters_per_head}
            for each in progress.candidates
        ]
        return {
            "search": asdict(self._plan),
            "recipe": self._recipe.to_mapping(),
            "candidates": candidates,
            "others": [{"expression": name, "losses": _plain(losses)} for name, losses in others.items()],
            "best": progress.best and progress.best.expression,
            "ended": progress.ended,
            "versions": versions(),
        }

    def _run_folder(self, expression: str, seed: int) -> Path:
        return self._folder / RUNS_FOLDER / _file_name(expression) / f"seed{seed}"


def search_recipe(source: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe that all candidates of a search share.

    Args:
        source: name or path of a recipe on text.
        changes: of its keys, as KEY=VALUE. Its variant becomes `kernel` where it has no option `expression`.

    Raises:
        InputError: no such recipe, or one on images.

    >>> from nadaraya.study.search import search_recipe
    >>> search_recipe("demo", ["model.variant_options.how=add"]).model.variant
    'kernel'
    """
    check_changes(changes, ("name", "seed", "model.variant_options.expression"), "search")
    recipe = load_recipe(source, changes)
    if not isinstance(recipe, Recipe):
        raise must_be("recipe of a search", "one on text", str(source))
    mapping, given = recipe.to_mapping(), recipe.model.variant
    names = [given] if isinstance(given, str) else given
    if not any("expression" in variants.options(name) for name in names):
        mapping["model"]["variant"] = "kernel"
    mapping["model"]["variant_options"].pop("expression", None)
    return Recipe.from_mapping({**mapping, "seed": 0, "name": "search"})


def candidate_recipe(recipe: Recipe, expression: str, seed: int) -> Recipe:
    """The recipe of an expression with a seed."""
    mapping = recipe.to_mapping()
    mapping["model"]["variant_options"]["expression"] = expression
    return Recipe.from_mapping({**mapping, "seed": seed, "name": f"{_file_name(expression)}-seed{seed}"})


def plan_search(
    recipe: Recipe, plan: SearchPlan, folder: Path, speed: float | None = None
) -> dict[str, float]:
    """Number of runs that a search needs now, and about how many at most; FLOPs and hours of one run.

    Args:
        recipe: from `search_recipe`.
        plan: of the search.
        folder: of the search, which keeps what was measured.
        speed: FLOP/s of one run; default measured from a few updates with the first base.

    Raises:
        InputError: a recipe that cannot be used, or a folder that has other runs.

    >>> from pathlib import Path
    >>> from nadaraya.study.search import SearchPlan, plan_search, search_recipe
    >>> recipe = search_recipe("demo", ["model.hidden_size=8", "data.limit=9000"])
    >>> cost = plan_search(recipe, SearchPlan(("rq", "gaussian"), rounds=1), Path("out"), speed=1e9)
    >>> cost["runs_now"], cost["runs_at_most"]
    (2, 15)
    """
    measurements, runs = Measurements(folder / MEASURED_FILE), SearchRuns(recipe, plan, folder)
    first = candidate_recipe(recipe, plan.bases[0], 0)
    flops = Cell("", "", first, *measurements.counts(first)).flops
    if speed:
        seconds = flops / speed
    else:
        seconds = first.length * measurements.step_seconds({"kernel": first}, "kernel")["kernel"]
    return {
        "runs_now": len(runs.progress().pending),
        "runs_at_most": most_runs(plan, runs.loss),
        "flops": flops,
        "hours": seconds / 3600,
    }


def run_search(recipe: Recipe, plan: SearchPlan, folder: Path, **options: Any) -> SearchSession:
    """Train what a search needs, round by round, and write results.json, summary.md and path.png.

    Args:
        recipe: from `search_recipe`.
        plan: of the search.
        folder: of its runs and results.
        options: workers, seconds and say of `nadaraya.study.run_queue`.

    Raises:
        InputError: a recipe that cannot be used, or a folder that has other runs or is in use.

    >>> from pathlib import Path
    >>> from nadaraya.study.search import SearchPlan, run_search, search_recipe
    >>> recipe = search_recipe("demo", ["model.hidden_size=8", "data.limit=9000"])
    >>> session = run_search(recipe, SearchPlan(("rq", "gaussian")), Path("searches/demo"), seconds=0)
    >>> len(session.progress.pending)
    2
    """
    from nadaraya.study.search.summary import write_summary

    with FolderLock(folder) as lock:
        lock.take()
        runs = SearchRuns(recipe, plan, folder)
        # A recipe from which no model can be built is refused before any is trained.
        Measurements(folder / MEASURED_FILE).counts(candidate_recipe(recipe, plan.bases[0], 0))
        ended = run_all(folder, runs.pending, lambda: json.dumps(runs.results(), indent=1) + "\n", **options)
        progress = runs.progress()
        write_summary(progress, folder)
        return SearchSession(ended, progress)


def summarise_search(folder: Path) -> Progress:
    """Write summary.md and path.png of a search anew, from its results.json alone; how far it has come.

    Args:
        folder: of the search.

    Raises:
        InputError: no such results.

    >>> from pathlib import Path
    >>> from nadaraya.study.search import SearchPlan, run_search, search_recipe, summarise_search
    >>> recipe = search_recipe("demo", ["model.hidden_size=8", "data.limit=9000"])
    >>> _ = run_search(recipe, SearchPlan(("rq", "gaussian")), Path("searches/demo"), seconds=0)
    >>> len(summarise_search(Path("searches/demo")).pending)
    2
    """
    from nadaraya.study.search.summary import write_summary

    found = _read_results(folder)
    progress = SearchRuns(Recipe.from_mapping(found.recipe), found.search, folder).progress()
    write_summary(progress, folder)
    return progress


def _read_results(folder: Path) -> _Results:
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no results of a search: it has no {RESULTS_FILE}")
    return read_stored(path, _Results, "the results of a search")


def _plain(losses: Mapping[int, float]) -> dict[int, float | None]:
    """Losses by seed as JSON has them: None of a run that diverged."""
    return {seed: None if loss == math.inf else loss for seed, loss in losses.items()}


def _file_name(expression: str) -> str:
    """Its names and numbers, and a digest that tells it from others with the same."""
    digest = hashlib.sha256(expression.encode()).hexdigest()[:8]
    words = re.sub(r"[^\w+]+", "-", expression.replace(" ", "")).strip("-")
    return f"{words[:80]}-{digest}"
