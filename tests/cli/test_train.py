"""`nadaraya train`: a run folder, resumed by the same command; bad input in one line, nothing overwritten."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

from nadaraya.cli import main
from nadaraya.training import Run, load_recipe
from nadaraya.training.recipe import recipe_help


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_is_named_after_recipe_and_variant(
    nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = nadaraya("train", *tiny, "model.variant=decay")
    assert outcome.status == 0
    assert "validation loss" in outcome.out
    assert "step 6/6" in outcome.err
    assert Run("runs/demo-decay").final is not None


def test_json_gives_the_final_record(nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path) -> None:
    outcome = nadaraya("train", *tiny, "--run", tmp_path / "run", "--json", "--quiet")
    assert outcome.err == ""
    printed = json.loads(outcome.out)
    final = Run(tmp_path / "run").final
    assert final is not None
    assert {key: printed[key] for key in final} == final


def test_default_folders_of_seeds_differ(
    nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("named.yaml").write_text("extends: demo\nname: mine\n")
    for source, folder in (("demo", "demo-rope"), ("named.yaml", "mine")):
        for seed, ending in ((0, ""), (1, "-seed1")):
            nadaraya("train", source, *tiny[1:], f"seed={seed}", "--quiet")
            assert Run(f"runs/{folder}{ending}").recipe.seed == seed


def test_a_run_folder_as_recipe_resumes_that_run(nadaraya: Any, finished_run: Path) -> None:
    before = _content(finished_run)
    outcome = nadaraya("train", finished_run)
    assert outcome.status == 0
    assert "finished already" in outcome.err
    assert _content(finished_run) == before
    nadaraya("train", finished_run, "seed=1").refuses("has a run with seed = 0, not 1")


def test_the_resolved_recipe_is_printed_and_nothing_made(
    nadaraya: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = nadaraya("train", "demo", "model.variant=gpa", "--print-config").out
    Path("again.yaml").write_text(printed)
    assert load_recipe("again.yaml") == load_recipe("demo", ["model.variant=gpa"])
    as_json = json.loads(nadaraya("train", "demo", "--print-config", "--json").out)
    assert as_json == load_recipe("demo").to_mapping()
    assert not Path("runs").exists()


def test_a_dry_run_counts_and_measures_and_makes_nothing(
    nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    figures = json.loads(nadaraya("train", *tiny, "model.variant=gpa-mul", "--dry-run", "--json").out)
    counted = load_recipe("demo", [*tiny[1:], "model.variant=gpa-mul"]).build_model(18).num_parameters()
    assert abs(figures["parameters"] - counted) < 33 * 64  # of the same vocabulary, nearly
    assert figures["steps"] == 6
    assert figures["seconds"] == pytest.approx(6 * figures["step_seconds"])
    assert figures["memory_bytes"] > 16 * figures["parameters"]
    assert figures["flops"] > 2 * figures["kernel_parameters"] > 0
    out = nadaraya("train", *tiny, "--dry-run").out
    assert f"{figures['steps']} of them" in out
    assert "MFLOP/token" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("task", ["text", "image"])
def test_every_key_is_listed_with_default_and_meaning(nadaraya: Any, task: str) -> None:
    out = nadaraya("train", "--keys", task).out
    for key, (_, meaning) in recipe_help(task).items():
        assert f"{key}=" in out
        assert meaning in out
    nadaraya("train", "--keys", "txt").refuses("did you mean 'text'")
    assert "--keys" in nadaraya("train", "--help").out


def test_the_schema_is_json_and_needs_no_recipe(nadaraya: Any) -> None:
    schema = json.loads(nadaraya("train", "--schema").out)
    assert {option["$ref"] for option in schema["anyOf"]} == {"#/$defs/Recipe", "#/$defs/ImageRecipe"}


def test_a_finished_run_says_so_and_is_left_alone(
    nadaraya: Any, tiny: tuple[str, ...], finished_run: Path
) -> None:
    before = _content(finished_run)
    outcome = nadaraya("train", *tiny, "model.variant=gpa-mul", "--run", finished_run)
    assert outcome.status == 0
    assert "finished already" in outcome.err
    assert _content(finished_run) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.variant=gpa-mull",), ("variant", "'gpa-mul'")),
        (("model.varant=gpa",), ("'model.varant'", "'model.variant'")),
        (("model.num_attention_heads=3",), ("model.hidden_size", "heads = 3", "got 32")),
        (("data.context=9999",), ("9999", "tokens")),
        (("training.steps=-1",), ("training.steps must be greater than 0, got -1",)),
        (("name=!!python/object/apply:os.system [ls]",), ("not plain YAML",)),
        (("steps",), ("KEY=VALUE",)),
        (("data.corpus=no-such-file.txt",), ("no-such-file.txt",)),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    nadaraya("train", *tiny, *arguments, "--run", tmp_path / "run").refuses(*words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b" \n\n", b"\x00\x01text", b"\xff\xfe\xfa"])
def test_empty_and_binary_texts_are_refused(
    nadaraya: Any, tiny: tuple[str, ...], tiny_text: Path, tmp_path: Path, content: bytes
) -> None:
    tiny_text.write_bytes(content)
    nadaraya("train", *tiny, f"data.corpus={tiny_text}", "--run", tmp_path / "run").refuses(tiny_text.name)
    assert not (tmp_path / "run").exists()


def test_a_yaml_that_tries_to_run_code_is_refused(nadaraya: Any, tmp_path: Path) -> None:
    trace, recipe = tmp_path / "ran", tmp_path / "evil.yaml"
    recipe.write_text(f"model: !!python/object/apply:os.system ['touch {trace}']\n")
    nadaraya("train", recipe, "--run", tmp_path / "run").refuses("evil.yaml, line 1", "not plain YAML")
    assert not trace.exists()
    assert not (tmp_path / "run").exists()


def test_a_run_folder_from_another_configuration_is_refused(
    nadaraya: Any, tiny: tuple[str, ...], finished_run: Path
) -> None:
    before = _content(finished_run)
    nadaraya("train", *tiny, "model.variant=rope", "name=demo-gpa-mul", "--run", finished_run).refuses(
        "model.variant = 'gpa-mul', not 'rope'"
    )
    assert _content(finished_run) == before


def test_checkpoints_that_are_all_damaged_are_refused(
    nadaraya: Any, tiny: tuple[str, ...], finished_run: Path
) -> None:
    metrics = finished_run / "metrics.jsonl"
    metrics.write_text("".join(line for line in metrics.open() if '"final"' not in line))
    for path in (finished_run / "training_state").glob("step-*/model.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    before = _content(finished_run)
    nadaraya("train", *tiny, "model.variant=gpa-mul", "--run", finished_run).refuses(
        "step-00000006/model.safetensors is damaged"
    )
    assert _content(finished_run) == before


def test_divergence_is_one_line(nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path) -> None:
    outcome = nadaraya(
        "train",
        *tiny,
        "training.learning_rate=1e35",
        "training.clip=null",
        "--quiet",
        "--run",
        tmp_path / "run",
    )
    outcome.refuses("at step", "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_exits_as_shells_expect_and_says_how_to_resume(
    tiny: tuple[str, ...], tmp_path: Path, number: int, status: int
) -> None:
    steps = ["training.steps=100000", "training.log_every=1"]
    process = Forked(main, "train", *tiny, *steps, "--run", tmp_path / "run")
    metrics, started = tmp_path / "run" / "metrics.jsonl", time.monotonic()
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() - started < 120:
        time.sleep(0.1)
    process.send(number)
    ended = process.end()
    assert ended.status == status
    assert "run the same command again to resume" in ended.err
    assert "Traceback" not in ended.err
    assert list((tmp_path / "run" / "training_state").glob("step-*/state.json"))
