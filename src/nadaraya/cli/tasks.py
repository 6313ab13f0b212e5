"""`nadaraya evaluate --core` and `--lm-eval`: any causal language model on tasks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nadaraya.cli.options import computing, progress_bar
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable

if TYPE_CHECKING:
    from nadaraya.evaluation.core import CoreEvaluation
    from nadaraya.evaluation.language import CausalModel


class Chosen(NamedTuple):
    """Weights of a run, device and precision of an evaluation."""

    weights: str | None
    device: str
    precision: str

    @property
    def named(self) -> str:
        """The weights as they stand behind a line of metrics."""
        return f" ({self.weights} weights)" if self.weights else ""


@contextmanager
def opened(source: str, chosen: Chosen) -> "Iterator[CausalModel]":
    """A language model on its device."""
    from nadaraya.training import open_causal_model

    causal = open_causal_model(source, chosen.weights)
    with computing(causal.model, chosen.device, chosen.precision):
        yield causal


def names(text: str | None) -> list[str] | None:
    """Names separated by commas; None of none."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def run_core(
    source: str, chosen: Chosen, folder: Path, labels: list[str] | None, limit: int | None, batch_size: int
) -> Result:
    """CORE's tasks in a folder."""
    from nadaraya.evaluation.core import evaluate_core, read_core

    with opened(source, chosen) as causal:
        tasks = read_core(folder, labels)
        sizes: Any = {"context": causal.context, "limit": limit, "batch_size": batch_size}
        with _progress(len(tasks)) as progress:
            evaluation = evaluate_core(causal.model, causal.tokenizer, tasks, **sizes, progress=progress)
    return Result(evaluation.figures(), _core(evaluation))


def run_lm_eval(source: str, chosen: Chosen, tasks: list[str], limit: int | None, **options: Any) -> Result:
    """Tasks of lm-evaluation-harness; `options` are those of `evaluate_lm_eval`."""
    from nadaraya.evaluation import evaluate_lm_eval

    with opened(source, chosen) as causal:
        found = evaluate_lm_eval(causal, tasks, limit=limit, precision=chosen.precision, **options)
    results = {
        task: {"shots": found["n-shot"].get(task), **_plain(figures)}
        for task, figures in found["results"].items()
    }
    return Result({"limit": limit, "results": results}, [_lm_eval(results)])


def _lm_eval(results: dict[str, dict[str, Any]]) -> FigureTable:
    table = FigureTable(["task", "metric"], ["shots", "value", "standard error"])
    for task, figures in results.items():
        for name, value in figures.items():
            if name.endswith("_stderr") or name in ("shots", "examples") or not isinstance(value, float):
                continue
            error = figures.get(f"{name}_stderr")
            shown = f"{error:.4f}" if isinstance(error, float) else ""
            table.add_row(task, name, str(figures["shots"]), f"{value:.4f}", shown)
    return table


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's results by metric; a filter is named where it is not the one that does nothing."""
    plain: dict[str, Any] = {}
    for key, value in figures.items():
        metric, comma, filtered = key.partition(",")
        if comma:
            plain[metric if filtered == "none" else f"{metric} ({filtered})"] = value
        elif key == "sample_len":
            plain["examples"] = value
    return plain


def _core(evaluation: "CoreEvaluation") -> Iterator[str | FigureTable]:
    table = FigureTable(["task"], ["shots", "n", "accuracy", "DCLM", "chance", "centred", "s"])
    for result in evaluation.results:
        shares = [f"{share:.3f}" for share in (result.baseline, result.chance, result.centred)]
        accuracy = f"{result.accuracy:.3f} ± {result.standard_error:.3f}"
        counts = (str(result.shots), f"{result.examples:,}")
        table.add_row(result.task, *counts, accuracy, *shares, f"{result.seconds:.1f}")
    yield table
    missing = evaluation.missing
    yield (
        f"CORE: {evaluation.core:.4f} ± {evaluation.standard_error:.4f}, the mean of "
        f"{len(evaluation.results)} centred accuracies; with the chance of these files "
        f"{evaluation.core_over_chance:.4f}"
    )
    if missing:
        yield f"{22 - len(missing)} of CORE's 22 tasks were run; missing: {', '.join(missing)}"
    if evaluation.limit:
        yield f"at most {evaluation.limit:,} examples per task"


@contextmanager
def _progress(tasks: int) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for the task that runs."""
    with progress_bar() as bar:
        line = bar.add_task("", total=None)
        begun: list[str] = []

        def show(label: str, done: int, total: int) -> None:
            if label not in begun:
                begun.append(label)
                bar.reset(line, total=total, description=f"{len(begun)}/{tasks} {label}")
            bar.update(line, completed=done)

        yield show
