"""Weights by lag are those of the maps, and the reach of a head is where its share is crossed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from made_maps import text_figures

from nadaraya.interpret.attention_maps import capture_attention
from nadaraya.interpret.reach import LagWeights, lag_weights, weights_by_distance
from nadaraya.interpret.windows import validation_windows
from nadaraya.training import load_recipe, train


def test_shares_are_sums_of_diagonals() -> None:
    maps = text_figures().maps
    tokens = torch.arange(maps.num_tokens)
    layers = weights_by_distance([maps, maps], (tokens[:, None] - tokens).clamp(min=0))
    assert [layer.labels for layer in layers] == [["0.0", "0.1"], ["1.0", "1.1"]]
    for layer, weights in zip(layers, maps.weights, strict=True):
        for head, within in zip(weights[0].double().numpy(), layer.within, strict=True):
            shares = [np.diagonal(head, -lag).sum() for lag in range(len(head))]
            np.testing.assert_allclose(within, np.cumsum(shares) / len(head), rtol=1e-5)


def test_reach_is_the_first_lag_that_has_the_part() -> None:
    weights = LagWeights(0, (0, 1), np.array([[0.5, 0.9, 1.0], [0.2, 0.4, 1.0]]))
    assert weights.reach(0.5).tolist() == [0, 2]
    assert weights.reach(0.9).tolist() == [1, 2]
    assert weights.reach(1.0).tolist() == [2, 2]


@pytest.mark.parametrize("variant", ["rope", "gka-loo"])
def test_a_run_is_read_in_the_second_halves_of_its_windows(tmp_path: Path, variant: str) -> None:
    tiny = ["model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=2"]
    tiny += ["data.context=16", "data.limit=6000", "training.steps=1", "training.warmup_steps=0"]
    run = train(load_recipe("demo", [*tiny, f"model.variant={variant}"]), tmp_path / "run", progress=False)
    layers = lag_weights(run, windows=3)
    shares = [0.0] * 16
    for window in validation_windows(run, 3).inputs:
        head = capture_attention(run.load_model(), window[None]).weights[1][0, 1]
        for query in range(8, 16):
            for key in range(query + 1):
                shares[query - key] += float(head[query, key])
    assert [layer.within.shape for layer in layers] == [(2, 16)] * 2
    np.testing.assert_allclose(layers[1].within[1], np.cumsum(shares) / sum(shares), rtol=1e-4)
