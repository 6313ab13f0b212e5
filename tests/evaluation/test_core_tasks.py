"""CORE's tasks on disk: both layouts, every kind of damage, and what a model reads."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import core_folders as folders
import pytest

from nadaraya.errors import InputError
from nadaraya.evaluation.core_tasks import CORE_TASKS, CoreTask, core_prompts, few_shot_rows, read_core


def test_both_layouts_are_the_same_tasks(tmp_path: Path) -> None:
    flat = read_core(folders.flat_folder(tmp_path / "flat"))
    bundled = read_core(folders.bundle(tmp_path / "bundle"))
    assert [task.label for task in flat] == list(folders.TASKS)
    for one, other in zip(flat, bundled, strict=True):
        assert replace(one, path=Path()) == replace(other, path=Path())
        assert one.rows == other.rows == folders.TASKS[one.label][3]


def test_tasks_come_in_the_order_in_which_they_are_wanted(tmp_path: Path) -> None:
    folder = folders.flat_folder(tmp_path)
    assert [task.label for task in read_core(folder, ["winograd", "piqa", "winograd"])] == [
        "winograd",
        "piqa",
    ]
    with pytest.raises(InputError, match=r"task must be one of .*got 'winogrand': did you mean 'winograd'"):
        read_core(folder, ["winogrand"])


def test_a_task_without_its_file_is_left_out_and_refused_by_name(tmp_path: Path) -> None:
    folder = folders.bundle(tmp_path)
    (folder / "eval_data" / "some" / "piqa.jsonl").unlink()
    assert [task.label for task in read_core(folder)] == ["winograd", "bigbench_operators"]
    with pytest.raises(InputError, match="got 'piqa'"):
        read_core(folder, ["piqa"])
    for label in ("winograd", "bigbench_operators"):
        (folder / "eval_data" / "some" / f"{label}.jsonl").unlink()
    with pytest.raises(InputError, match="has no file of a task"):
        read_core(folder)


@pytest.mark.parametrize(
    ("label", "row", "words"),
    [
        ("piqa", "{", "Invalid JSON"),
        ("piqa", "[]", "must be a section of keys"),
        ("piqa", {"choices": ["a", "b"], "gold": 0}, "query must"),
        ("piqa", {"query": "a", "choices": ["b"], "gold": 0}, r"choices(\.1)? must"),
        ("piqa", {"query": "a", "choices": ["b", ""], "gold": 0}, r"choices(\.1)? must"),
        ("piqa", {"query": "a", "choices": ["b", "c"], "gold": 2}, "gold in"),
        ("piqa", {"query": "a", "choices": ["b", "c"], "gold": True}, "gold must be an integer, got True"),
        (
            "piqa",
            {"query": "\ud800", "choices": ["b", "c"], "gold": 1},
            "Invalid JSON: unexpected end of hex escape",
        ),
        (
            "winograd",
            {"context_options": "ab", "continuation": "c", "gold": 0},
            "context_options must be a list",
        ),
        (
            "winograd",
            {"context_options": ["a", "b"], "continuation": 3, "gold": 0},
            "continuation must be text",
        ),
        ("bigbench_operators", {"context": "a", "continuation": " "}, "continuation in"),
        ("bigbench_operators", {"continuation": "a"}, "context must be there"),
    ],
)
def test_a_bad_row_is_one_line_that_names_file_and_row(
    tmp_path: Path, label: str, row: Any, words: str
) -> None:
    folder = folders.flat_folder(tmp_path)
    path = folder / f"{label}.jsonl"
    with path.open("a") as stream:
        stream.write(row if isinstance(row, str) else json.dumps(row))
    (task,) = read_core(folder, [label])
    with pytest.raises(InputError, match=words) as error:
        _ = task.rows
    number = len(folders.TASKS[label][3]) + 1
    assert f"{path}, row {number}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\n \n", b'{"query": "\xff"}'])
def test_a_file_without_rows_or_not_in_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = folders.flat_folder(tmp_path)
    (folder / "piqa.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"piqa\.jsonl"):
        _ = read_core(folder, ["piqa"])[0].rows


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("multiple_choice", "multiple_choices", "icl_tasks.0.icl_task_type must be"),
        ("num_fewshot: [2]", "num_fewshot: [-1]", "num_fewshot.0 must be at least 0, got -1"),
        ("num_fewshot: [2]", "num_fewshot: two", "num_fewshot.0 must be an integer, got 'two'"),
        ("some/piqa.jsonl", "../../piqa.jsonl", "the file of piqa must be in"),
        ("- label: piqa", "- label: pica", "csv: pica must be a number, got None"),
        ("- label: piqa", "- label: [", "not plain YAML"),
        ("- label: piqa", "- name: piqa", "cannot be read as a list of CORE tasks"),
        ("- label: piqa", "- label: &a piqa\n  more: *a", "it refers to .a: write the value out"),
        ("some/piqa.jsonl", r'"some/\0"', "embedded null"),
    ],
)
def test_a_damaged_list_of_tasks_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    folder = folders.bundle(tmp_path / "bundle")
    path = folder / "core.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=words) as error:
        read_core(folder)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("baseline", ["100", "-1", "nan", "half"])
def test_a_baseline_is_a_percentage_below_all(tmp_path: Path, baseline: str) -> None:
    folder = folders.bundle(tmp_path)
    path = folder / "eval_meta_data.csv"
    path.write_text(path.read_text().replace("piqa,any,50", f"piqa,any,{baseline}"))
    with pytest.raises(InputError):
        read_core(folder)


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"must be a folder with core\.yaml or core_meta\.json"):
            read_core(folder)


def test_chance_is_the_mean_over_rows_of_one_over_options(tmp_path: Path) -> None:
    rows = [{"query": "a", "choices": ["b"] * count, "gold": 0} for count in (2, 4)]
    folders.write_rows(tmp_path / "x.jsonl", rows)
    assert CoreTask("x", "multiple_choice", 0, " ", 0.1, tmp_path / "x.jsonl").chance == (1 / 2 + 1 / 4) / 2
    folders.write_rows(tmp_path / "y.jsonl", folders.ENDING)
    assert CoreTask("y", "language_modeling", 0, " ", 0.0, tmp_path / "y.jsonl").chance == 0


def test_shots_are_a_seeded_draw_from_all_other_rows() -> None:
    rows = [{"row": i} for i in range(9)]
    for index in range(9):
        others = [row for row in rows if row["row"] != index]
        assert few_shot_rows(rows, index, 4) == random.Random(1234 + index).sample(others, 4)


def test_prompts_show_shots_then_the_question_with_each_option(tmp_path: Path) -> None:
    piqa, winograd, operators = read_core(folders.flat_folder(tmp_path))
    shots = [folders.CHOICE[1], folders.CHOICE[2]]
    before = "Of 1 apples and 1 pears 1 are green\n\nOf 2 apples and 2 pears none is red.\n\n"
    assert [prompt.text for prompt in core_prompts(piqa, folders.CHOICE[0], shots)] == [
        f"{before}Of 0 apples and 0 pears none is red.",
        f"{before}Of 0 apples and 0 pears 0 are green",
    ]
    assert [prompt.text for prompt in core_prompts(winograd, folders.SCHEMA[0], [folders.SCHEMA[1]])] == [
        "1 cats and dogs: the dog ran.\n\n0 cats and dogs: the cat ran.",
        "1 cats and dogs: the dog ran.\n\n0 cats and dogs: the dog ran.",
    ]
    (prompt,) = core_prompts(operators, folders.ENDING[0], [folders.ENDING[4]])
    assert prompt == ("4 + 1 = 5\n\n0 + 1 = ", "1")


@pytest.mark.skipif(not folders.SHARED.is_dir(), reason="needs ../shared/data/core_tasks")
def test_the_shared_folder_has_eighteen_of_the_tasks() -> None:
    tasks = read_core(folders.SHARED)
    assert len(tasks) == 18
    assert set(CORE_TASKS) - {task.label for task in tasks} == {"arc_easy", "squad", "coqa", "boolq"}
    small = {task.label: task for task in tasks if task.path.stat().st_size < 100_000}
    assert {label: len(task.rows) for label, task in small.items()} == {
        "copa": 100,
        "openbook_qa": 500,
        "winograd": 273,
        "bigbench_operators": 210,
        "bigbench_repeat_copy_logic": 32,
    }
