"""The search over kernel expressions, on scores that are made up: what it finds, trains and trusts."""

import json
import math
import random
import shutil
from pathlib import Path

import pytest

from nadaraya.errors import InputError
from nadaraya.kernels.expressions import parse_expression
from nadaraya.study.candidates import Loss, Progress, most_runs, neighbours, search_progress
from nadaraya.study.results import run_file
from nadaraya.study.search import SearchPlan, SearchRuns, search_recipe, verdict, write_summary
from nadaraya.training import load_recipe

BASES = ("exponential", "gaussian", "periodic", "rq")


class Toy:
    """Scores by how many terms, and factors of them, an expression shares with the one that is planted."""

    def __init__(self, planted: str, noise: float = 0.0) -> None:
        self.planted = {term.factors for term in parse_expression(planted).terms}
        self.noise = noise
        self.known: dict[tuple[str, int], float] = {}
        self.trained: list[tuple[str, int]] = []

    def train(self, expression: str, seed: int) -> None:
        self.trained.append((expression, seed))
        found = [term.factors for term in parse_expression(expression).terms]
        likeness = sum(
            max(len(set(term) & set(other)) - 0.5 * len(set(other) - set(term)) for other in found)
            for term in self.planted
        )
        draw = random.Random(f"{expression} {seed}").gauss(0, self.noise)
        self.known[expression, seed] = 5.0 - likeness + 0.01 * len(expression) + draw

    def loss(self, expression: str, seed: int) -> float | None:
        return self.known.get((expression, seed))


def run(plan: SearchPlan, toy: Toy) -> Progress:
    while (progress := search_progress(plan, toy.loss)).pending:
        for each in progress.pending:
            toy.train(*each)
    return progress


@pytest.mark.parametrize("planted", ["exponential*periodic + rq", "gaussian*periodic*rq", "periodic"])
@pytest.mark.parametrize("beam", [1, 2])
def test_a_planted_expression_is_found_and_none_is_trained_twice(planted: str, beam: int) -> None:
    toy = Toy(planted)
    progress = run(SearchPlan(BASES, rounds=5, beam=beam), toy)
    assert progress.best is not None
    assert progress.best.expression == planted
    assert len(set(toy.trained)) == len(toy.trained)
    spellings = [each.expression for each in progress.candidates]
    assert len(set(spellings)) == len(spellings)
    assert [str(parse_expression(each)) for each in spellings] == spellings
    assert progress.ended is not None
    assert "no candidate was better" in progress.ended
    losses = [each.loss for each in progress.path]
    assert losses == sorted(losses, reverse=True)


def test_every_candidate_is_one_step_from_its_parents() -> None:
    plan = SearchPlan(BASES, rounds=3, beam=2)
    progress = run(plan, Toy("exponential*periodic + rq"))
    bases = [parse_expression(base) for base in plan.bases]
    kept = {each.expression: each.round for each in progress.candidates if each.kept}
    for each in progress.candidates:
        assert bool(each.parents) == (each.round > 0)
        for parent in each.parents:
            assert kept[parent] == each.round - 1
            assert parse_expression(each.expression) in neighbours(parse_expression(parent), bases)


def test_steps_of_an_expression() -> None:
    def steps(text: str) -> set[str]:
        return {str(each) for each in neighbours(parse_expression(text), [parse_expression("rq")])}

    assert steps("rq") == {"2*rq", "rq*rq"}
    assert steps("2*gaussian") == {
        "2*gaussian + rq", "rq*(2*gaussian)", "4*gaussian", "2*gaussian*rq", "2*rq",
    }  # fmt: skip
    assert {"exp(2*gaussian)", "exp(gaussian*rq)", "exp(gaussian + rq)", "exp(rq)"} < steps("exp(gaussian)")
    assert "gaussian*(periodic + 2*rq)" in steps("gaussian*(periodic + rq)")
    assert steps("64*gaussian") == {"64*rq"}  # all others have more than 64 kernels


def test_only_the_first_seed_chooses_and_only_the_others_confirm() -> None:
    lucky = {"rq": 1.0, "2*rq": 0.0}

    def loss(expression: str, seed: int) -> float:
        return lucky.get(expression, 2.0) if seed == 0 else 1.5 + (seed == 1) * 0.1

    progress = search_progress(SearchPlan(("rq",), rounds=3), loss)
    assert [each.expression for each in progress.candidates if each.chosen] == ["rq", "2*rq"]
    assert progress.best is not None
    assert progress.best.expression == "rq"
    found = {each.expression: each for each in progress.candidates}
    assert found["2*rq"].gain == 0.0
    assert found["rq*rq"].losses.keys() == {0}  # worse than its parent: the other seeds are not spent


