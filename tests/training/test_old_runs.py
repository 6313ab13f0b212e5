"""Runs of before `gpa` and `gpa-rope` started flat keep the start that they had, and go on."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import yaml

from nadaraya.errors import InputError
from nadaraya.training import Recipe, Run, load_recipe, train


@pytest.mark.slow
def test_an_old_run_means_the_start_of_the_paper(tiny_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = tiny_recipe(model__variant="gpa-rope-paper", model__extra={"prune_tol": 0.01})
    folder = tmp_path / "run"
    before = train(recipe, folder, progress=False)
    _age(folder)
    old = Run(folder)
    assert old.recipe == load_recipe(folder) == recipe
    model = old.load_model()
    assert model.config.variant == "gpa-rope-paper"
    for name, value in before.load_model().state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
    assert train(recipe, folder, progress=False).final == old.final
    flat = tiny_recipe(model__variant="gpa-rope")
    with pytest.raises(InputError, match=r"model\.variant = 'gpa-rope-paper', not 'gpa-rope'"):
        train(flat, folder, progress=False)


def _age(folder: Path) -> None:
    """Write the recipe and the configuration of a run as they were written then."""
    recipe = yaml.safe_load((folder / "config.yaml").read_text())
    del recipe["format"]
    recipe["model"]["variant"] = "gpa-rope"
    recipe["model"]["extra"]["negligible"] = recipe["model"]["extra"].pop("prune_tol")
    config = json.loads((folder / "config.json").read_text())
    del config["variant_names"]
    config["variant"] = "gpa-rope"
    config["negligible"] = config.pop("prune_tol")
    metrics = (folder / "metrics.jsonl").read_text()
    for name, text in {
        "config.yaml": yaml.safe_dump(recipe, sort_keys=False),
        "config.json": json.dumps(config),
    }.items():
        before = sha256((folder / name).read_bytes()).hexdigest()
        (folder / name).write_text(text)
        metrics = metrics.replace(before, sha256(text.encode()).hexdigest())
    (folder / "metrics.jsonl").write_text(metrics)
