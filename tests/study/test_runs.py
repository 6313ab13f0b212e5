"""Searches, seeds and resumption, on runs whose figures are written instead of trained; and one real run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nadaraya.errors import InputError
from nadaraya.study import Study, worker
from nadaraya.study.plan import Cell
from nadaraya.study.results import check_study_folder, run_file
from nadaraya.study.runs import StudyRuns
from nadaraya.training import Recipe, load_recipe

RATES = [1e-3, 2e-3, 4e-3]


def cells(*sizes: str, variants: tuple[str, ...] = ("rope",), steps: int = 50) -> list[Cell]:
    recipe = Recipe(training={"steps": steps})
    return [
        Cell(size, variant, recipe, parameters=10 * place, flops_per_token=place)
        for place, size in enumerate(sizes, 1)
        for variant in variants
    ]


def study(*sizes: str, **keys: Any) -> Study:
    given: dict[str, Any] = {"variants": {"rope": {}, "gka": {}}, "learning_rates": RATES, "seeds": [0, 1, 2]}
    given |= {"recipe": "demo", "baseline": "rope", "sizes": {size: {} for size in sizes}}
    return Study(**{**given, **keys})


def left(runs: StudyRuns) -> list[int]:
    return [len(state.missing) for state in runs.states()]


def train(runs: StudyRuns, loss: Callable[[str], float | None], rounds: int = 1) -> list[str]:
    """Write figures for what is pending, as the worker does; a loss of None has diverged."""
    names = []
    for _ in range(rounds):
        for job in runs.pending():
            names.append(job.name)
            recipe, folder = load_recipe(job.command[-2]), Path(job.command[-1])
            value = loss(job.name)
            row = {"diverged": "the loss became nan"} if value is None else {"loss": value}
            run_file(folder).write_text(json.dumps({"recipe": recipe.to_mapping(), **row}))
    return names


def test_a_search_comes_first_and_its_best_rate_serves_all_seeds(tmp_path: Path) -> None:
    runs = StudyRuns(study("small"), cells("small"), tmp_path)
    (cell,) = cells("small")
    assert left(runs) == [5]
    assert runs.results()["cells"][0]["learning_rate"] is None
    losses = {"lr0.001": 3.0, "lr0.002": 2.0, "lr0.004": None}
    searched = train(runs, lambda name: losses[name.split("/")[-1].split("-")[0]])
    assert searched == [f"small/rope/lr{rate:g}-seed0" for rate in RATES]
    assert left(runs) == [2]
    (found,) = runs.results()["cells"]
    assert (found["learning_rate"], found["flops"]) == (2e-3, cell.flops)
    assert [job.name for job in runs.pending()] == [f"small/rope/lr0.002-seed{seed}" for seed in (1, 2)]
    again = StudyRuns(study("small"), cells("small"), tmp_path)
    assert [job.name for job in again.pending()] == [job.name for job in runs.pending()]
    train(again, lambda name: 2.0)
    assert again.pending() == []
    assert again.warnings() == []
    assert len(again.rows()) == 5


def test_a_rate_that_is_alone_needs_no_search(tmp_path: Path) -> None:
    of = study("small", "large", learning_rates=[2e-3], search_at=["small"], seeds=[3, 4])
    runs = StudyRuns(of, cells("small", "large"), tmp_path)
    names = [f"{size}/rope/lr0.002-seed{seed}" for size in ("small", "large") for seed in (3, 4)]
    assert [job.name for job in runs.pending()] == names
    train(runs, lambda name: None if "seed3" in name else 2.0)
    assert runs.pending() == []
    assert len(runs.warnings()) == 1


def test_seeds_that_are_trained_alone_have_the_rate_that_the_first_one_finds(tmp_path: Path) -> None:
    of = study("small", "large", search_at=["small"])
    plan = cells("small", "large")
    runs = StudyRuns(of, plan, tmp_path, seeds=[2])
    assert left(runs) == [4, 1]
    names = train(runs, lambda name: 1 - ("lr0.002" in name), 2)
    assert names[:3] == [f"small/rope/lr{rate:g}-seed0" for rate in RATES]
    assert names[3:] == ["small/rope/lr0.002-seed2", "large/rope/lr0.002-seed2"]
    assert left(runs) == [0, 0]
    whole = StudyRuns(of, plan, tmp_path)
    assert [job.name for job in whole.pending()] == [
        "small/rope/lr0.002-seed1", "large/rope/lr0.002-seed0", "large/rope/lr0.002-seed1",
    ]  # fmt: skip


def test_a_best_rate_at_an_end_is_warned_of_or_the_list_goes_on(tmp_path: Path) -> None:
    def loss(name: str) -> float:  # lowest at 1.6e-2
        return abs(float(name.split("lr")[1].split("-")[0]) - 1.6e-2)

    short = StudyRuns(study("small"), cells("small"), tmp_path / "short")
    train(short, loss, rounds=2)
    (warning,) = short.warnings()
    assert "rope at size small: the best learning rate is the highest that was tried, 0.004" in warning

    longer = StudyRuns(study("small", extend_rates=3), cells("small"), tmp_path / "longer")
    names = train(longer, loss, rounds=5)
    assert [name.split("/")[-1] for name in names[3:]] == [
        "lr0.008-seed0", "lr0.016-seed0", "lr0.032-seed0", "lr0.016-seed1", "lr0.016-seed2",
    ]  # fmt: skip
    assert longer.warnings() == []


def test_a_cell_that_diverges_at_every_rate_is_named_and_needs_no_more(tmp_path: Path) -> None:
    runs = StudyRuns(study("small"), cells("small"), tmp_path)
    train(runs, lambda name: None)
    assert runs.pending() == []
    assert runs.warnings() == ["rope at size small: training diverged at every learning rate"]
    assert left(runs) == [0]


def test_seeds_that_diverge_at_the_chosen_rate_are_counted_in_a_warning(tmp_path: Path) -> None:
    runs = StudyRuns(study("small", learning_rates=[1e-3]), cells("small"), tmp_path)
    train(runs, lambda name: None if "seed1" in name else 1.0, rounds=2)
    assert runs.warnings() == [
        "rope at size small: training diverged with 1 of 3 seeds at the learning rate 0.001, and the figures "
        "are those of the others"
    ]


def test_sizes_without_a_search_take_the_rate_of_the_one_before(tmp_path: Path) -> None:
    of = study("first", "second", "third", search_at=["second"])
    plan = cells("first", "second", "third")
    runs = StudyRuns(of, plan, tmp_path)
    assert left(runs) == [3, 5, 3]
    assert {name.split("/")[0] for name in train(runs, lambda name: 1 - 100 * ("lr0.002" in name))} == {
        "second"
    }
    assert {name for name in train(runs, lambda name: 1.0) if "third" in name or "first" in name} == {
        f"{size}/rope/lr0.002-seed{seed}" for size in ("first", "third") for seed in range(3)
    }  # all at once: with one rate the first seed decides nothing


def test_some_variants_have_a_search_of_their_own_at_a_further_size(tmp_path: Path) -> None:
    of = study("first", "second", "third", search_at=["first"], search_also={"second": ["rope"]})
    plan = cells("first", "second", "third", variants=("rope", "gka"))
    runs = StudyRuns(of, plan, tmp_path)
    assert left(runs) == [5, 5, 5, 3, 3, 3]
    names = train(runs, lambda name: 1 - ("lr0.002" in name if "first" in name else "lr0.001" in name), 3)
    assert {name.split("-")[0] for name in names if "third" in name} == {
        "third/rope/lr0.001", "third/gka/lr0.002",
    }  # fmt: skip
    assert runs.pending() == []


def test_runs_of_several_processors_are_warned_of(tmp_path: Path) -> None:
    of = study("small", learning_rates=[1e-3])
    runs = StudyRuns(of, cells("small"), tmp_path)
    train(runs, lambda name: 2.0)
    assert runs.warnings() == []
    for seed, device in enumerate(("one", "two", "one")):
        path = tmp_path / f"runs/small/rope/lr0.001-seed{seed}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "device": device}))
    assert StudyRuns(of, cells("small"), tmp_path).warnings() == [
        "runs of one seed can differ between processors, and these are of one, two"
    ]


def test_sizes_have_their_own_seeds_and_a_rate_comes_from_a_size_that_has_the_variant(tmp_path: Path) -> None:
    of = study(
        "first", "second", "third", search_at=["first", "second"], seeds_at={"third": [1]},
        only_at={"second": ["rope"]},
    )  # fmt: skip
    plan = cells("first", "second", "third", variants=("rope", "gka"))
    plan = [cell for cell in plan if cell.variant in of.variants_of(cell.size)]
    runs = StudyRuns(of, plan, tmp_path)
    assert left(runs) == [5, 5, 5, 1, 1]
    names = train(runs, lambda name: 1 - ("lr0.002" in name if "first" in name else "lr0.001" in name), 2)
    assert [name for name in names if "third" in name] == [
        "third/rope/lr0.001-seed1", "third/gka/lr0.002-seed1",
    ]  # fmt: skip
    assert runs.pending() == []


def test_sizes_have_their_own_rates_where_they_are_searched(tmp_path: Path) -> None:
    rates = {"second": [8e-3], "third": [4e-3]}
    of = study("first", "second", "third", search_at=["first", "second"], learning_rates_at=rates)
    runs = StudyRuns(of, cells("first", "second", "third"), tmp_path)
    names = train(runs, lambda name: 1.0, 3)
    tried = {name.rsplit("-", 1)[0] for name in names}
    first = {f"first/rope/lr{rate}" for rate in of.learning_rates}
    assert tried == {*first, "second/rope/lr0.008", "third/rope/lr0.008"}
    assert not [line for line in runs.warnings() if "second" in line]


def test_cheap_runs_have_low_costs_and_a_job_has_its_own_recipe(tmp_path: Path) -> None:
    runs = StudyRuns(study("small", "large"), cells("small", "large"), tmp_path)
    first, *_, last = runs.pending()
    assert last.cost == 2 * first.cost > 0
    recipe = load_recipe(first.command[-2])
    assert (recipe.seed, recipe.training.learning_rate, recipe.length) == (0, 1e-3, 50)
    changed = StudyRuns(study("small", "large"), cells("small", "large", steps=60), tmp_path)
    changed.pending()
    assert load_recipe(first.command[-2]).length == 60  # nothing was trained by the old one


def test_figures_of_another_plan_are_refused(tmp_path: Path) -> None:
    train(StudyRuns(study("small"), cells("small"), tmp_path), lambda name: 1.0)
    for steps in (40, 60):
        runs = StudyRuns(study("small"), cells("small", steps=steps), tmp_path)
        with pytest.raises(InputError, match=f"training.steps = 50, the study now says {steps}: choose"):
            runs.pending()
    (tmp_path / "runs/small/rope/lr0.001-seed0.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as the figures of a run"):
        StudyRuns(study("small"), cells("small"), tmp_path).pending()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    keys = {
        "model": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        "data": {"context": 16, "limit": 9000},
        "training": {
            "steps": 4, "batch_size": 2, "warmup_steps": 0, "evaluate_every": 1, "validation_batches": 1,
            "sample_characters": 0, "learning_rate": 0.01,
        },
    }  # fmt: skip
    path.write_text(json.dumps(keys))
    return path


def test_the_worker_leaves_figures_that_agree_with_the_plan(tiny: Path, tmp_path: Path) -> None:
    from nadaraya.study.plan import Measurements, plan_cells

    of = study("only", recipe=str(tiny), variants={"rope": {}})
    (cell,) = plan_cells(of, (), Measurements(None))
    job, *_ = StudyRuns(of, [cell], tmp_path).pending()
    recipe, folder = job.command[-2:]
    assert worker.main(recipe, Path(folder)) == 0
    row = json.loads(run_file(Path(folder)).read_text())
    assert (row["recipe"]["seed"], row["recipe"]["training"]["learning_rate"]) == (0, 1e-3)
    assert folder.endswith("runs/only/rope/lr0.001-seed0")
    assert (row["flops"], row["parameters"], row["tokens"]) == (cell.flops, cell.parameters, 4 * 2 * 16)
    assert [step for step, _ in row["validation"]] == [1, 2, 3, 4]
    assert row["bits_per_byte"] > 0


def test_the_worker_notes_a_run_that_diverges_and_fails_at_bad_input(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = json.loads(tiny.read_text())
    keys["training"] |= {"learning_rate": 1e30, "kernel_learning_rate": None}
    tiny.write_text(json.dumps(keys))
    assert worker.main(str(tiny), tmp_path / "run") == 0
    assert "became" in json.loads((tmp_path / "run.json").read_text())["diverged"]
    assert worker.main(str(tmp_path / "absent.yaml"), tmp_path / "other") == 2
    assert capsys.readouterr().err.splitlines() == [f"error: no recipe file {tmp_path / 'absent.yaml'}"]


def test_figures_in_the_results_count_where_the_runs_are_gone(tmp_path: Path) -> None:
    runs = StudyRuns(study("small"), cells("small"), tmp_path)
    train(runs, lambda name: None if "lr0.004" in name else 1.0 + len(name), rounds=2)
    kept = runs.results()
    (tmp_path / "results.json").write_text(json.dumps(kept))
    shutil.rmtree(tmp_path / "runs")
    again = StudyRuns(study("small"), cells("small"), tmp_path)
    assert again.pending() == []
    assert left(again) == [0]
    assert again.results()["runs"] == kept["runs"]
    grown = cells("tiny", "small", variants=("gka", "rope"))  # from the smallest, and in any order
    grown[0] = replace(grown[0], recipe=Recipe(training={"steps": 20}))
    more = StudyRuns(study("tiny", "small"), grown, tmp_path)
    expected = ["tiny/gka", "tiny/rope", "small/gka"]
    assert [job.name.rpartition("/")[0] for job in more.pending()] == [
        name for name in expected for _ in RATES
    ]
    train(more, lambda name: 1.0, rounds=2)
    (tmp_path / "results.json").write_text(json.dumps(more.results()))
    shutil.rmtree(tmp_path / "runs")
    assert StudyRuns(study("tiny", "small"), grown[::-1], tmp_path).pending() == []
    without = StudyRuns(study("small"), grown[3:], tmp_path)  # what a plan leaves out another may have again
    (tmp_path / "results.json").write_text(json.dumps(without.results()))
    assert StudyRuns(study("tiny", "small"), grown, tmp_path).pending() == []
    more = StudyRuns(study("small", seeds=[0, 1, 2, 3]), cells("small"), tmp_path)
    assert [job.name.split("-")[-1] for job in more.pending()] == ["seed3"]
    for changes, words in (
        ({"model": {"hidden_size": 32}}, "model.hidden_size = 128, the study now says 32"),
        ({"training": {"steps": 60}}, "training.steps = 50, the study now says 60"),
    ):
        changed = [
            replace(cell, recipe=Recipe(**{"training": {"steps": 50}, **changes})) for cell in grown[3:]
        ]
        with pytest.raises(InputError, match=f"results.json has a run with {words}"):
            StudyRuns(study("small"), changed, tmp_path).pending()


def test_a_folder_with_files_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("")
    check_study_folder(tmp_path)
    (tmp_path / "summary.md").write_text("precious")
    with pytest.raises(InputError, match="is not the folder of a study: choose another one"):
        check_study_folder(tmp_path)
    (tmp_path / "measured.json").write_text("{}")
    check_study_folder(tmp_path)
    check_study_folder(tmp_path / "new")