def test_a_base_that_diverges_with_another_seed_makes_room_for_the_next() -> None:
    def loss(expression: str, seed: int) -> float:
        return math.inf if expression == "rq" and seed == 1 else 2.0 + 0.1 * len(expression)

    progress = search_progress(SearchPlan(("rq", "gaussian", "exponential"), rounds=0), loss)
    assert progress.ended == "after 0 rounds"
    assert progress.best is not None
    assert progress.best.expression == "gaussian"
    assert [each.expression for each in progress.candidates if each.chosen] == ["rq", "gaussian"]


def test_a_gain_within_the_standard_error_is_not_believed() -> None:
    def kept(gains: tuple[float, ...]) -> bool:
        def loss(expression: str, seed: int) -> float:
            return 2.0 if expression == "rq" else 2.0 - (0.5, *gains)[seed] * (expression == "2*rq")

        progress = search_progress(SearchPlan(("rq",), rounds=1, seeds=1 + len(gains)), loss)
        return progress.best is not None and progress.best.expression == "2*rq"

    assert kept((0.2, 0.1))
    assert kept((0.31, -0.1)) is False  # 0.105 ± 0.205
    assert kept((0.3, 0.3, -0.1))  # 0.17 ± 0.13
    assert kept((-0.1, -0.2)) is False


def test_without_any_effect_noise_alone_rarely_goes_on() -> None:
    ended = []
    for number in range(30):
        noise = random.Random(number)
        known: dict[tuple[str, int], float] = {}

        def loss(
            expression: str,
            seed: int,
            known: dict[tuple[str, int], float] = known,
            noise: random.Random = noise,
        ) -> float:
            return known.setdefault((expression, seed), noise.gauss(2, 0.1))

        ended.append(len(search_progress(SearchPlan(BASES, rounds=4, seeds=6), loss).path) - 1)
    assert sum(ended) / len(ended) < 1  # steps that a search without anything to find takes


def test_what_diverges_is_out(tmp_path: Path) -> None:
    def loss(expression: str, seed: int) -> float:
        if expression == "periodic" or (expression, seed) == ("2*rq", 1):
            return math.inf
        return 2.0 - 0.01 * len(expression)

    progress = search_progress(SearchPlan(("periodic", "rq"), rounds=2), loss)
    kept = {each.expression for each in progress.candidates if each.kept}
    assert kept
    assert not kept & {"periodic", "2*rq"}
    write_summary(progress, tmp_path)
    assert "diverged" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    nothing = search_progress(SearchPlan(("rq",)), lambda expression, seed: math.inf)
    assert nothing.best is None
    assert verdict(nothing) == "No expression could be trained: the training of every base diverged."
    assert verdict(search_progress(SearchPlan(("rq",)), lambda *_: None)) == "No expression is confirmed yet."


def test_the_cost_is_counted_before() -> None:
    plan, none = SearchPlan(("rq", "gaussian"), rounds=0), Toy("rq")
    assert most_runs(plan, none.loss) == 2 + 2  # every base, and the other two seeds of the best
    longer = SearchPlan(("rq", "gaussian"), rounds=2)
    most = most_runs(longer, none.loss)
    toy = Toy("rq*rq")
    run(longer, toy)
    assert 4 < len(toy.trained) <= most
    assert most_runs(longer, toy.loss) < most


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bases": ()}, "bases must be at least one expression"),
        ({"bases": ("rq", "perodic")}, "did you mean 'periodic'"),
        ({"seeds": 2}, "seeds must be a whole number from 3 to 100, got 2"),
        ({"beam": 0}, "beam must be a whole number from 1 to 16, got 0"),
        ({"rounds": 21}, "rounds must be a whole number from 0 to 20, got 21"),
    ],
)
def test_plans_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SearchPlan(**options)


def test_bases_are_tried_once_in_one_spelling() -> None:
    assert SearchPlan(("rq*periodic", "periodic * rq", "rq")).bases == ("periodic*rq", "rq")


