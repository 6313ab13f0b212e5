"""Run folders, read back."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nadaraya.errors import InputError
from nadaraya.training import Recipe, Run, train


@pytest.fixture
def run(finished_text_run: Path, tmp_path: Path) -> Run:
    return Run(shutil.copytree(finished_text_run, tmp_path / "run"))


def test_initial_puts_back_the_kernels_and_nothing_else(run: Run) -> None:
    trained, initial = run.load_model(), run.load_model(initial=True)
    assert not trained.training
    kernels = dict(trained.kernel_parameters())
    start = load_file(run.path / "initial_kernels.safetensors")
    fresh = dict(run.recipe.build_model(len(run.tokenizer())).kernel_parameters())
    assert set(start) == set(kernels)
    for (name, ours), theirs in zip(trained.named_parameters(), initial.parameters(), strict=True):
        if name in kernels:
            assert torch.equal(theirs, start[name])
            assert torch.equal(theirs, fresh[name])
            assert not torch.equal(ours, theirs)
        else:
            assert torch.equal(ours, theirs)


def test_the_other_readers(run: Run, tiny_text: Path) -> None:
    assert run.name == run.recipe.name == "tiny"
    assert run.corpus().text == tiny_text.read_text()
    text = tiny_text.read_text()[:50]
    assert run.tokenizer().decode(run.tokenizer()(text)["input_ids"]) == text
    assert [record["step"] for record in run.series("validation")] == [4, 8]
    assert run.final == run.metrics[-1]


def test_a_text_that_was_edited_since_is_not_that_of_the_run(tiny_recipe: Any, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat. " * 60)
    run = train(tiny_recipe(data__corpus=str(path)), tmp_path / "run", progress=False)
    assert len(run.corpus().text) == 60 * 24
    path.write_text("the cat sat on the mat. " * 40)
    with pytest.raises(InputError, match=r"text.txt is not that of .*run: restore it"):
        run.corpus()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match="is not a run folder"):
            Run(path)


@pytest.mark.parametrize(
    "content", ["- 1\n", "name: !!python/object/apply:os.getcwd []\n", "nane: x\n", "a: ["]
)
def test_a_recipe_that_was_spoilt_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(InputError):
        Run(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "header only", "empty", "another model"])
def test_a_damaged_model_is_named(run: Run, damage: str, tmp_path: Path) -> None:
    path = run.path / "model.safetensors"
    content = path.read_bytes()
    if damage == "another model":
        shutil.copy(run.path / "initial_kernels.safetensors", path)
    else:
        path.write_bytes(
            {
                "truncated": content[:-100],
                "garbage": b"\xff" * 64,
                "header only": content[:200],
                "empty": b"",
            }[damage]
        )
    with pytest.raises(InputError, match=r"model\.safetensors"):
        run.load_model()


def test_damaged_initial_kernels_are_named(run: Run) -> None:
    path = run.path / "initial_kernels.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"initial_kernels\.safetensors"):
        run.load_model(initial=True)


def test_an_unfinished_run_has_no_model_and_says_so(run: Run) -> None:
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_text("".join(lines[:2]))
    unfinished = Run(run.path)
    assert unfinished.final is None
    with pytest.raises(InputError, match="step 4 of 8"):
        unfinished.load_model()


def test_the_parts_of_the_text_lie_one_behind_the_other(
    tiny_text: Path, tiny_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    whole = tiny_text.read_text()
    limit = len(whole) * 3 // 4
    run = train(tiny_recipe(data__limit=limit), tmp_path / "run", progress=False)
    parts = run.text("train"), run.text(), run.text("test")
    assert "".join(parts[:2]) == whole[:limit]
    assert len(parts[1]) == len(parts[2])
    assert whole.startswith("".join(parts))
    run = train(tiny_recipe(data__limit=len(whole)), tmp_path / "all", progress=False)
    with pytest.raises(InputError, match="has no test text"):
        run.text("test")
