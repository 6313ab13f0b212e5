"""Accuracy per task, centred accuracy, and their mean: the CORE metric."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import eq
from typing import Any, Required, TypedDict, Unpack

from nadaraya.errors import must_be
from nadaraya.evaluation.core.prompts import shuffled_rows
from nadaraya.evaluation.core.scoring import Decision, decide, scored_prompts, token_losses
from nadaraya.evaluation.core.tasks import CORE_TASKS, CoreTask, Row

Progress = Callable[[str, int, int], object]


class CoreOptions(TypedDict, total=False):
    """How tasks are run; see `evaluate_core`."""

    context: Required[int]
    limit: int | None
    batch_size: int
    progress: Progress | None


@dataclass(frozen=True)
class TaskResult:
    """What came out of one task.

    Args:
        task: its label.
        kind: its kind; see `CoreTask`.
        shots: solved examples in front of each question.
        examples: how many were asked.
        accuracy: share that CORE's rule decides right.
        acc: share that lm-eval's `acc` decides right on the same prompts.
        acc_norm: the same for lm-eval's `acc_norm`.
        baseline: DCLM's constant for guesses at random, a fraction.
        chance: expected accuracy of guesses at random among the options of these files.
        seconds: on the clock.
        decisions: of every example, in the order in which they were asked.

    >>> from nadaraya.evaluation.core import TaskResult
    >>> result = TaskResult("copa", "multiple_choice", 0, 100, 0.6, 0.58, 0.59, 0.5, 0.5, 1.0, ())
    >>> round(result.centred, 3), round(result.standard_error, 3)
    (0.2, 0.049)
    """

    task: str
    kind: str
    shots: int
    examples: int
    accuracy: float
    acc: float
    acc_norm: float
    baseline: float
    chance: float
    seconds: float
    decisions: tuple[Decision, ...]

    @property
    def centred(self) -> float:
        """(accuracy − baseline) / (1 − baseline): 0 for guesses at random, 1 at best."""
        return (self.accuracy - self.baseline) / (1 - self.baseline)

    @property
    def over_chance(self) -> float:
        """The same with `chance` in place of DCLM's constant, which a few files do not have."""
        return (self.accuracy - self.chance) / (1 - self.chance)

    @property
    def standard_error(self) -> float:
        """Of the accuracy, from the number of examples: √(p (1 − p) / n)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.examples)

    def figures(self) -> dict[str, Any]:
        """All but the decisions, for JSON."""
        kept = {name: value for name, value in vars(self).items() if name != "decisions"}
        names = ("centred", "over_chance", "standard_error")
        return {**kept, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class CoreEvaluation:
    """The tasks that were run.

    Args:
        results: one per task.
        limit: examples per task; None where all were asked.

    >>> from nadaraya.evaluation.core import CoreEvaluation, TaskResult
    >>> result = TaskResult("copa", "multiple_choice", 0, 100, 0.6, 0.58, 0.59, 0.5, 0.5, 1.0, ())
    >>> evaluation = CoreEvaluation((result,), limit=None)
    >>> round(evaluation.core, 3), len(evaluation.missing)
    (0.2, 21)
    """

    results: tuple[TaskResult, ...]
    limit: int | None

    @property
    def core(self) -> float:
        """The mean of the centred accuracies of the tasks that were run; the CORE metric when all 22 were."""
        return math.fsum(result.centred for result in self.results) / len(self.results)

    @property
    def standard_error(self) -> float:
        """Of `core`, from the numbers of examples alone."""
        parts = (result.standard_error / (1 - result.baseline) for result in self.results)
        return math.hypot(*parts) / len(self.results)

    @property
    def core_over_chance(self) -> float:
        """The mean of `TaskResult.over_chance`."""
        return math.fsum(result.over_chance for result in self.results) / len(self.results)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of CORE's 22 tasks that were not run."""
        run = {result.task for result in self.results}
        return tuple(name for name in CORE_TASKS if name not in run)

    def figures(self) -> dict[str, Any]:
        """Every figure, for JSON."""
        return {
            "core": self.core,
            "core_standard_error": self.standard_error,
            "core_over_chance": self.core_over_chance,
            "tasks_run": len(self.results),
            "tasks_missing": list(self.missing),
            "limit": self.limit,
            "results": [result.figures() for result in self.results],
        }


