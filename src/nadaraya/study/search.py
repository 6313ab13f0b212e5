"""Search over kernel expressions: which kernel of the lag a recipe trains best with.

As Duvenaud et al. (2013) and Lloyd et al. (2014) search the structure of a Gaussian process, scored by the
validation loss of a trained model instead of a marginal likelihood. Candidates are trained in the queue of
studies; the same call goes on where it was.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

from pydantic import Field

from nadaraya.attention import variants
from nadaraya.errors import InputError, must_be
from nadaraya.files import file_in, write_file
from nadaraya.kernels.expressions import parse_expression
from nadaraya.stored import Stored, read_stored
from nadaraya.study.candidates import Candidate, Progress, SearchPlan, most_runs, search_progress
from nadaraya.study.file import check_changes
from nadaraya.study.plan import Cell, Measurements
from nadaraya.study.queue import Ended, Job, run_trainings, training_job
from nadaraya.study.results import (
    MEASURED_FILE,
    RESULTS_FILE,
    RUNS_FOLDER,
    SUMMARY_FILE,
    FinishedRuns,
    check_study_folder,
    versions,
)
from nadaraya.study.summary import mean_and_spread, render
from nadaraya.training import Recipe, load_recipe
from nadaraya.training.folder import FolderLock
from nadaraya.training.schema import NonNegativeInt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SearchPlan", "plan_search", "run_search", "summarise_search"]


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
    """The outcome of one call of `run_search`."""

    ended: Ended  # the queue
    progress: Progress  # of the search


class SearchRuns:
    """The runs of a search: `FOLDER/runs/EXPRESSION/seedN`, and a .json of metrics beside each.

    Runs that are gone count by their losses in results.json; that of another recipe is refused.
    """

    def __init__(self, recipe: Recipe, plan: SearchPlan, folder: Path) -> None:
        self._recipe, self._plan, self._folder = recipe, plan, folder
        self._finished, self._found = FinishedRuns("search"), dict[tuple[str, int], float]()
        if not (path := folder / RESULTS_FILE).is_file():
            return
        before = _read_results(folder)
        for row in (*before.candidates, *before.others):
            for seed, loss in row.losses.items():
                self._found[row.expression, seed] = math.inf if loss is None else loss
        if Recipe.from_mapping(before.recipe) != recipe:
            raise InputError(f"{path} was found with another recipe: choose another --out, or that recipe")

    def progress(self) -> Progress:
        """The state of the search."""
        return search_progress(self._plan, self.loss)

    def pending(self) -> list[Job]:
        """The runs that can be started now."""
        jobs = []
        for expression, seed in self.progress().pending:
            recipe = candidate_recipe(self._recipe, expression, seed)
            folder, cost = self._run_folder(expression, seed), parse_expression(expression).num_kernels
            jobs.append(training_job(f"{expression}, seed {seed}", recipe, folder, cost))
        return jobs

    def loss(self, expression: str, seed: int) -> float | None:
        """The final loss of a run, infinite where it diverged; None while there is none."""
        run = expression, seed
        if run not in self._found:
            wanted = partial(candidate_recipe, self._recipe, *run)
            if row := self._finished.metrics(self._run_folder(*run), wanted):
                self._found[run] = row.get("loss", math.inf)
        return self._found.get(run)

    def results(self) -> dict[str, Any]:
        """Everything that was found, as plain values."""
        progress, others = self.progress(), dict[str, dict[int, float]]()
        asked = {(each.expression, seed) for each in progress.candidates for seed in each.losses}
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
    (2, 11)
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
        options: workers, seconds and say of `nadaraya.study.queue.run_queue`.

    Raises:
        InputError: a recipe that cannot be used, or a folder that has other runs or is in use.

    >>> from pathlib import Path
    >>> from nadaraya.study.search import SearchPlan, run_search, search_recipe
    >>> recipe = search_recipe("demo", ["model.hidden_size=8", "data.limit=9000"])
    >>> session = run_search(recipe, SearchPlan(("rq", "gaussian")), Path("searches/demo"), seconds=0)
    >>> len(session.progress.pending)
    2
    """
    with FolderLock(folder) as lock:
        check_study_folder(folder)
        lock.take()
        runs = SearchRuns(recipe, plan, folder)
        # A recipe from which no model can be built is refused before any is trained.
        Measurements(folder / MEASURED_FILE).counts(candidate_recipe(recipe, plan.bases[0], 0))
        ended = run_trainings(
            folder, runs.pending, lambda: json.dumps(runs.results(), indent=1) + "\n", **options
        )
        return SearchSession(ended, write_summary(runs.progress(), folder))


