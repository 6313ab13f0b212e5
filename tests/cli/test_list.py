"""`nadaraya list`: names that other verbs take, and runs, finished or not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nadaraya import kernels, variants
from nadaraya.training import Run, built_in_recipes


def test_names_are_those_that_other_verbs_take(nadaraya: Any) -> None:
    found = json.loads(nadaraya("list", "--json").out)
    named = {kind: [row["name"] for row in rows] for kind, rows in found.items() if kind != "runs"}
    assert named["variants"] == [*variants.names(), *variants.hybrids()]
    assert named["recipes"] == built_in_recipes()
    assert {"Gaussian", "KernelBank", "GridKernel"} <= set(named["kernels"]) < set(kernels.__all__)
    assert all(row["description"] for kind in named for row in found[kind])
    out = nadaraya("list").out
    assert all(name in out for names in named.values() for name in names)
    assert "none in runs: nadaraya train makes them" in out


@pytest.mark.parametrize("kind", ["variants", "recipes", "kernels"])
def test_each_name_has_its_description(nadaraya: Any, kind: str) -> None:
    rows = json.loads(nadaraya("list", kind, "--json").out)
    out = " ".join(nadaraya("list", kind).out.split())
    assert all(f"{row['name']} {row['description'].replace('`', '')}" in out for row in rows)
    papers = [row for row in rows if row["name"] in ("alibi", "deit", "ALiBi")]
    assert len(papers) == 1
    assert "et al." in papers[0]["description"]


def test_runs_have_their_variant_step_and_loss(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    stopped = Path(shutil.copytree(finished_run, tmp_path / "deeper" / "stopped"))
    first = (stopped / "metrics.jsonl").read_text().splitlines()[0]
    (stopped / "metrics.jsonl").write_text(first + "\n")
    damaged = Path(shutil.copytree(finished_run, tmp_path / "damaged"))
    (damaged / "config.yaml").write_text("no: recipe\n")
    rows = json.loads(nadaraya("list", "runs", tmp_path, "--json").out)
    assert [row["run"] for row in rows] == [str(damaged), str(stopped), str(finished_run)]
    assert rows[0]["problem"].startswith("recipe key must be one of")
    final = Run(finished_run).final
    assert final is not None
    expected = {"variant": "gpa-mul", "finished": True, "step": 6, "steps": 6, "loss": final["loss"]}
    assert rows[2].items() >= expected.items()
    assert (rows[1]["finished"], rows[1]["step"]) == (False, json.loads(first)["step"])
    out = nadaraya("list", "runs", tmp_path).out
    assert f"{final['loss']:.4f}" in out
    assert "cannot be read" in out
    assert f"{rows[1]['step']}/6" in out


def test_what_is_not_there_is_refused(nadaraya: Any, tmp_path: Path) -> None:
    nadaraya("list", "variant").refuses("list must be one of", "did you mean 'variants'?")
    nadaraya("list", "runs", tmp_path / "absent").refuses("folder must be a folder of runs", "absent")
