"""CORE's tasks on disk: DCLM's bundle, or a folder of .jsonl files with core_meta.json."""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.files import is_file, is_folder, reading

Row = dict[str, Any]

TEXTS = {
    "multiple_choice": ["query"],
    "schema": ["continuation"],
    "language_modeling": ["context", "continuation"],
}
OPTIONS = {"multiple_choice": "choices", "schema": "context_options"}
CORE_TASKS = (
    "hellaswag_zeroshot", "jeopardy", "bigbench_qa_wikidata", "arc_easy", "arc_challenge", "copa",
    "commonsense_qa", "piqa", "openbook_qa", "lambada_openai", "hellaswag", "winograd", "winogrande",
    "bigbench_dyck_languages", "agi_eval_lsat_ar", "bigbench_cs_algorithms", "bigbench_operators",
    "bigbench_repeat_copy_logic", "squad", "coqa", "boolq", "bigbench_language_identification",
)  # fmt: skip


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
        rows = []
        with reading(self.path), self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    rows.append(_checked_row(line, self.kind, f"{self.path}, row {number}"))
        if not rows:
            raise must_be(f"{self.path}", "one JSON object per line", "an empty file")
        return rows

    @property
    def chance(self) -> float:
        """Expected accuracy of guesses at random among the options, the mean of 1 / options; 0 without."""
        if self.kind == "language_modeling":
            return 0.0
        return sum(1 / len(row[OPTIONS[self.kind]]) for row in self.rows) / len(self.rows)


def read_core(folder: str | Path, tasks: Iterable[str] | None = None) -> list[CoreTask]:
    """The tasks of a folder whose files are there, in the folder's order.

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
    readers = {"core.yaml": _bundle, "core_meta.json": _flat}
    name = next((name for name in readers if is_folder(folder) and is_file(folder / name)), None)
    if name is None:
        found = "neither" if is_folder(folder) else "no folder"
        raise InputError(f"{folder} must be a folder with core.yaml or core_meta.json, got {found}")
    with reading(folder / name, "a list of CORE tasks"):
        listed = list(readers[name](folder))
    there = {task.label: task for task in listed if is_file(task.path)}
    if tasks is None:
        if not there:
            example = f", such as {listed[0].path}" if listed else ""
            raise InputError(f"{folder} has no file of a task{example}")
        return list(there.values())
    wanted = list(dict.fromkeys(tasks))
    for label in wanted:
        if label not in there:
            raise unknown_name("task", label, there)
    return [there[label] for label in wanted]


def _bundle(folder: Path) -> Iterator[CoreTask]:
    """The tasks of core.yaml, with the baselines of eval_meta_data.csv."""
    import yaml

    meta = folder / "eval_meta_data.csv"
    with reading(meta), meta.open(encoding="utf-8", newline="") as stream:
        baselines = {row["Eval Task"]: row["Random baseline"] for row in csv.DictReader(stream)}
    try:
        entries = yaml.safe_load((folder / "core.yaml").read_text(encoding="utf-8"))["icl_tasks"]
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    for entry in entries:
        label = entry["label"]
        if label not in baselines:
            raise InputError(f"{meta} lacks the random baseline of {label}")
        yield _task(
            entry, entry["num_fewshot"][0], baselines[label], folder / "eval_data", entry["dataset_uri"]
        )


def _flat(folder: Path) -> Iterator[CoreTask]:
    """The tasks of core_meta.json."""
    for entry in json.loads((folder / "core_meta.json").read_text(encoding="utf-8"))["tasks"]:
        name = entry["file"] or f"{entry['label']}.jsonl"
        yield _task(entry, entry["num_fewshot"], entry["random_baseline_pct"], folder, name)


def _task(entry: dict[str, Any], shots: Any, baseline: Any, folder: Path, name: str) -> CoreTask:
    label, kind, per_cent = entry["label"], entry["icl_task_type"], float(baseline)
    if kind not in TEXTS:
        raise unknown_name(f"icl_task_type of {label}", kind, TEXTS)
    if type(shots) is not int or shots < 0:
        raise must_be(f"num_fewshot of {label}", "an integer of at least 0", shots)
    if not 0 <= per_cent < 100 or math.isnan(per_cent):
        raise must_be(f"random baseline of {label}", "a percentage of at least 0 and below 100", baseline)
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise must_be(f"the file of {label}", f"in {folder}", name)
    return CoreTask(label, kind, shots, entry.get("continuation_delimiter", " "), per_cent / 100, path)


def _checked_row(line: str, kind: str, place: str) -> Row:
    """One example with all that its kind needs, or an InputError that names the row."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise must_be(place, "a JSON object", row)
    for key in TEXTS[kind]:
        if not _is_text(row.get(key)):
            raise must_be(f"{key} in {place}", "a text", row.get(key))
    if kind != "multiple_choice" and not row["continuation"].strip():
        raise must_be(f"continuation in {place}", "more than blanks", row["continuation"])
    if options := OPTIONS.get(kind):
        listed, gold = row.get(options), row.get("gold")
        if not isinstance(listed, list) or len(listed) < 2 or not all(_is_text(o) and o for o in listed):
            raise must_be(f"{options} in {place}", "a list of two or more texts that are not empty", listed)
        if type(gold) is not int or not 0 <= gold < len(listed):
            raise must_be(f"gold in {place}", f"an integer from 0 to {len(listed) - 1}", gold)
    return row


def _is_text(value: Any) -> bool:
    """Whether a value is a text that UTF-8 can hold, as tokenizers need it."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        return False
