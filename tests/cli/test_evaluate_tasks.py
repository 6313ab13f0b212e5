"""`nadaraya evaluate --core` and `--lm-eval`, on a run and on a model of transformers."""

import json
from pathlib import Path
from typing import Any

import core_folders as folders
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from nadaraya.data import byte_tokenizer
from nadaraya.evaluation.core import evaluate_core, read_core
from nadaraya.training import Run


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers with a random GPT-2 that reads bytes."""
    folder = tmp_path_factory.mktemp("baseline")
    config = GPT2Config(vocab_size=256, n_positions=96, n_embd=16, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return folders.bundle(tmp_path / "bundle")


def test_core_of_a_baseline_as_json_and_as_a_table(nadaraya: Any, gpt2: Path, tasks: Path) -> None:
    printed = json.loads(nadaraya("evaluate", gpt2, "--core", tasks, "--json").out)
    assert printed["run"] == str(gpt2)
    assert "weights" not in printed
    assert [result["task"] for result in printed["results"]] == list(folders.TASKS)
    assert printed["core"] == pytest.approx(sum(result["centred"] for result in printed["results"]) / 3)
    assert len(printed["tasks_missing"]) == 19
    rounded = json.loads(nadaraya("evaluate", gpt2, "--core", tasks, "--precision", "bfloat16", "--json").out)
    assert [result["examples"] for result in rounded["results"]] == [7, 5, 6]
    shown = nadaraya("evaluate", gpt2, "--core", tasks).out
    for result in printed["results"]:
        assert f"{result['accuracy']:.3f} ± {result['standard_error']:.3f}" in shown
    metric = f"CORE: {printed['core']:.4f} ± {printed['core_standard_error']:.4f}"
    assert f"{metric}, the mean of 3 centred accuracies; with the chance of these files " in shown
    assert "3 of CORE's 22 tasks were run; missing: hellaswag_zeroshot, jeopardy" in shown


def test_core_of_a_run_is_that_of_its_model(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    row = {"context_options": ["the cab", "the bad"], "continuation": "of 1", "gold": 0}
    folder = folders.flat_folder(tmp_path / "tasks")
    folders.write_rows(folder / "winograd.jsonl", [row, {**row, "gold": 1}, row])
    options = ("--core", folder, "--tasks", "winograd", "--limit", 2, "--batch-size", 1)
    printed = json.loads(nadaraya("evaluate", finished_run, *options, "--json").out)
    run = Run(finished_run)
    expected = evaluate_core(
        run.load_model(), run.tokenizer(), read_core(folder, ["winograd"]), context=16, limit=2
    ).figures()
    assert printed["weights"] == "trained"
    assert printed["limit"] == 2
    for result in (*printed["results"], *expected["results"]):
        assert result.pop("seconds") > 0
    assert printed["results"] == expected["results"]
    assert "at most 2 examples per task" in nadaraya("evaluate", finished_run, *options).out


def test_a_baseline_predicts_a_text(nadaraya: Any, gpt2: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some other text " * 9)
    line = nadaraya("evaluate", gpt2, "--text", tmp_path / "text.txt").out
    assert line.startswith("text: ")
    assert line.endswith("over 143 bytes\n")
    nadaraya("evaluate", gpt2).refuses("is not a run, which has a validation text: give --text")


def test_options_that_do_not_go_together_are_refused(nadaraya: Any, gpt2: Path, tasks: Path) -> None:
    for options, words in (
        (["--core", tasks, "--text", "embedded"], "--core must be left out where --text is given"),
        (["--core", tasks, "--lm-eval", "copa"], "--lm-eval must be left out where --core is given"),
        (["--tasks", "copa"], "--tasks must be given with --core"),
        (["--lm-eval", "copa", "--tasks", "copa"], "--tasks must be given with --core"),
        (["--limit", 3], "--limit must be given with --core or --lm-eval"),
        (["--batch-size", 4], "--batch-size must be given with --core or --lm-eval"),
        (["--core", tasks, "--shots", 3], "--shots must be given with --lm-eval"),
        (["--core", tasks, "--task-folder", "x"], "--task-folder must be given with --lm-eval"),
        (["--core", tasks, "--weights", "best"], "--weights chooses among those of a run folder"),
        (["--core", tasks, "--tasks", "pica"], "did you mean 'piqa'"),
        (["--core", tasks, "--tasks", ","], "one or more of CORE's"),
        (["--core", tasks, "--limit", 2], "at least 3 examples of piqa"),
        (["--core", gpt2], "must be a folder with core.yaml"),
        (["--core", tasks, "--device", "gpu"], "--device must be one of"),
        (["--lm-eval", ""], "one or more names"),
    ):
        nadaraya("evaluate", gpt2, *options).refuses(words)


def test_a_bad_row_is_one_line(nadaraya: Any, gpt2: Path, tasks: Path) -> None:
    path = tasks / "eval_data" / "some" / "winograd.jsonl"
    with path.open("a") as stream:
        stream.write('{"continuation": "only"}\n')
    nadaraya("evaluate", gpt2, "--core", tasks).refuses(f"{path}, row 6: context_options must be there")


@pytest.mark.slow
def test_tasks_of_lm_eval_in_a_folder(nadaraya: Any, gpt2: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    folders.write_rows(tmp_path / "rows.jsonl", folders.CHOICE)
    (tmp_path / "fruit.yaml").write_text(
        "task: fruit\ndataset_path: json\noutput_type: multiple_choice\ntest_split: test\n"
        f"dataset_kwargs:\n  data_files: {{test: {tmp_path / 'rows.jsonl'}}}\n  cache_dir: {tmp_path}\n"
        "doc_to_text: query\ndoc_to_choice: choices\ndoc_to_target: gold\nfewshot_split: test\n"
        "metric_list: [{metric: acc}, {metric: acc_norm}]\n"
    )
    options = ("--lm-eval", "fruit", "--task-folder", tmp_path, "--shots", 1, "--limit", 4)
    printed = json.loads(nadaraya("evaluate", gpt2, *options, "--json").out)
    (figures,) = printed["results"].values()
    assert (figures["examples"], figures["shots"]) == (4, 1)
    assert figures["acc"] in (0, 0.25, 0.5, 0.75, 1)
    shown = nadaraya("evaluate", gpt2, *options, "--precision", "bfloat16").out
    assert "acc_norm" in shown
    assert "standard error" in shown
