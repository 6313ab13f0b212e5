"""What others load: a folder or repository in the format of the model's library, with a card."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub.errors import HFValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from nadaraya.errors import InputError
from nadaraya.training import Recipe, Run, export_model, push_to_hub, train
from nadaraya.training.publishing import model_card


def test_transformers_loads_an_exported_run_on_text(finished_text_run: Path, tmp_path: Path) -> None:
    run = Run(finished_text_run)
    folder = export_model(run, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.tensor([AutoTokenizer.from_pretrained(folder)("the of")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, run.load_model()(tokens).logits)
    assert "library_name: transformers" in (folder / "README.md").read_text()


@pytest.mark.parametrize("weights", ["trained", "averaged"])
def test_timm_loads_an_exported_run_on_images(finished_image_run: Path, tmp_path: Path, weights: str) -> None:
    run = Run(finished_image_run)
    folder = export_model(run, tmp_path / "model", weights)
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(loaded(images), run.load_model(weights=weights)(images))
    assert f"the {weights} weights" in (folder / "README.md").read_text()


def test_a_card_has_the_figures_and_the_recipe(finished_text_run: Path) -> None:
    run = Run(finished_text_run)
    assert run.final is not None
    card = model_card(run)
    for part in (f"{run.final['bits_per_byte']}", f"{run.final['parameters']:,}", run.recipe.to_yaml()):
        assert part in card


def test_a_card_of_the_best_weights_has_no_figures_of_the_last_ones(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    run = train(tiny_recipe(training__keep_best=True), tmp_path / "run", progress=False)
    assert run.final is not None
    cards = [model_card(run, weights) for weights in ("trained", "best")]
    assert [str(run.final["loss"]) in card for card in cards] == [True, False]
    assert all(f"| parameters | {run.final['parameters']:,} |" in card for card in cards)


def test_folders_with_files_and_unfinished_runs_are_refused(
    tiny_recipe: Callable[..., Recipe], finished_text_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="new or empty"):
        export_model(Run(finished_text_run), tmp_path)
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.yaml").write_text(tiny_recipe().to_yaml())
    with pytest.raises(InputError, match="not finished"):
        model_card(Run(begun))


def test_a_hub_gets_the_exported_files_and_its_refusal_is_told(
    finished_text_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []

    class Hub:
        def __init__(self, token: str | None) -> None:
            calls.append(("token", token))

        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            calls.append((name, private))
            return f"https://huggingface.co/{name}"

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
            calls.append((repo_id, {path.name for path in folder_path.iterdir()}))
            if repo_id == "refused":
                raise HFValidationError("no such\nname")

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    run = Run(finished_text_run)
    assert push_to_hub(run, "me/model", token="secret") == "https://huggingface.co/me/model"
    assert calls[:2] == [("token", "secret"), ("me/model", True)]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= calls[2][1]
    with pytest.raises(InputError, match="refused cannot be uploaded: no such name"):
        push_to_hub(run, "refused")


def test_a_run_is_a_table_and_html(finished_text_run: Path, tmp_path: Path, tiny_recipe: Any) -> None:
    run = Run(finished_text_run)
    table = run.table("validation")
    assert list(table.index) == [4, 8]
    assert list(table["loss"]) == [record["loss"] for record in run.series("validation")]
    assert run.table("nothing").empty
    assert run.final is not None
    assert str(run.final["loss"]) in run._repr_html_()
    begun = tmp_path / "a <b> & c"
    begun.mkdir()
    (begun / "config.yaml").write_text(tiny_recipe().to_yaml())
    assert "a &lt;b&gt; &amp; c" in Run(begun)._repr_html_()
    assert "0 of 8, not finished" in Run(begun)._repr_html_()
