"""What a model reads for one example: solved examples, the question, and an ending for each option."""

import random
from typing import NamedTuple

from nadaraya.errors import must_be
from nadaraya.evaluation.core.tasks import OPTIONS, CoreTask, Row

SHUFFLE_SEED, SHOT_SEED = 1337, 1234  # nanochat's


class Prompt(NamedTuple):
    """A text to score.

    Args:
        context: all that comes before the ending: shots, question, delimiter.
        ending: what is scored.

    >>> from nadaraya.evaluation.core import Prompt
    >>> Prompt("It rained, so ", "we ran.").text
    'It rained, so we ran.'
    """

    context: str
    ending: str

    @property
    def text(self) -> str:
        """Both."""
        return self.context + self.ending


def shuffled_rows(task: CoreTask, limit: int | None) -> list[Row]:
    """The rows in the reference's fixed random order; the first `limit` of them."""
    rows = list(task.rows)
    random.Random(SHUFFLE_SEED).shuffle(rows)
    rows = rows[:limit]
    if len(rows) <= task.shots:
        accepted = f"at least {task.shots + 1} examples of {task.label}, which has {task.shots} shots"
        raise must_be("limit" if limit else f"{task.path}", accepted, len(rows))
    return rows


def few_shot_rows(rows: list[Row], index: int, shots: int) -> list[Row]:
    """The solved examples in front of one: others of the same rows, drawn with the seed 1234 + index.

    Args:
        rows: every example that is evaluated, in order.
        index: the one that is asked, which is never among its own shots.
        shots: how many.

    Returns:
        The shots, in the order in which they are shown.

    >>> from nadaraya.evaluation.core import few_shot_rows
    >>> [row["gold"] for row in few_shot_rows([{"gold": i} for i in range(5)], index=1, shots=2)]
    [4, 3]
    """
    drawn = random.Random(SHOT_SEED + index).sample(range(len(rows) - 1), shots)
    return [rows[i + (i >= index)] for i in drawn]


def core_prompts(task: CoreTask, row: Row, shots: list[Row]) -> list[Prompt]:
    """One prompt per option of an example; one in all for language modelling.

    A solved example is its context, the delimiter and the right ending, followed by an empty line. Contexts
    of language modelling lose blanks at both ends.

    Args:
        task: says which kind of rows they are, and the delimiter.
        row: the example that is asked.
        shots: the solved ones before it.

    Returns:
        The prompts, in the order of the options.

    >>> from pathlib import Path
    >>> from nadaraya.evaluation.core import CoreTask, core_prompts
    >>> task = CoreTask("winograd", "schema", 0, " ", 0.5, Path("winograd.jsonl"))
    >>> row = {"context_options": ["It leaks: the cup", "It leaks: the tea"], "continuation": "is old."}
    >>> [prompt.text for prompt in core_prompts(task, row, [])]
    ['It leaks: the cup is old.', 'It leaks: the tea is old.']
    """
    solved = [_asked(task, shot)[shot["gold"] if task.kind in OPTIONS else 0] for shot in shots]
    before = "".join(f"{prompt.text}\n\n" for prompt in solved)
    return [Prompt(before + prompt.context, prompt.ending) for prompt in _asked(task, row)]


def _asked(task: CoreTask, row: Row) -> list[Prompt]:
    """The options of one row without shots."""
    if task.kind == "multiple_choice":
        return [Prompt(row["query"] + task.delimiter, choice) for choice in row["choices"]]
    contexts = row["context_options"] if task.kind == "schema" else [row["context"].strip()]
    return [Prompt(context + task.delimiter, row["continuation"]) for context in contexts]
