"""Study files are checked, and every variant has as much of what is matched as the baseline has."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nadaraya.errors import InputError
from nadaraya.study import Study, load_study, plan
from nadaraya.study.plan import Measurements, plan_cells
from nadaraya.training import Recipe, load_recipe

VARIANTS = {"rope": {}, "gka": {"model.variant": "gka-loo-bank"}, "vlt": {"model": {"variant": "vlt"}}}
SIZES = {"small": {"training.steps": 400}, "large": {"training.steps": 900, "model.hidden_size": 96}}
SMALL = ["model.hidden_size=64", "model.num_hidden_layers=2"]


class Known(Measurements):
    """Fifty tokens; an update of `gka` takes half the time of the others."""

    def __init__(self) -> None:
        super().__init__(None)

    def tokens(self, recipe: Recipe) -> int:
        return 50

    def step_seconds(self, recipes: Mapping[str, Recipe], reference: str) -> dict[str, float]:
        assert reference in recipes
        return {name: 0.1 if name == "gka" else 0.2 for name in recipes}


def study(**keys: Any) -> Study:
    given = {"recipe": "demo", "baseline": "rope", "variants": VARIANTS, "sizes": SIZES}
    return Study(**{**given, "learning_rates": [1e-3, 2e-3], **keys})


def planned(**keys: Any) -> dict[tuple[str, str], Any]:
    cells = plan_cells(study(**keys), SMALL, Known())
    return {(cell.size, cell.variant): cell for cell in cells}


def test_flops_are_matched_to_half_an_update() -> None:
    cells = planned()
    assert list(cells) == [(size, variant) for size in SIZES for variant in VARIANTS]
    for (size, _), cell in cells.items():
        baseline = cells[size, "rope"]
        assert baseline.steps == SIZES[size]["training.steps"]
        assert abs(cell.flops - baseline.flops) <= cell.flops_per_step / 2
        assert cell.recipe.training.learning_rate == 1e-3
    assert cells["small", "gka"].steps > 400  # fewer FLOPs per token
    assert cells["small", "gka"].flops_per_token < cells["small", "rope"].flops_per_token


def test_parameters_are_matched_by_the_nearest_width_that_the_heads_allow() -> None:
    cells = planned(match="parameters")
    for (size, variant), cell in cells.items():
        wanted, width = cells[size, "rope"].parameters, cell.recipe.model.hidden_size
        assert width % (2 * cell.recipe.model.num_attention_heads) == 0
        assert cell.steps == SIZES[size]["training.steps"]
        for other in (width - 8, width + 8):
            recipe = study().recipe_of(size, variant, SMALL, {"model.hidden_size": other})
            count = sum(parameter.numel() for parameter in recipe.build_model(50).parameters())
            assert abs(cell.parameters - wanted) < abs(count - wanted)
    assert cells["small", "gka"].recipe.model.hidden_size > 64


def test_seconds_are_matched_by_measured_times() -> None:
    cells = planned(match="seconds")
    assert (cells["small", "rope"].steps, cells["small", "gka"].steps) == (400, 800)
    assert cells["small", "gka"].seconds == pytest.approx(80.0)


def test_tokens_are_matched_by_equal_updates() -> None:
    assert {cell.steps for (size, _), cell in planned(match="tokens").items() if size == "large"} == {900}


def test_variants_can_be_left_out_and_times_added() -> None:
    given = study(), SMALL, Known()
    cells = plan_cells(*given, only=["gka"], timed=True)
    assert [(cell.variant, cell.step_seconds) for cell in cells] == [("gka", 0.1)] * 2
    assert [replace(cell, step_seconds=None) for cell in cells] == plan_cells(*given, only=["gka"])
    with pytest.raises(InputError, match=r"--only must be one of .* got 'gkaa': did you mean 'gka'"):
        plan_cells(*given, only=["gkaa"])


def test_measurements_are_made_once_and_later_ones_are_related_to_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("demo", ["data.limit=9000", *SMALL])
    assert isinstance(recipe, Recipe)
    path = tmp_path / "measured.json"
    tokens = Measurements(path).tokens(recipe)
    assert tokens > 30
    monkeypatch.setattr(plan, "open_task", None)  # reading the data again would fail
    assert Measurements(path).tokens(recipe) == tokens

    other, third = (recipe.model_copy(update={"seed": 1, "model": size}) for size in sizes(recipe))
    monkeypatch.setattr(Measurements, "_take_turns", lambda self, recipes: {key: [0.1] for key in recipes})
    first = Measurements(path).step_seconds({"rope": recipe, "other": other}, "rope")
    assert first == {"rope": 0.1, "other": 0.1}
    monkeypatch.setattr(Measurements, "_take_turns", lambda self, recipes: {key: [0.4] for key in recipes})
    again = Measurements(path).step_seconds({"rope": recipe, "other": other, "third": third}, "rope")
    assert again == pytest.approx({"rope": 0.1, "other": 0.1, "third": 0.1})


def test_a_machine_that_is_slow_for_some_turns_changes_no_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("demo", ["data.limit=9000", *SMALL])
    assert isinstance(recipe, Recipe)
    turns = {"rope": [0.1, 0.1, 0.3, 0.3, 0.1], "other": [0.2, 0.6, 0.6, 0.6, 0.2]}
    monkeypatch.setattr(Measurements, "_take_turns", lambda self, recipes: turns)
    other, _ = (recipe.model_copy(update={"model": size}) for size in sizes(recipe))
    times = Measurements(None).step_seconds({"rope": recipe, "other": other}, "rope")
    assert times == pytest.approx({"rope": 0.1, "other": 0.2})


def sizes(recipe: Recipe) -> list[Any]:
    return [recipe.model.model_copy(update={"hidden_size": width}) for width in (32, 16)]


def test_a_damaged_file_of_measurements_is_one_line(tmp_path: Path) -> None:
    for text in ("{", "3", '{"tokens": 3}'):
        (tmp_path / "measured.json").write_text(text)
        with pytest.raises(InputError, match="measurements of a study"):
            Measurements(tmp_path / "measured.json")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"variant": {}}, "study key must be one of"),
        ({"baseline": "ropee"}, r"study key baseline must be one of .* did you mean 'rope'"),
        ({"match": "time"}, "study key match must be 'flops'"),
        ({"learning_rates": []}, "study key learning_rates must be"),
        ({"learning_rates": [1e-3, 1e-3]}, "a list of different numbers"),
        ({"learning_rates": [1e-3, 1.0000001e-3]}, r"different numbers \(rates: in six digits\), got"),
        ({"search_at": ["medium"]}, "study key search_at must be one of"),
        ({"search_also": {"medium": ["rope"]}}, "study key search_also must be one of"),
        ({"search_also": {"small": ["gkaa"]}}, r"search_also.small must be one of .* did you mean 'gka'"),
        ({"variants": {"a/b": {}}, "baseline": "a/b"}, "study key variants must be named in"),
        ({"variants": {"rope": {"training": {"steps": 5}}}}, r"variants.rope must be without .*steps"),
        ({"sizes": {"small": {"seed": 1}}}, r"sizes.small must be without .*seed"),
        ({"seeds_at": {"huge": [0]}}, "study key seeds_at must be one of"),
        ({"seeds_at": {"large": [1, 1]}}, "study key seeds_at.large must be a list of different numbers"),
        ({"seeds_at": {"large": []}}, "study key seeds_at must be longer, got"),
        ({"learning_rates_at": {"huge": [1e-3]}}, "study key learning_rates_at must be one of"),
        ({"learning_rates_at": {"large": [0.0]}}, "study key learning_rates_at must be"),
        ({"learning_rates_at": {"large": [1e-3, 1e-3]}}, r"learning_rates_at.large must be a list of"),
        ({"only_at": {"large": ["rope", "gkaa"]}}, r"only_at.large must be one of .* did you mean 'gka'"),
        ({"only_at": {"large": ["gka"]}}, "only_at.large must be a list with the baseline 'rope'"),
        ({"only_at": {"small": ["rope"]}, "search_at": ["small"]}, "one at least has the variant 'gka'"),
        ({"probes": ["bank"]}, r"study key probes must be one of .* did you mean 'banks'"),
    ],
)  # fmt: skip
def test_a_study_that_cannot_be_is_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        study(**keys)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"recipe": "absent.yaml"}, "no recipe file"),
        ({"recipe": "dikens"}, "did you mean 'dickens'"),
        ({"recipe": "cifar-cpu", "variants": {"rope": {}}, "sizes": {"a": {}}}, "must be a recipe on text"),
        (
            {"variants": {**VARIANTS, "odd": {"model.varaint": "gka"}}},
            "odd at size small: recipe key must be",
        ),
        ({"variants": {**VARIANTS, "odd": {"model.variant": "gkaa"}}}, "did you mean 'gka'"),
        ({"sizes": {"small": {"model.hidden_size": 6}}}, "model.hidden_size must be a multiple"),
    ],
)
def test_recipes_that_cannot_be_are_refused_before_anything_is_trained(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_cells(study(**keys), [] if "cifar-cpu" in keys.values() else SMALL, Known())


def test_a_file_says_its_recipe_relative_to_itself(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: {hidden_size: 64}\ntraining: {steps: 77}\n")
    keys = {"recipe": "base.yaml", "baseline": "a", "variants": {"a": {}}, "learning_rates": ["1e-3"]}
    (tmp_path / "study.yaml").write_text(json.dumps(keys))
    recipe = load_study(tmp_path / "study.yaml").recipe_of("only", "a")
    assert (recipe.training.steps, recipe.model.hidden_size) == (77, 64)
    (tmp_path / "study.yaml").write_text("- a\n")
    with pytest.raises(InputError, match="must be keys and values"):
        load_study(tmp_path / "study.yaml")


def test_variants_are_planned_once_in_the_order_of_the_file() -> None:
    cells = plan_cells(study(), SMALL, Known(), only=["vlt", "rope", "vlt"])
    assert [cell.variant for cell in cells] == ["rope", "vlt"] * 2


def test_sizes_have_their_own_seeds_and_variants() -> None:
    of = study(seeds_at={"large": [7]}, only_at={"large": ["vlt", "rope"]}, match="tokens")
    cells = plan_cells(of, SMALL, Known())
    assert [(cell.size, cell.variant) for cell in cells] == [
        ("small", "rope"), ("small", "gka"), ("small", "vlt"), ("large", "rope"), ("large", "vlt"),
    ]  # fmt: skip
    assert [cell.size for cell in plan_cells(of, SMALL, Known(), only=["gka"])] == ["small"]
    assert (of.seeds_of("small"), of.seeds_of("large")) == ([0, 1, 2], [7])
    assert (of.sizes_of("gka"), of.sizes_of("vlt")) == (["small"], ["small", "large"])


def test_seeds_that_are_added_come_last_at_every_size() -> None:
    of = study(seeds_at={"large": [0, 4]})
    more = of.with_seeds([4, 1])
    assert (more.seeds_of("small"), more.seeds_of("large")) == ([0, 1, 2, 4], [0, 4, 1])
    assert of.with_seeds([]) == of == of.with_seeds([0])


def test_the_last_size_is_probed_or_those_that_are_named() -> None:
    assert study(probes=["banks"]).probes_of("large") == ["banks"]
    assert study(probes=["banks"]).probes_of("small") == []
    named = study(probes=["banks"], probe_at=["small"])
    assert (named.probes_of("small"), named.probes_of("large")) == (["banks"], [])


def test_what_a_study_sets_itself_is_refused_wherever_it_is_given() -> None:
    given: dict[str, Any] = {"recipe": "demo", "baseline": "rope", "learning_rates": [1e-3]}
    of = Study(**given, variants={"rope": {}})
    for change in ("seed=3", "training.learning_rate=0.5", "name=mine"):
        with pytest.raises(InputError, match=f"without what the study sets itself, got '{change}'"):
            of.recipe_of("only", "rope", [change])
    for match in ("flops", "seconds", "tokens"):
        with pytest.raises(InputError, match=r"variants.rope must be without what the study sets itself"):
            Study(**given, match=match, variants={"rope": {"training.steps": 5}})
    for key in ("training.batch_size", "training.batch_tokens", "data.context"):
        Study(**given, match="flops", variants={"rope": {key: 64}})
        with pytest.raises(InputError, match=f"without what the study sets itself, got '{key}'"):
            Study(**given, match="tokens", variants={"rope": {key: 64}})
