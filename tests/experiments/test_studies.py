"""The study files of the project can be planned, and are what their comments say."""

from pathlib import Path

import pytest

from nadaraya.study import load_study
from nadaraya.study.measure import Measurements
from nadaraya.study.plan import Planner
from nadaraya.training import Recipe

STUDIES = Path(__file__).parents[2] / "experiments" / "studies"


class Known(Measurements):
    """1024 tokens, without a text."""

    def tokens(self, recipe: Recipe) -> int:
        return 1024


def test_the_sizes_of_the_study_of_gka_span_an_order_of_magnitude_and_hybrids_are_hybrids() -> None:
    study = load_study(STUDIES / "gka.yaml")
    cells = Planner(study, (), Known(None)).cells(only=["rope", "gka-loo-bank", "hybrid-4"])
    flops = [cell.flops for cell in cells if cell.variant == "rope"]
    assert len(flops) == 3
    assert flops == pytest.approx([1.9e12, 6.3e12, 2.0e13], rel=0.05)
    assert flops[-1] >= 10 * flops[0]
    assert all(cell.recipe.model.num_hidden_layers == 4 for cell in cells)


@pytest.mark.slow
def test_every_variant_of_the_study_of_gka_is_one_of_its_own() -> None:
    study = load_study(STUDIES / "gka.yaml")
    recipes = [study.recipe_of("w64", variant) for variant in study.variants]
    cells = Planner(study, (), Known(None)).cells()
    assert len(cells) == 3 * len(study.variants)
    assert len({recipe.model.model_dump_json() for recipe in recipes}) == len(recipes)
