"""What pages for users show is true: Python runs, tables agree with result files, citations are resolved."""

import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from shown import PAGES, README, ROOT, blocks

import nadaraya
from nadaraya.attention import variants
from nadaraya.study import Study, summarise
from nadaraya.study.results import read_results

GUIDES = ROOT / "docs" / "guides"


def run_blocks(page: Path, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run a page's Python from first to last; the names that it leaves."""
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), namespace)
    return namespace


def train_tiny(folder: str, *keys: str) -> None:
    """A run of two updates where a page has one of hours."""
    from nadaraya.training import load_recipe, train

    tiny = ["model.hidden_size=8", "data.limit=9000", "data.context=16", "training.steps=2"]
    tiny += ["training.warmup_steps=0", "training.batch_size=1", "training.sample_characters=0"]
    train(load_recipe("demo", [*tiny, *keys]), folder, progress=False)


@pytest.fixture(scope="module")
def language_guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Names that the guide on language models leaves: a small trained run, a model, a text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("guide"))
        yield run_blocks(GUIDES / "models.md", {})


@pytest.mark.parametrize("code", blocks(README))
def test_the_readme_runs(code: str) -> None:
    exec(compile(code, str(README), "exec"), {})


def test_the_kernel_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the page that README leads to: a file of the reader's, and Python that imports it."""
    pytest.importorskip("matplotlib").use("agg")
    page = ROOT / "docs" / "start.md"
    (module,), (own,) = blocks(page, "python my_kernels"), blocks(page, "python own")
    (tmp_path / "my_kernels.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(variants, "_VARIANTS", dict(variants._VARIANTS))
    names: dict[str, Any] = {}
    exec(compile(own, str(page), "exec"), names)
    assert names["layer"].position is names["kernel"]
    layer = nadaraya.KernelSelfAttention(8, 2, causal=True, **variants.get("cauchy-rope"))
    assert layer.position.natural("width", torch.zeros(1)).flatten().tolist() == pytest.approx([16.0, 1024.0])


def test_the_guide_on_vision_runs() -> None:
    pytest.importorskip("timm")
    run_blocks(GUIDES / "vision.md", {})


def test_the_guide_on_kernel_search_runs() -> None:
    names = run_blocks(GUIDES / "kernel-search.md", {})
    assert names["kernel"].expression == "2*gaussian + periodic*rq"


def test_the_guide_on_other_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_blocks(GUIDES / "other-models.md", {})
    assert names["t5"].config._attn_implementation == "sdpa"  # taken back at the end
    assert names["loss"].isfinite()
    assert len(names["adapter"].banks) == 2


def test_the_guide_on_replaced_attention_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_blocks(GUIDES / "replacing.md", {})
    assert names["apart"].isfinite()
    assert any("attention.position" in name for name in load_file("student/model.safetensors"))


def test_the_guide_on_other_forms_of_banks_runs() -> None:
    names = run_blocks(GUIDES / "bank-options.md", {})
    assert names["counts"] == {"none": 512, "heads": 128, "layers": 128, "all": 32}
    assert {len(numbers) for numbers in names["start"].values()} == {4}
    assert names["information"].shape == (129,)


@pytest.mark.slow
def test_the_guide_on_implied_kernels_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train_tiny("runs/dickens-rope", "model.variant=rope")
    names = run_blocks(GUIDES / "implied-kernels.md", {})
    assert json.loads(json.dumps(names["summary"]))["layers"][0]["heads"][0]["fits"]["decay"]["length"]


@pytest.mark.slow
def test_the_guide_on_heads_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train_tiny("runs/demo-gpa-rope", "model.variant=gpa-rope")
    names = run_blocks(GUIDES / "heads.md", {})
    assert len(names["report"].heads) == 16
    assert names["smaller"].config.pruned_heads == {"0": [3], "1": [2]}
    assert names["narrower"].config.intermediate_sizes == {"0": 24, "1": 24}
    assert [point["removed"] for point in names["curves"][2]["points"]] == [0, 4, 8]
    assert names["again"].config.intermediate_sizes == {"0": 32}


@pytest.mark.slow
def test_the_guide_on_banks_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, control in (("demo-gpa-mul", "null"), ("words-shuffled", "words")):
        train_tiny(f"runs/{name}", "model.variant=gpa-mul", f"data.shuffle={control}")
    names = run_blocks(GUIDES / "banks.md", {})
    assert set(names["figures"]["matches"]) == {"trained", "initial", "null"}
    assert len(names["cheap"]) == len(names["report"].terms) == 4 * 4 * 8
    assert names["report"].terms[0].loss_increase is not None


def test_the_guide_on_language_models_runs(language_guide: dict[str, Any]) -> None:
    text, run = language_guide["text"], language_guide["run"]
    assert text.startswith("The ")
    assert len(text) == len("The ") + 20
    # Guessing among all characters alike would take log(vocabulary) = 4.5 nats/token.
    assert run.final["loss"] < 4.5
    assert (run.path.parents[1] / "copy" / "model.safetensors").is_file()


def test_the_guide_on_evaluation_runs(language_guide: dict[str, Any]) -> None:
    assert language_guide["run"].path.name == "example"
    names = run_blocks(GUIDES / "evaluation.md", {})
    assert names["result"].tokens == len("A text that the model has not seen.") - 1
    assert len(names["evaluation"].results[0].decisions) == 1


@pytest.mark.parametrize("name", ["choosing", "studies"])
def test_short_examples_of_guides_run(name: str) -> None:
    assert run_blocks(GUIDES / f"{name}.md", {})


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_guide_on_maps_runs(language_guide: dict[str, Any], count: int) -> None:
    pytest.importorskip("timm")
    from PIL import Image

    Image.linear_gradient("L").convert("RGB").save("cat.png")
    names: dict[str, Any] = {"run": language_guide["run"]}
    assert len(blocks(GUIDES / "maps.md")) == 4
    for code in blocks(GUIDES / "maps.md")[:count]:  # the third draws every figure
        exec(code, names)
    assert names["flow"].shape == (1, 197, 197)
    assert names["maps_of_text"].layers[0].error < 1e-4
    assert Path("maps/index.html").is_file() == (count == 4)


# Variants of the guide on choosing, in the study and in the timing of updates.
def test_the_evidence_for_choosing_a_variant_is_that_of_the_study() -> None:
    study = read_results(ROOT / "experiments/results/studies/beyond")
    gaps = summarise(Study(**study["study"]), study).gaps
    page = (GUIDES / "choosing.md").read_text("utf-8").split("\n## How sure this is\n")[1]
    for name, (sign, sizes) in {
        "mul-loo-spread-gate-conv": (-1, ("u3000", "u10000")),
        "gate": (-1, ("u3000",)),
        "rope": (1, ("u3000", "u10000")),
    }.items():
        for size in sizes:
            (gap,) = [each.gap for each in gaps[name].sizes if each.size == size]
            low, high = sorted(sign * bound for bound in (gap.low, gap.high))
            assert re.search(rf"{sign * gap.value:.3f} \((95 % interval )?{low:.3f} to {high:.3f}\)", page), (
                name
            )
    (gap,) = [each.gap for each in gaps["mul-loo-hybrid"].sizes if each.size == "u3000"]
    assert abs(gap.high) < 0.0005  # "ends at zero", docs/results/language-models.md


def test_the_python_reference_lists_all_that_is_public_of_the_operator_and_the_parts() -> None:
    page = (ROOT / "docs" / "api" / "attention.md").read_text(encoding="utf-8")
    listed = re.findall(r"auto(?:class|function):: nadaraya\.attention\.([\w.]+)", page)
    for name in listed:
        module, _, last = f"nadaraya.attention.{name}".rpartition(".")
        assert getattr(importlib.import_module(module), last).__doc__, name
    own = {name for name in listed if "." not in name}
    assert own == set(nadaraya.attention.__all__)
    parts = ("content", "gates", "mixing", "projections", "rotary")
    defined = {
        f"{part}.{name}"
        for part in parts
        for name, value in vars(importlib.import_module(f"nadaraya.attention.{part}")).items()
        if isinstance(value, type) and value.__module__ == f"nadaraya.attention.{part}"
    }
    assert {name for name in listed if "." in name} == defined | {"functional.BackendChoice"}


CITATION = re.compile(r"([A-Z][\w'-]+)(?:\s+et\s+al\.)?,?\s+\(?((?:19|20)\d\d)[a-z]?(?=[),;.:\s])")


def sources() -> list[Path]:
    """Code and recipes of the library, its benchmarks and its experiments."""
    folders = [ROOT / "src", ROOT / "benchmarks", ROOT / "experiments"]
    return [file for folder in folders for kind in ("*.py", "*.yaml") for file in folder.rglob(kind)]


def cited() -> dict[tuple[str, str], str]:
    """Author and year of every citation in the code and the pages, with a file that has it."""
    pages = [page for page in PAGES if page.name not in ("references.md", "alternatives.md")]
    found = {}
    for file in [*sources(), *pages]:
        for author, year in CITATION.findall(file.read_text(encoding="utf-8")):
            found[author, year] = str(file.relative_to(ROOT))
    return found


def test_every_citation_is_resolved_on_the_page_of_references() -> None:
    page = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
    entries = [" ".join(entry.split()) for entry in re.split(r"^(?=- |### )", page, flags=re.MULTILINE)]
    missing = {
        (*citation, file)
        for citation, file in cited().items()
        if not any(citation[0] in entry and citation[1] in entry for entry in entries)
    }
    assert ("Chi", "2022") in cited()
    assert not missing


def test_nothing_is_cited_by_a_letter() -> None:
    letters = [
        str(file.relative_to(ROOT))
        for file in [*sources(), *PAGES]
        if re.search(r"\b[Dd]ocuments?\s+[A-D]\b", file.read_text(encoding="utf-8"))
    ]
    assert not letters


def test_the_version_to_cite_is_the_installed_one() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == nadaraya.__version__
    # What CFF 1.2.0 requires; the rest is what the package says of itself.
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert all("name" in author or "family-names" in author for author in citation["authors"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]  # it is that of the package
    assert (citation["license"], citation["abstract"]) == (project["license"], project["description"])
    assert set(citation["keywords"]) <= {*project["keywords"]}
    page = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
    assert f"version = {{{nadaraya.__version__}}}" in page
