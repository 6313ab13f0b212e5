"""The study files of the project can be planned, and are what their comments say."""

from pathlib import Path

import pytest
import torch

from nadaraya.reproduce.catalogue import load_experiment
from nadaraya.study import Study, load_study
from nadaraya.study.plan import Measurements, plan_cells
from nadaraya.study.runs import StudyRuns
from nadaraya.training import Recipe

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STUDIES = EXPERIMENTS / "studies"
# Folders of results, their studies and the changes that these were called with.
KEPT = {
    "studies/banks": ("banks", "training.precision=bfloat16"),
    "studies/beyond": ("beyond", "training.precision=bfloat16"),
    "studies/controls": ("controls", "training.precision=bfloat16"),
    "studies/gka-characters": ("gka", "data.corpus=dickens"),
    "studies/gka-bytepairs": ("gka", "data.corpus=wiki-shards"),
    "papers": ("", "training.precision=bfloat16"),
    "wrapped": ("", "training.precision=bfloat16"),
    "shuffled": ("", "training.precision=bfloat16"),
}


class Known(Measurements):
    """1024 tokens, without a text, or 82, those of Dickens."""

    def tokens(self, recipe: Recipe) -> int:
        return 82 if recipe.data.corpus == "dickens" else 1024


@pytest.mark.parametrize(
    "folder",
    [pytest.param(name, marks=() if name == "shuffled" else pytest.mark.slow) for name in KEPT],
)
def test_runs_that_were_kept_are_those_of_the_studies_now(folder: str) -> None:
    """A variant that is called something else would be trained again, or refused."""
    name, change = KEPT[folder]
    study: Study = load_study(STUDIES / f"{name}.yaml") if name else load_experiment(folder, "cpu").study
    cells = plan_cells(study, [change], Known(None))
    runs = StudyRuns(study, cells, EXPERIMENTS / "results" / folder)
    wanted = {(cell.size, cell.variant) for cell in cells}
    assert {(row["size"], row["variant"]) for row in runs.rows()} <= wanted
    if folder in ("studies/controls", "papers", "wrapped", "shuffled"):
        assert not any(state.missing for state in runs.states())


def test_the_sizes_of_the_study_of_gka_span_an_order_of_magnitude_and_hybrids_are_hybrids() -> None:
    study = load_study(STUDIES / "gka.yaml")
    cells = plan_cells(study, (), Known(None), only=["rope", "gka-loo-bank", "hybrid-4"])
    flops = [cell.flops for cell in cells if cell.variant == "rope"]
    assert len(flops) == 3
    assert flops == pytest.approx([1.2e12, 4.1e12, 1.2e13], rel=0.05)
    assert flops[-1] >= 10 * flops[0]
    assert all(cell.recipe.model.num_hidden_layers == 4 for cell in cells)


@pytest.mark.slow
def test_every_variant_of_the_study_of_gka_is_one_of_its_own() -> None:
    study = load_study(STUDIES / "gka.yaml")
    recipes = [study.recipe_of("w48", variant) for variant in study.variants]
    cells = plan_cells(study, (), Known(None))
    assert len(cells) == 3 * len(study.variants)
    assert len({recipe.model.model_dump_json() for recipe in recipes}) == len(recipes)


EQUAL = {
    "mul-1": ["decay-2"],
    "mul-2": ["decay-4"],
    "mul-8": [
        "decay-16",
        "added-8",
        "signed-8",
        "mul-heads-32",
        "mul-layers-32",
        "mul-all-128",
        "mul-corpus",
    ],
    "added-8": ["added-decay-16", "added-corpus"],
    "added-64": ["decay-128", "added-decay-128", "signed-64", "added-64-random", "mul-64"],
    "cosine-11": ["signed-cosine-11"],
}


def test_controls_of_the_study_of_banks_have_as_many_parameters_as_what_they_control() -> None:
    study = load_study(STUDIES / "banks.yaml")
    assert (study.match, study.baseline, list(study.sizes)) == ("tokens", "rope", ["u1000"])
    names = [*EQUAL, *(name for controls in EQUAL.values() for name in controls), "cosine-85"]
    recipes = {name: study.recipe_of("u1000", name) for name in names}
    parameters = {name: counted(recipe) for name, recipe in recipes.items()}
    for name, controls in EQUAL.items():
        assert {parameters[control] for control in controls} == {parameters[name]}
    # 3 numbers for each term, where 4 do not divide: 16 heads.
    assert parameters["cosine-11"] - parameters["added-8"] == 16
    assert parameters["added-64"] - parameters["cosine-85"] == 16
    model = recipes["mul-8"].model
    assert (model.hidden_size, model.num_hidden_layers) == (128, 4)
    assert (recipes["mul-8"].training.batch_size, recipes["mul-8"].data.context) == (16, 256)


@pytest.mark.slow
def test_every_variant_of_the_study_of_banks_is_one_of_its_own() -> None:
    study = load_study(STUDIES / "banks.yaml")
    recipes = [study.recipe_of("u1000", variant) for variant in study.variants]
    cells = plan_cells(study, (), Known(None))
    assert len(cells) == len(study.variants)
    assert {cell.recipe.training.steps for cell in cells} == {1000}
    assert len({recipe.model.model_dump_json() for recipe in recipes}) == len(recipes)


def counted(recipe: Recipe, vocabulary: int = 1024) -> int:
    """Parameters of the model of a recipe."""
    with torch.device("meta"):
        return int(recipe.build_model(vocabulary).num_parameters())


def test_the_study_of_controls_has_each_of_them_with_and_without_the_bank() -> None:
    study = load_study(STUDIES / "controls.yaml")
    assert study.horizons
    assert (study.seeds_of("u1000"), study.seeds_of("u3000")) == ([0, 1, 2], [0])
    for control in ("norm", "conv", "xsa", "drop", "loo", "xsa-conv"):
        plain, with_bank = (
            study.recipe_of("u1000", f"{name}-{control}").model for name in ("rope", "gpa-rope")
        )
        assert with_bank.variant.startswith("gpa-rope")
        if control != "norm":  # which has a variant of its own without a bank
            assert with_bank.model_copy(update={"variant": plain.variant}) == plain
    recipes = [study.recipe_of("u1000", variant) for variant in study.variants]
    assert len({recipe.model.model_dump_json() for recipe in recipes}) == len(recipes)


def test_ideas_beyond_gpa_rope_have_its_parameters() -> None:
    study = load_study(STUDIES / "beyond.yaml")
    dickens = 93  # characters
    sizes = {name: counted(study.recipe_of("u3000", name), dickens) for name in study.variants}
    ideas = set(sizes) - {"rope", "gpa-rope"}
    assert len(ideas) >= 8
    assert all(sizes[idea] == pytest.approx(sizes["gpa-rope"], rel=0.01) for idea in ideas), sizes
