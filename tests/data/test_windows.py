"""Windows: every target of an epoch once, wherever a run stops and however many processes share it."""

from collections import Counter

import numpy as np
import pytest
import torch

from nadaraya.attention import document_ids_of
from nadaraya.data import TokenShards, tokenize_corpus
from nadaraya.data.windows import (
    IGNORED,
    check_length,
    document_positions,
    num_windows,
    read_windows,
    spread_windows,
    training_batch,
    window_numbers,
)
from nadaraya.errors import InputError
from nadaraya.training.loop import step_seed

TOKENS = torch.arange(100)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """A few hundred tokens in several files."""
    folder = tmp_path_factory.mktemp("shards")
    texts = [f"Document {number} has {number * number} words." for number in range(40)]
    (folder / "texts.txt").write_text("<|endoftext|>".join(texts))
    return tokenize_corpus(
        folder / "texts.txt", folder / "shards", vocabulary=270, shard_tokens=100, validation_documents=4
    )


def test_tokens_are_those_of_the_files_one_after_another(shards: TokenShards) -> None:
    files = sorted(shards.folder.glob("train-*.bin"))
    assert len(files) > 5
    everything = np.concatenate([np.fromfile(file, "<u2") for file in files])
    assert len(everything) == len(shards)
    for length in (1, 7, 150, len(shards)):
        starts = list(range(len(shards) - length + 1))[:: max(1, length // 5)]
        expected = np.stack([everything[start : start + length] for start in starts])
        assert shards.tokens(starts, length).equal(torch.from_numpy(expected.astype(np.int64)))
    for starts in ([-1], [0, len(shards) - 1]):
        with pytest.raises(InputError, match=f"starts must be from 0 to {len(shards) - 2:,}, got"):
            shards.tokens(starts, 2)


@pytest.mark.parametrize("context", [2, 16, 33, 90])
def test_the_windows_of_an_epoch_have_every_token_but_the_first_once_as_target(
    shards: TokenShards, context: int
) -> None:
    count = num_windows(len(shards), context)
    sequence = shards.tokens([0], len(shards))[0]
    inputs, targets = read_windows(shards, np.arange(count), context)
    assert inputs.shape == targets.shape == (count, context)
    assert targets[targets != IGNORED].equal(sequence[1:])
    assert (targets[:-1] != IGNORED).all()
    after = torch.cat([inputs[:, 1:], targets[:, -1:]], dim=1)
    assert (after == targets)[targets != IGNORED].all()


@pytest.mark.parametrize(("batch_size", "processes", "stop"), [(4, 1, 3), (6, 2, 7), (12, 3, 1), (100, 4, 2)])
def test_epochs_train_every_window_once_over_processes_and_stops(
    batch_size: int, processes: int, stop: int
) -> None:
    count, epochs = 37, 4
    updates = count * epochs // batch_size
    taken: list[int] = []
    for begin, end in ((1, stop), (stop, updates + 1)):  # the second begins again from nothing
        for update in range(begin, end):
            batches = [window_numbers(count, batch_size, 5, update) for _ in range(processes)]
            taken += [
                int(number)
                for rank, batch in enumerate(batches)
                for number in np.array_split(batch, processes)[rank]
            ]
    whole = len(taken) // count
    assert whole >= 2
    for epoch in range(whole):
        assert sorted(taken[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert max(Counter(taken[whole * count :]).values(), default=0) <= 1


def test_the_order_depends_on_seed_and_epoch() -> None:
    orders = [window_numbers(50, 50, seed, epoch).tolist() for seed in (0, 1) for epoch in (1, 2)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in [*orders, list(range(50))]}) == 5


def test_positions_count_within_documents_and_tell_attention_of_their_borders(shards: TokenShards) -> None:
    inputs, _ = read_windows(shards, np.arange(num_windows(len(shards), 64)), 64)
    positions = document_positions(inputs, shards.document_token)
    assert (positions[inputs == shards.document_token] == 0).all()
    assert (positions[:, 0] == 0).all()
    inside = inputs[:, 1:] != shards.document_token
    assert (positions.diff(dim=1)[inside] == 1).all()
    borders = (inputs[:, 1:] == shards.document_token).sum(1)
    assert borders.max() > 1
    assert document_ids_of(positions)[:, -1].equal(borders)


def test_a_context_that_does_not_fit_is_refused() -> None:
    for context in (0, 10, 11):
        with pytest.raises(InputError, match="context must be from 1 to 9"):
            num_windows(10, context)


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
    rows = spread_windows(TOKENS, 10, 4)
    assert rows[:, 0].tolist() == [0, 30, 60, 90]
    assert rows[-1, -1] == 99
    assert spread_windows(TOKENS[:10], 9, 16)[:, 0].tolist() == [0, 1]


def test_the_shortest_text_is_one_window_and_its_target() -> None:
    check_length(TOKENS[:9], 8, "training")
    inputs, targets = training_batch(TOKENS[:9], 8, 2, seed=0, step=0)
    assert torch.equal(targets[0], TOKENS[1:9])
    with pytest.raises(InputError, match=r"training text has 8 tokens.*context = 8"):
        check_length(TOKENS[:8], 8, "training")
    assert inputs.shape == (2, 8)
