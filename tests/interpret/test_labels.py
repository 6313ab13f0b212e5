"""A head has one label, LAYER.HEAD from 0 as before any was removed, wherever it is named."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nadaraya import InputError
from nadaraya.interpret import bank_shapes, capture_attention, implied_kernels, load_maps, save_maps
from nadaraya.interpret.ablation import ablated
from nadaraya.interpret.banks import bump_table
from nadaraya.interpret.heads import head_report
from nadaraya.interpret.implied import implied_summary
from nadaraya.interpret.labels import head_label, head_labels, parse_heads
from nadaraya.interpret.pruning import choose_heads
from nadaraya.interpret.rollout import sigma_matrix
from nadaraya.interpret.terms import bank_terms
from nadaraya.interpret.windows import Windows
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, prune_heads
from nadaraya.report import bank_curves
from nadaraya.report.by_lag import implied_curves
from nadaraya.report.maps_text import TextFigures

REMOVED = {0: [1], 1: [0, 2]}
KEPT = {"0.0", "0.2", "0.3", "1.1", "1.3"}
TOKENS = torch.arange(32)[None] % 11


def made(**options: object) -> KernelGPTForCausalLM:
    """A model of two layers of four heads, no two of which are alike."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    model = KernelGPTForCausalLM(KernelGPTConfig(**{**sizes, "variant": "gpa-mul", **options})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(scope="module")
def models() -> tuple[KernelGPTForCausalLM, KernelGPTForCausalLM]:
    """A model, and the same without some heads."""
    whole = made()
    return whole, prune_heads(whole, REMOVED)


def legends(figure: object) -> Iterator[str]:
    """What the lines of all charts are called."""
    for axes in figure.axes:  # type: ignore[attr-defined]
        for line in axes.get_lines():
            if not line.get_label().startswith("_"):
                yield line.get_label().split(",")[0]


def test_labels_are_read_as_they_are_written() -> None:
    assert head_labels(REMOVED) == ["0.1", "1.0", "1.2"]
    assert parse_heads(", ".join(head_labels(REMOVED))) == REMOVED
    assert head_label(3, None) == "3.*"
    for wrong in ("", "1", "1.", "3.*", "-1.0", "1.0.2", "head 1"):
        with pytest.raises(
            InputError, match=r"heads must be LAYER.HEAD separated by commas, as in 0\.3,1\.2"
        ):
            parse_heads(wrong)
    with pytest.raises(InputError, match=r"heads must be each head once, got '1\.0,1\.0'"):
        parse_heads("1.0,1.0")


def test_a_label_that_was_read_removes_the_head_that_it_names(
    models: tuple[KernelGPTForCausalLM, KernelGPTForCausalLM],
) -> None:
    """Its attention is that of the whole model's head of this label, and once it is ablated it counts 0."""
    whole, smaller = models
    windows = Windows(TOKENS, TOKENS.roll(-1, 1))
    scores = {score.label: score.loss_increase for score in head_report(smaller, windows, sequences=1).heads}
    assert set(scores) == KEPT
    for label in KEPT:
        named = parse_heads(label)
        without = prune_heads(smaller, named)
        merged = {layer: sorted({*REMOVED[layer], *named.get(layer, ())}) for layer in REMOVED}
        assert without.config.pruned_heads == {str(layer): heads for layer, heads in merged.items()}
        assert windows.loss(without) - windows.loss(smaller) == pytest.approx(scores[label], abs=1e-5)
        with ablated(whole, merged):
            assert windows.loss(whole) == pytest.approx(windows.loss(without), abs=1e-5)
    chosen = choose_heads(smaller, windows, budget=1e9)
    assert {head_label(each.layer, each.head) for each in chosen} < KEPT