def summarise_search(folder: Path) -> Progress:
    """Write summary.md and path.png of a search's folder anew, from its results.json; how far it has come.

    Raises:
        InputError: no such results.
    """
    found = _read_results(folder)
    runs = SearchRuns(Recipe.from_mapping(found.recipe), found.search, folder)
    return write_summary(runs.progress(), folder)


def write_summary(progress: Progress, folder: Path) -> Progress:
    """Write summary.md and, once something is known, path.png; the progress that they show."""
    from nadaraya.report import write_figure

    candidates = sorted(progress.candidates, key=lambda one: (one.round, one.losses.get(0, math.inf)))
    texts = {"verdict": verdict(progress), "mean": _mean, "text": _text}
    values = {"path": progress.path, "candidates": candidates}
    write_file(folder / SUMMARY_FILE, render("study/search.md.jinja", **texts, **values))
    if any(math.isfinite(loss) for each in candidates for loss in each.losses.values()):
        write_figure(draw(progress), folder / "path.png")
    return progress


def verdict(progress: Progress) -> str:
    """One sentence or two: the best expression, and how the search ended."""
    best = progress.best
    if best is None:
        ended = f"could be trained: {progress.ended}" if progress.ended else "is confirmed yet"
        return f"No expression {ended}."
    how = progress.ended or f"{len(progress.pending)} runs of round {progress.candidates[-1].round} are left"
    return (
        f"Best of {len(progress.candidates)} expressions: `{best.expression}`, {_mean(best)} nats/token "
        f"({len(best.confirming)} seeds that did not choose it), {best.parameters_per_head} "
        f"parameters per head. The search {'ended' if progress.ended else 'is not at its end'}: {how}."
    )


def draw(progress: Progress) -> "Figure":
    """Loss against parameters: a dot for each expression with the first seed, and the path of the best."""
    from nadaraya.report.palette import COLOURS
    from nadaraya.report.style import charts

    tried = [each for each in progress.candidates if math.isfinite(each.losses.get(0, math.inf))]
    path = [each for each in progress.path if each.loss is not None and math.isfinite(each.loss)]
    with charts(560, 380) as (figure, axes):
        chart = axes[0, 0]
        counts = [each.parameters_per_head for each in tried]
        chart.plot(counts, [each.losses[0] for each in tried], "o", color=COLOURS["muted"][0], markersize=3,
                   alpha=0.6, label="tried: the seed that chooses")  # fmt: skip
        counts, losses = [each.parameters_per_head for each in path], [each.loss for each in path]
        spread = [stdev(each.confirming) for each in path]
        chart.errorbar(counts, losses, yerr=spread, fmt="o-", color=COLOURS["vermillion"][0], markersize=5,
                       linewidth=1.3, capsize=2, label="kept: mean, spread of other seeds")  # fmt: skip
        for each, count in zip(path, counts, strict=True):
            chart.annotate(each.expression, (count, each.loss), xytext=(6, 5), textcoords="offset points",
                           fontsize=8)  # fmt: skip
        chart.set(xlabel="kernel parameters per head", title="validation loss, nats/token")
        chart.legend(fontsize=8)
    return figure


def _mean(candidate: Candidate) -> str:
    """Mean and standard deviation over the confirming seeds."""
    known = candidate.loss is not None and candidate.loss < math.inf
    return mean_and_spread(candidate.confirming) if known else _text(candidate.loss)


def _text(loss: float | None) -> str:
    if loss is None:
        return ""
    return "diverged" if loss == math.inf else f"{loss:.4f}"


def _read_results(folder: Path) -> _Results:
    path = file_in(folder, RESULTS_FILE, "has no results of a search")
    return read_stored(path, _Results, "the results of a search")


def _plain(losses: Mapping[int, float]) -> dict[int, float | None]:
    """Losses by seed as JSON has them: None of a run that diverged."""
    return {seed: None if loss == math.inf else loss for seed, loss in losses.items()}


def _file_name(expression: str) -> str:
    """Its names and numbers, and a digest that tells it from others with the same."""
    digest = hashlib.sha256(expression.encode()).hexdigest()[:8]
    words = re.sub(r"[^\w+]+", "-", expression.replace(" ", "")).strip("-")
    return f"{words[:80]}-{digest}"