def finish(runs: SearchRuns, loss: Loss) -> list[str]:
    """Write figures for all that is pending until nothing is, as the worker does; names of the runs."""
    names = []
    while jobs := runs.pending():
        for job in jobs:
            recipe, folder = load_recipe(job.command[-2]), Path(job.command[-1])
            expression = recipe.model.variant_options["expression"]
            found = loss(expression, recipe.seed)
            figures = {"diverged": "nan"} if found == math.inf else {"loss": found}
            run_file(folder).write_text(json.dumps({"recipe": recipe.to_mapping(), **figures}))
            names.append(job.name)
    return names


def score(expression: str, seed: int) -> float:
    return math.inf if expression == "2*rq" else 2.0 - 0.1 * min(len(expression), 14) + 0.001 * seed


def test_a_search_goes_on_from_its_runs_and_from_its_results(tmp_path: Path) -> None:
    recipe = search_recipe(
        "demo", ["training.steps=5", "training.warmup_steps=0", "model.variant_options.how=add"]
    )
    plan = SearchPlan(("rq", "gaussian"), rounds=2)
    first = SearchRuns(recipe, plan, tmp_path)
    names = finish(first, score)
    assert len(names) == len(set(names))
    assert SearchRuns(recipe, plan, tmp_path).pending() == []
    results = first.results()
    assert results["ended"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    shutil.rmtree(tmp_path / "runs")
    again = SearchRuns(recipe, plan, tmp_path)
    assert again.pending() == []
    assert again.results() == json.loads(json.dumps(results), object_hook=_whole_seeds)
    shorter = SearchRuns(recipe, SearchPlan(plan.bases[:1], rounds=0), tmp_path).results()
    assert len(shorter["candidates"]) == 1
    (tmp_path / "results.json").write_text(json.dumps(shorter))
    assert SearchRuns(recipe, plan, tmp_path).pending() == []  # what a smaller plan does not ask for is kept
    longer = SearchRuns(recipe, SearchPlan(plan.bases, rounds=2, seeds=4), tmp_path)
    assert {job.name.split(", ")[1] for job in longer.pending()} == {"seed 3"}
    write_summary(again.progress(), tmp_path)
    assert (tmp_path / "path.png").stat().st_size > 5000
    assert verdict(again.progress()) in (tmp_path / "summary.md").read_text(encoding="utf-8")


def _whole_seeds(mapping: dict) -> dict:
    """JSON has text keys, and lists where Python has tuples."""
    if "losses" in mapping:
        losses = {int(seed): loss for seed, loss in mapping["losses"].items()}
        return {**mapping, "losses": losses, "parents": tuple(mapping["parents"])}
    return {**mapping, "bases": tuple(mapping["bases"])} if "bases" in mapping else mapping


def test_runs_of_another_recipe_are_refused(tmp_path: Path) -> None:
    plan = SearchPlan(("rq", "gaussian"), rounds=0)
    recipe, other = (
        search_recipe("demo", [f"training.steps={steps}", "training.warmup_steps=0"]) for steps in (5, 6)
    )
    runs = SearchRuns(recipe, plan, tmp_path)
    finish(runs, score)
    with pytest.raises(InputError, match=r"training\.steps = 5, the search now says 6: choose another --out"):
        SearchRuns(other, plan, tmp_path).pending()
    (tmp_path / "results.json").write_text(json.dumps(runs.results()))
    with pytest.raises(InputError, match="was found with another recipe"):
        SearchRuns(other, plan, tmp_path)
    (tmp_path / "results.json").write_text('{"candidates": [1]}')
    with pytest.raises(InputError, match="cannot be read as the results of a search"):
        SearchRuns(recipe, plan, tmp_path)


@pytest.mark.parametrize("change", ["seed=1", "name=mine", "model.variant_options.expression=rq"])
def test_what_a_search_sets_itself_is_refused(change: str) -> None:
    with pytest.raises(InputError, match=f"without what the search sets itself, got '{change}'"):
        search_recipe("demo", [change])


def test_the_recipe_keeps_a_variant_that_takes_expressions() -> None:
    assert search_recipe("demo", ["model.variant=gka"]).model.variant == "kernel"
    for variant in ("kernel-loo", "[kernel, rope]"):
        assert "kernel" in str(search_recipe("demo", [f"model.variant={variant}"]).model.variant)
        assert search_recipe("demo", [f"model.variant={variant}"]).model.variant != "kernel"
    with pytest.raises(InputError, match="recipe of a search must be one on text, got 'cifar-cpu'"):
        search_recipe("cifar-cpu")
