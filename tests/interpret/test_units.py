"""Scores of hidden units are derivatives of the loss; the slice of a head is its share of the units."""

import copy
from typing import Any

import pytest
import torch
from small_models import moved, random_windows, small_model
from transformers import GPT2Config, GPT2LMHeadModel

from nadaraya import InputError
from nadaraya.interpret.ablation import Slices, ablated, unit_scores
from nadaraya.interpret.pruning import by_layer, choose_heads
from nadaraya.interpret.windows import Windows
from nadaraya.models import KernelGPTForCausalLM, prune_heads, prune_units
from nadaraya.models.feed_forward import feed_forward_layers


def make(**changes: Any) -> KernelGPTForCausalLM:
    sizes = {"intermediate_size": 24, "max_position_embeddings": 12, "variant": "gpa-mul"}
    return moved(small_model(**{**sizes, **changes}))


def changed(model: Any, layer: int, unit: int, factor: float, sample: Windows) -> float:
    """The loss where a unit's outgoing weights are multiplied."""
    other = copy.deepcopy(model)
    feed_forward_layers(other)[layer].outgoing.data[:, unit] *= factor
    return sample.loss(other)


@pytest.mark.parametrize("activation", ["gelu", "relu2"])
def test_a_score_is_the_derivative_of_the_loss_by_the_size_of_the_activation(activation: str) -> None:
    model, sample = make(hidden_act=activation).double(), random_windows(1, 1)
    scores = unit_scores(model, sample)
    for layer, unit in ((0, 3), (1, 23), (1, 0)):
        up, down = (changed(model, layer, unit, 1 + step, sample) for step in (1e-3, -1e-3))
        # `loss` is of logits in float32.
        assert scores[layer][unit].item() == pytest.approx(abs(up - down) / 2e-3, rel=2e-2, abs=2e-4)


def test_scores_of_windows_are_means_of_those_of_each() -> None:
    model, sample = make(), random_windows(20)
    parts = [
        unit_scores(model, Windows(x[None], y[None]))
        for x, y in zip(sample.inputs, sample.targets, strict=True)
    ]
    for layer, scores in unit_scores(model, sample).items():
        torch.testing.assert_close(
            scores, torch.stack([part[layer] for part in parts]).mean(0), rtol=1e-4, atol=1e-8
        )


def test_units_without_outgoing_weights_score_nothing_and_the_model_stays_as_it_was() -> None:
    model = make().train()
    feed_forward_layers(model)[1].outgoing.data[:, [2, 7]] = 0.0
    scores = unit_scores(model, random_windows())
    assert (scores[1] == 0).nonzero().flatten().tolist() == [2, 7]
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    frozen = copy.deepcopy(model).requires_grad_(False)
    for layer, again in unit_scores(frozen, random_windows()).items():
        torch.testing.assert_close(again, scores[layer])


def test_units_of_least_score_cost_less_than_those_of_most() -> None:
    model, sample = make(), random_windows(40)
    scores = unit_scores(model, sample)

    def rise(chosen: dict[int, list[int]]) -> float:
        return abs(sample.loss(prune_units(model, chosen)) - sample.loss(model))

    least, most = (
        {i: s.argsort(descending=d)[:6].tolist() for i, s in scores.items()} for d in (False, True)
    )
    assert rise(least) < rise(most)


def test_a_slice_is_the_share_of_a_head_and_grows_with_every_head() -> None:
    model = make()
    slices = Slices(model, random_windows())
    one, two = slices.of({0: [3], 1: [1]}), slices.of({0: [3, 0]})
    assert [len(one[0]), len(one[1]), len(two[0])] == [6, 6, 12]
    assert set(one[0]) < set(two[0])
    scores = unit_scores(model, random_windows())[0]
    assert scores[two[0]].max() <= scores[[u for u in range(24) if u not in two[0]]].min()
    smaller = prune_units(prune_heads(model, {0: [3]}), {0: one[0]})
    # Of the layer as it was made, also where some of it is gone.
    assert len(Slices(smaller, random_windows()).of({0: [1]})[0]) == 6


@torch.no_grad()
def test_ablated_units_are_as_good_as_removed() -> None:
    model, units = make(), {0: [1, 4], 1: [23]}
    with ablated(model, {1: [2]}, units):
        logits = model(random_windows().inputs).logits
    smaller = prune_units(prune_heads(model, {1: [2]}), units)
    torch.testing.assert_close(logits, smaller(random_windows().inputs).logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="units must be hidden units"), ablated(model, {}, {0: [24]}):
        pass


def test_the_loss_of_a_removal_is_without_the_slice_too() -> None:
    model, sample = make(), random_windows()
    slices = Slices(model, sample)
    chosen = choose_heads(model, sample, 99.0, slices=slices)
    assert len(chosen) == 6
    for count in (1, 4):
        heads = by_layer(chosen[:count])
        smaller = prune_units(prune_heads(model, heads), slices.of(heads))
        assert chosen[count - 1].loss == pytest.approx(sample.loss(smaller), rel=1e-5)


def test_gpt2_has_slices_too() -> None:
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, **sizes, bos_token_id=0, eos_token_id=None)).eval()
    units = Slices(model, random_windows()).of({1: [0]})
    assert [len(gone) for gone in units.values()] == [4 * 16 // 4]
    assert prune_units(model, units).config.intermediate_sizes == {"1": 48}
