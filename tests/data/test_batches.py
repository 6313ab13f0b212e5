"""Batches: functions of seed and step, every position with its target, evenly spaced validation."""

import pytest
import torch

from nadaraya.data.batches import check_length, training_batch, validation_sample
from nadaraya.errors import InputError
from nadaraya.training.loop import step_seed

TOKENS = torch.arange(100)


def test_a_batch_depends_on_seed_and_step_only() -> None:
    first = training_batch(TOKENS, 8, 4, seed=1, step=5)
    training_batch(TOKENS, 8, 4, seed=1, step=6)
    torch.rand(3)
    again = training_batch(TOKENS, 8, 4, seed=1, step=5)
    assert torch.equal(first[0], again[0])
    for seed, step in ((1, 6), (2, 5), (5, 1)):
        assert not torch.equal(first[0], training_batch(TOKENS, 8, 4, seed=seed, step=step)[0])
    assert len({step_seed(seed, step) for seed in range(10) for step in range(100)}) == 1000


def test_every_position_predicts_the_next_token() -> None:
    inputs, targets = training_batch(TOKENS, 8, 16, seed=0, step=0)
    assert inputs.shape == targets.shape == (16, 8)
    assert torch.equal(targets, inputs + 1)


def test_every_window_can_be_drawn_and_none_beyond_the_text() -> None:
    inputs, targets = training_batch(TOKENS[:12], 8, 400, seed=0, step=0)
    assert set(inputs[:, 0].tolist()) == {0, 1, 2, 3}
    assert targets.max() == 11


def test_the_validation_sample_spans_the_text() -> None:
    inputs, targets = validation_sample(TOKENS, 9, 4)
    assert inputs[:, 0].tolist() == [0, 30, 60, 90]
    assert targets[-1, -1] == 99
    few, _ = validation_sample(TOKENS[:10], 8, 16)
    assert few[:, 0].tolist() == [0, 1]


def test_the_shortest_text_is_one_window_and_its_target() -> None:
    check_length(TOKENS[:9], 8, "training")
    inputs, targets = training_batch(TOKENS[:9], 8, 2, seed=0, step=0)
    assert torch.equal(targets[0], TOKENS[1:9])
    with pytest.raises(InputError, match=r"training text has 8 tokens.*context = 8"):
        check_length(TOKENS[:8], 8, "training")
    assert inputs.shape == (2, 8)
