"""CORE's tasks on disk, DCLM's bundle or .jsonl files with core_meta.json, and their prompts."""

import csv
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AliasChoices, BeforeValidator, Field

from nadaraya.errors import InputError, check_name, must_be
from nadaraya.files import is_file, is_folder, reading
from nadaraya.stored import Stored, checked, read_stored

Row = dict[str, Any]

OPTIONS = {"multiple_choice": "choices", "schema": "context_options"}
CORE_TASKS = (
    "hellaswag_zeroshot", "jeopardy", "bigbench_qa_wikidata", "arc_easy", "arc_challenge", "copa",
    "commonsense_qa", "piqa", "openbook_qa", "lambada_openai", "hellaswag", "winograd", "winogrande",
    "bigbench_dyck_languages", "agi_eval_lsat_ar", "bigbench_cs_algorithms", "bigbench_operators",
    "bigbench_repeat_copy_logic", "squad", "coqa", "boolq", "bigbench_language_identification",
)  # fmt: skip
_SHUFFLE_SEED, _SHOT_SEED = 1337, 1234  # nanochat's

_Count = Annotated[int, Field(ge=0)]
_Options = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2)]
_Percent = Annotated[float, Field(ge=0, lt=100)]


class _MultipleChoice(Stored):
    query: str
    choices: _Options
    gold: _Count


class _Schema(Stored):
    context_options: _Options
    continuation: str
    gold: _Count


class _LanguageModeling(Stored):
    context: str
    continuation: str


_ROWS: dict[str, type[Stored]] = {
    "multiple_choice": _MultipleChoice,
    "schema": _Schema,
    "language_modeling": _LanguageModeling,
}


def _as_list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


class _Entry(Stored):
    label: str
    icl_task_type: Literal["multiple_choice", "schema", "language_modeling"]
    continuation_delimiter: str = " "
    num_fewshot: Annotated[list[_Count], Field(min_length=1), BeforeValidator(_as_list)]
    file: Annotated[str | None, Field(validation_alias=AliasChoices("dataset_uri", "file"))] = None
    random_baseline_pct: float | None = None  # of a bundle it is in another file


class _Bundle(Stored):
    icl_tasks: list[_Entry]


class _Flat(Stored):
    tasks: list[_Entry]


@dataclass(frozen=True)
class CoreTask:
    """One task and the file of its examples.

    Args:
        label: its name among DCLM's.
        kind: "multiple_choice": one context, several endings; "schema": several contexts, one ending;
            "language_modeling": an ending that the model must find by itself.
        shots: solved examples in front of each question.
        delimiter: between a context and its ending.
        baseline: DCLM's constant for guesses at random, a fraction, which centring subtracts.
        path: the file, one JSON object per line.

    >>> from pathlib import Path
    >>> from nadaraya.evaluation.core import CoreTask
    >>> _ = Path("copa.jsonl").write_text('{"query": "It rained:", "choices": ["run.", "no."], "gold": 0}')
    >>> CoreTask("copa", "multiple_choice", 0, " ", 0.5, Path("copa.jsonl")).chance
    0.5
    """

    label: str
    kind: str
    shots: int
    delimiter: str
    baseline: float
    path: Path

    @cached_property
    def rows(self) -> list[Row]:
        """Every example, checked, in the order of the file.

        Raises:
            InputError: the file cannot be read or is empty, or a row is not one of this kind.
        """
        with reading(self.path):
            lines = self.path.read_text(encoding="utf-8-sig").split("\n")
        rows = [self._row(line, number) for number, line in enumerate(lines, 1) if line.strip()]
        if not rows:
            raise must_be(f"{self.path}", "one JSON object per line", "an empty file")
        return rows

    def _row(self, line: str, number: int) -> Row:
        place = f"{self.path}, row {number}"
        row: Row = checked(line.encode(), _ROWS[self.kind], place).model_dump()
        if not row.get("continuation", "any").strip():
            raise must_be(f"continuation in {place}", "more than blanks", row["continuation"])
        if "gold" in row and row["gold"] >= (count := len(row[OPTIONS[self.kind]])):
            raise must_be(f"gold in {place}", f"an integer from 0 to {count - 1}", row["gold"])
        return row

    @property
    def chance(self) -> float:
        """Expected accuracy of guesses at random among the options, the mean of 1 / options; 0 without."""
        if self.kind == "language_modeling":
            return 0.0
        return sum(1 / len(row[OPTIONS[self.kind]]) for row in self.rows) / len(self.rows)


