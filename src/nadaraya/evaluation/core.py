"""The CORE metric of DCLM (Li et al. 2024) by nanochat's rules: prompts, scores, decisions, accuracy.

Each option of an example is a prompt: solved examples, the question, and the ending that is scored. The
option with the lowest mean loss over the tokens in which the options differ is taken; an ending by itself
counts where every token of it is the likeliest. Accuracies are centred between guesses at random and 1, and
averaged.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import eq
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from nadaraya.errors import InputError, must_be
from nadaraya.evaluation.core_tasks import (
    CORE_TASKS,
    OPTIONS,
    CoreTask,
    Row,
    core_prompts,
    few_shot_rows,
    read_core,
    shuffled_rows,
)
from nadaraya.evaluation.language import encoded, predict, rows_at_a_time

__all__ = ["CORE_TASKS", "CoreTask", "evaluate_core", "read_core"]

EXAMPLES = 64  # examples whose prompts are sorted by length together


class Decision(NamedTuple):
    """The option that each rule takes.

    For language modelling all three are 0 when every token of the ending is the likeliest one, else −1.

    >>> from nadaraya.evaluation.core import Decision
    >>> Decision(core=1, acc=0, acc_norm=1).core
    1
    """

    core: int  # CORE's rule: the lowest mean loss over the tokens in which the options differ
    acc: int  # lm-eval's `acc`: the highest log-likelihood of the ending, a sum
    acc_norm: int  # lm-eval's `acc_norm`: the same divided by the option's number of characters


@dataclass(frozen=True)
class TaskResult:
    """Accuracies on one task.

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
        """Every metric, for JSON."""
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
    progress: Callable[[str, int, int], object] | None = None,
) -> CoreEvaluation:
    """Run CORE's tasks, with prompts and decisions as in nanochat.

    Args:
        model: any causal language model of transformers, on the device where it shall run.
        tokenizer: its tokenizer; its beginning-of-text token, where it has one, is put before each prompt.
        tasks: from `read_core`; the files of all are checked before the first is run.
        context: tokens that the model reads; of a longer prompt it sees the end.
        limit: examples per task, the first of the reference's fixed random order; default all.
        batch_size: prompts at a time, fewer where their logits would take more than 1 GiB; default 16.
        progress: called with the label of a task, how many of its examples are done, and their number.

    Returns:
        Metrics per task, the mean of the centred accuracies, and which of the 22 tasks are missing.

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
    results = []
    for task, rows in [(task, shuffled_rows(task, limit)) for task in tasks]:
        started, decisions = time.perf_counter(), list[Decision]()
        for first in range(0, len(rows), EXAMPLES):
            group = range(first, min(first + EXAMPLES, len(rows)))
            examples = [_tokenised(task, rows, index, tokenizer) for index in group]
            scores = iter(_scores(model, list(chain(*examples)), context, batch_size))
            for index, example in zip(group, examples, strict=True):
                decisions.append(_decide(task.kind, [next(scores) for _ in example], rows[index]))
                if progress is not None:
                    progress(task.label, len(decisions), len(rows))
        gold = [row.get("gold", 0) for row in rows]
        by_rule = zip(*decisions, strict=True)
        accuracy, acc, acc_norm = (sum(map(eq, taken, gold)) / len(rows) for taken in by_rule)
        results.append(
            TaskResult(
                task.label, task.kind, task.shots, len(rows), accuracy, acc, acc_norm, task.baseline,
                task.chance, time.perf_counter() - started, tuple(decisions),
            )
        )  # fmt: skip
    return CoreEvaluation(tuple(results), limit)


class _Prompt(NamedTuple):
    """The tokens of a prompt, the beginning-of-text token first where there is one."""

    tokens: list[int]
    start: int  # of the tokens that CORE's rule scores
    ending: int  # of the tokens after the context's own, which lm-eval scores


class _Score(NamedTuple):
    mean: float  # nats/token from `start` on
    total: float  # nats from `ending` on
    greedy: bool  # every token from `start` on is the likeliest one


def _tokenised(task: CoreTask, rows: list[Row], index: int, tokenizer: Any) -> list[_Prompt]:
    """Prompts of an example, scored after their common beginning or, of a schema, in their common end."""
    prompts = core_prompts(task, rows[index], few_shot_rows(rows, index, task.shots))
    try:
        tokens = [encoded(tokenizer, prompt.text).tolist() for prompt in prompts]
        contexts = [encoded(tokenizer, prompt.context.rstrip()).tolist() for prompt in prompts]
    except InputError as error:
        advice = "tokenizers of bytes or byte pairs know every text"
        raise InputError(f"{task.label}: {error}; {advice}") from None
    if task.kind == "schema":
        same = _num_common([sequence[::-1] for sequence in tokens])
        starts = [len(sequence) - same for sequence in tokens]
    else:
        compared = tokens if task.kind == "multiple_choice" else [tokens[0], contexts[0]]
        starts = [_num_common(compared)] * len(tokens)
    return [_Prompt(*parts) for parts in zip(tokens, starts, map(len, contexts), strict=True)]


def _num_common(sequences: Sequence[Sequence[int]]) -> int:
    """The number of tokens that all sequences begin with."""
    columns = enumerate(zip(*sequences, strict=False))
    return next((i for i, column in columns if len(set(column)) > 1), min(map(len, sequences)))


def _scores(model: nn.Module, prompts: list[_Prompt], context: int, batch_size: int) -> list[_Score]:
    """Scores of prompts by the last `context` tokens of each; those of like length share a batch."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i].tokens))
    found: dict[int, _Score] = {}
    while order:
        longest = min(context, len(prompts[order[0]].tokens))
        rows = rows_at_a_time(model, longest, batch_size)
        now, order = order[:rows], order[rows:]
        found |= zip(now, _batch_scores(model, [prompts[i] for i in now], context), strict=True)
    return [found[i] for i in range(len(prompts))]