def evaluate_core(
    model: Any,
    tokenizer: Any,
    tasks: Iterable[CoreTask],
    *,
    context: int,
    limit: int | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> CoreEvaluation:
    """Run CORE's tasks, prompts and decisions as in nanochat.

    Args:
        model: any causal language model of transformers, on the device where it shall run.
        tokenizer: its tokenizer; its beginning-of-text token, where it has one, is put before each prompt.
        tasks: from `read_core`; the files of all are checked before the first is run.
        context: tokens that the model reads; of a longer prompt it sees the end.
        limit: examples per task, the first of the reference's fixed random order; default all.
        batch_size: prompts at a time, fewer where their logits would take more than 1 GiB; default 16.
        progress: called with the label of a task, how many of its examples are done, and their number.

    Returns:
        Figures per task, the mean of the centred accuracies, and which of the 22 tasks are missing.

    Raises:
        InputError: a damaged file or row, no task, a limit too small for the shots, a text that the tokenizer
            cannot encode, or a model whose logits are NaN.

    >>> from pathlib import Path
    >>> from nadaraya.data import byte_tokenizer
    >>> from nadaraya.evaluation.core import CoreTask, evaluate_core
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> _ = Path("copa.jsonl").write_text('{"query": "It rained:", "choices": ["run.", "no."], "gold": 0}')
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=256))
    >>> task = CoreTask("copa", "multiple_choice", 0, " ", 0.5, Path("copa.jsonl"))
    >>> evaluate_core(model, byte_tokenizer(), [task], context=64).core in (-1.0, 1.0)
    True
    """
    tasks = list(tasks)
    if not tasks:
        raise must_be("tasks", "one or more of CORE's", tasks)
    for name, given, least in (("limit", limit, 1), ("context", context, 2), ("batch_size", batch_size, 1)):
        if given is not None and given < least:
            raise must_be(name, f"an integer of at least {least}", given)
    asked = [(task, shuffled_rows(task, limit)) for task in tasks]
    results = []
    for task, rows in asked:
        started, decisions = time.perf_counter(), []
        examples = (scored_prompts(task, rows, index, tokenizer) for index in range(len(rows)))
        for row, scored in zip(rows, token_losses(model, examples, context, batch_size), strict=True):
            decisions.append(decide(task.kind, scored, row))
            if progress is not None:
                progress(task.label, len(decisions), len(rows))
        results.append(_result(task, rows, decisions, time.perf_counter() - started))
    return CoreEvaluation(tuple(results), limit)


def evaluate_task(model: Any, tokenizer: Any, task: CoreTask, **options: Unpack[CoreOptions]) -> TaskResult:
    """Run one task.

    Args:
        model: as in `evaluate_core`.
        tokenizer: its tokenizer.
        task: the task.
        options: context, limit, batch_size and progress of `evaluate_core`.

    Returns:
        Its figures and the decision for every example.

    Raises:
        InputError: as `evaluate_core`.

    >>> from pathlib import Path
    >>> from nadaraya.evaluation.core import CoreTask, evaluate_task
    >>> evaluate_task(None, None, CoreTask("copa", "schema", 0, " ", 0.5, Path("copa.jsonl")), context=1)
    Traceback (most recent call last):
    nadaraya.errors.InputError: context must be an integer of at least 2, got 1
    """
    return evaluate_core(model, tokenizer, [task], **options).results[0]


def _result(task: CoreTask, rows: list[Row], decisions: list[Decision], seconds: float) -> TaskResult:
    gold = [row.get("gold", 0) for row in rows]
    accuracy, acc, acc_norm = (
        sum(map(eq, taken, gold)) / len(rows) for taken in zip(*decisions, strict=True)
    )
    asked = (task.label, task.kind, task.shots, len(rows))
    shares = (accuracy, acc, acc_norm, task.baseline, task.chance)
    return TaskResult(*asked, *shares, seconds, tuple(decisions))