def read_core(folder: str | Path, tasks: Iterable[str] | None = None) -> list[CoreTask]:
    """Read the tasks of a folder whose files are there, in the folder's order.

    Args:
        folder: DCLM's bundle (core.yaml, eval_meta_data.csv, eval_data/), or .jsonl files beside a
            core_meta.json.
        tasks: labels of those wanted; default all that are there.

    Returns:
        The tasks; their examples are read and checked when first asked for.

    Raises:
        InputError: no such folder, a damaged list of tasks, an unknown label, or one without its file.

    >>> from nadaraya.evaluation.core import read_core
    >>> read_core("no-such-folder")
    Traceback (most recent call last):
    nadaraya.errors.InputError: no-such-folder must be a folder with core.yaml or core_meta.json, got ...
    """
    folder = Path(folder)
    if not is_folder(folder) or not any(is_file(folder / name) for name in ("core.yaml", "core_meta.json")):
        found = "neither" if is_folder(folder) else "no folder"
        raise InputError(f"{folder} must be a folder with core.yaml or core_meta.json, got {found}")
    if is_file(folder / "core.yaml"):
        data, meta = folder / "eval_data", folder / "eval_meta_data.csv"
        entries = read_stored(folder / "core.yaml", _Bundle, "a list of CORE tasks").icl_tasks
        with reading(meta), meta.open(encoding="utf-8", newline="") as stream:
            known = {row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(stream)}
        baselines = {entry.label: known.get(entry.label) for entry in entries}
    else:
        data, meta = folder, folder / "core_meta.json"
        entries = read_stored(meta, _Flat, "a list of CORE tasks").tasks
        baselines = {entry.label: entry.random_baseline_pct for entry in entries}
    percent = checked(baselines, dict[str, _Percent], str(meta))
    listed = [_task(entry, percent[entry.label], data) for entry in entries]
    there = {task.label: task for task in listed if is_file(task.path)}
    if not there:
        raise InputError(f"{folder} has no file of a task")
    wanted = there if tasks is None else dict.fromkeys(tasks)
    for label in wanted:
        check_name("task", label, there)
    return [there[label] for label in wanted]


def _task(entry: _Entry, percent: float, folder: Path) -> CoreTask:
    path = folder / (name := entry.file or f"{entry.label}.jsonl")
    with reading(path):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise must_be(f"the file of {entry.label}", f"in {folder}", name)
    kind, delimiter = entry.icl_task_type, entry.continuation_delimiter
    return CoreTask(entry.label, kind, entry.num_fewshot[0], delimiter, percent / 100, path)


class Prompt(NamedTuple):
    """Shots, question and delimiter, and the ending that is scored."""

    context: str
    ending: str

    @property
    def text(self) -> str:
        return self.context + self.ending


def shuffled_rows(task: CoreTask, limit: int | None) -> list[Row]:
    """The rows in the reference's fixed random order; the first `limit` of them."""
    rows = list(task.rows)
    random.Random(_SHUFFLE_SEED).shuffle(rows)
    rows = rows[:limit]
    if len(rows) <= task.shots:
        accepted = f"at least {task.shots + 1} examples of {task.label}, which has {task.shots} shots"
        raise must_be("limit" if limit else f"{task.path}", accepted, len(rows))
    return rows


def few_shot_rows(rows: list[Row], index: int, shots: int) -> list[Row]:
    """The solved examples in front of one: others of the same rows, drawn with the seed 1234 + index."""
    drawn = random.Random(_SHOT_SEED + index).sample(range(len(rows) - 1), shots)
    return [rows[i + (i >= index)] for i in drawn]


def core_prompts(task: CoreTask, row: Row, shots: list[Row]) -> list[Prompt]:
    """One prompt per option of an example; one in all for language modelling.

    A solved example is its context, the delimiter and the right ending, followed by an empty line. Contexts
    of language modelling lose blanks at both ends.
    """
    solved = [_options(task, shot)[shot["gold"] if task.kind in OPTIONS else 0] for shot in shots]
    before = "".join(f"{prompt.text}\n\n" for prompt in solved)
    return [Prompt(before + prompt.context, prompt.ending) for prompt in _options(task, row)]


def _options(task: CoreTask, row: Row) -> list[Prompt]:
    if task.kind == "multiple_choice":
        return [Prompt(row["query"] + task.delimiter, choice) for choice in row["choices"]]
    contexts = row["context_options"] if task.kind == "schema" else [row["context"].strip()]
    return [Prompt(context + task.delimiter, row["continuation"]) for context in contexts]