def _batch_scores(model: nn.Module, prompts: list[_Prompt], context: int) -> Iterator[_Score]:
    """Padded on the right: no token attends to what comes after it, so that no mask is needed."""
    kept, starts, endings = [], [], []
    for prompt in prompts:
        cut = max(0, len(prompt.tokens) - context)
        kept.append(torch.tensor(prompt.tokens[cut:]))
        starts.append(max(1, prompt.start - cut))  # nothing predicts the first token that is read
        endings.append(max(1, prompt.ending - cut))
    first = min(starts + endings)
    inputs = torch.nn.utils.rnn.pad_sequence(kept, batch_first=True)  # (B, N)
    predicted = predict(model, inputs)[:, first - 1 : -1].float()  # (B, N − first, V)
    targets = inputs[:, first:].to(predicted.device)
    nats = F.cross_entropy(predicted.flatten(0, 1), targets.flatten(), reduction="none")
    nats, likeliest = nats.view(targets.shape).cpu(), (predicted.argmax(-1) == targets).cpu()
    if nats.isnan().any():
        raise InputError("the logits of the model must be finite, got nan: its weights have diverged")
    for tokens, row, right, start, ending in zip(kept, nats, likeliest, starts, endings, strict=True):
        end, start, ending = (index - first for index in (len(tokens), start, ending))
        greedy = start < end and bool(right[start:end].all())
        yield _Score(row[start:end].mean().item(), row[ending:end].sum().item(), greedy)


def _decide(kind: str, options: list[_Score], row: Row) -> Decision:
    if kind == "language_modeling":
        return Decision(*[0 if options[0].greedy else -1] * 3)
    # An option that begins all others has no token of its own. Its mean is NaN, which Python's `min` takes
    # when it comes first and never otherwise; so does the reference.
    means, sums = [option.mean for option in options], [option.total for option in options]
    per_character = [nats / len(option) for nats, option in zip(sums, row[OPTIONS[kind]], strict=True)]
    return Decision(*(costs.index(min(costs)) for costs in (means, sums, per_character)))