def test_banks_and_their_terms_and_bumps_have_the_labels_of_the_whole_model(
    models: tuple[KernelGPTForCausalLM, KernelGPTForCausalLM],
) -> None:
    of_whole, of_smaller = (
        {
            label: row
            for shape in bank_shapes(model, 32)
            for label, row in zip(shape.labels, shape.trained, strict=True)
        }
        for model in models
    )
    assert set(of_smaller) == KEPT
    for label, row in of_smaller.items():
        np.testing.assert_array_equal(row, of_whole[label])
    terms, before = ({term.label: term for term in bank_terms(model, 32)} for model in reversed(models))
    assert {label.rpartition(".")[0] for label in terms} == KEPT
    assert all(before[label].strength == term.strength for label, term in terms.items())
    shapes = bank_shapes(models[1], 32)
    assert set(legends(bank_curves(shapes))) == KEPT
    for row in bump_table(shapes, [], minimum=0.001).rows():
        assert set(row["labels"]) <= KEPT
        assert row["labels"] == [head_label(row["layer"], head) for head in row["heads"]]


def test_implied_kernels_have_the_labels_of_the_whole_model(
    models: tuple[KernelGPTForCausalLM, KernelGPTForCausalLM],
) -> None:
    whole, smaller = (implied_kernels(model, TOKENS) for model in models)
    assert {label for kernel in smaller for label in kernel.labels} == KEPT
    assert set(legends(implied_curves(smaller))) == KEPT
    # The input of the first layer is that of the whole model.
    for row, head in enumerate(smaller[0].heads):
        np.testing.assert_allclose(smaller[0].curve[row], whole[0].curve[head], rtol=1e-4, atol=1e-4)
    layers = implied_summary(smaller)["layers"]
    assert {head_label(each["layer"], head["head"]) for each in layers for head in each["heads"]} == KEPT


def test_maps_have_the_labels_of_the_whole_model(
    models: tuple[KernelGPTForCausalLM, KernelGPTForCausalLM], tmp_path: Path
) -> None:
    letters = SimpleNamespace(decode=lambda numbers: chr(97 + numbers[0]))
    whole, smaller = (capture_attention(model, TOKENS, tokenizer=letters) for model in models)
    for row, head in enumerate(smaller.layers[0].heads):
        torch.testing.assert_close(smaller.weights[0][0, row], whole.weights[0][0, head])
    save_maps(smaller, tmp_path / "maps.safetensors")
    for maps in (smaller, load_maps(tmp_path / "maps.safetensors")):
        figures = TextFigures(maps)
        assert {label for layer in (0, 1) for label in maps.labels(layer)} == KEPT
        shown = [*figures.panels("heads", 0), *figures.panels("heads", 1)]
        assert {panel.name for panel in shown} == KEPT
        assert {tile["title"] for layer in (0, 1) for tile in figures.tiles("matrices", layer)} == KEPT


def test_files_of_maps_that_count_from_1_are_read(
    models: tuple[KernelGPTForCausalLM, KernelGPTForCausalLM], tmp_path: Path
) -> None:
    maps = capture_attention(models[0], TOKENS)
    save_maps(maps, tmp_path / "maps.safetensors")
    with safe_open(tmp_path / "maps.safetensors", framework="pt") as file:
        described = json.loads(file.metadata()["maps"])
        tensors = {
            f"layer-{layer + 1:02d}.weights": file.get_tensor(f"layer-{layer:02d}.weights")
            for layer in (0, 1)
        }
    for layer in described["layers"]:
        del layer["heads"]
    save_file(tensors, tmp_path / "old.safetensors", {"maps": json.dumps(described)})
    for new, old in zip(maps.weights, load_maps(tmp_path / "old.safetensors").weights, strict=True):
        torch.testing.assert_close(new, old)


def test_bandwidths_stand_at_the_numbers_of_their_heads() -> None:
    whole = made(variant="gka")
    smaller = prune_heads(whole, REMOVED)
    before, after = (sigma_matrix(capture_attention(model, TOKENS)) for model in (whole, smaller))
    assert before is not None
    assert after is not None
    gone = np.zeros((4, 2), bool)
    for layer, heads in REMOVED.items():
        gone[heads, layer] = True
    np.testing.assert_array_equal(np.isnan(after), gone)
    np.testing.assert_array_equal(after[~gone], before[~gone])
