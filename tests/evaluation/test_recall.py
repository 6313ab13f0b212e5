"""Recall by distance and a far context shuffled or cut: models built to use what is far do, others do not."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nadaraya import InputError
from nadaraya.data import tokenize_corpus
from nadaraya.evaluation import length_losses, recall_by_distance

VOCABULARY = 50
TEXT = torch.randint(VOCABULARY, (3000,), generator=torch.Generator().manual_seed(0))


class Looking(nn.Module):
    """Gives the token that followed the last two where they were last, within a reach; otherwise nothing."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=VOCABULARY))
        self.unused = nn.Embedding(VOCABULARY, 1)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.unused

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        for row, tokens in enumerate(input_ids.tolist()):
            seen: dict[tuple[int, int], int] = {}
            for place in range(1, len(tokens)):
                pair = (tokens[place - 1], tokens[place])
                if pair in seen and place - seen[pair] <= self.reach:
                    logits[row, place, tokens[seen[pair] + 1]] = 20.0
                seen[pair] = place
        return SimpleNamespace(logits=logits)


def test_a_model_that_looks_back_recalls_as_far_as_it_sees() -> None:
    near, far = recall_by_distance(Looking(100), TEXT, [32, 200], rows=8)
    assert (near.distance, far.distance, near.alphabet) == (32, 200, VOCABULARY)
    assert near.accuracy > 0.9
    assert near.cross_entropy < 1.0
    assert far.accuracy < 0.2
    assert far.cross_entropy > 3.0
    assert recall_by_distance(Looking(300), TEXT, [200], rows=8)[0].accuracy > 0.9


def test_a_model_that_ignores_everything_is_at_chance() -> None:
    (found,) = recall_by_distance(Looking(0), TEXT, [64], rows=64)
    assert found.cross_entropy == pytest.approx(math.log(VOCABULARY))
    assert found.accuracy < 0.1
    assert recall_by_distance(Looking(0), TEXT, [64], rows=1)[0].error is None


def test_parts_of_the_rows_change_nothing() -> None:
    assert recall_by_distance(Looking(99), TEXT, [64], rows=5) == recall_by_distance(
        Looking(99), TEXT, [64], rows=5, batch_tokens=1
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"span": 1}, "span must be 2 or more, got 1"),
        ({"cue": 16}, "cue must be from 1 to 15, below span, got 16"),
        ({"rows": 0}, "rows must be 1 or more, got 0"),
        ({"distances": [8]}, "distances must be whole numbers of at least 16, the span"),
        ({"distances": []}, "distances must be whole numbers of at least 16, the span"),
        ({"distances": [3000]}, "distances must be at most 2,968 in a text of 3,000 tokens, got 3000"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        recall_by_distance(Looking(9), TEXT, **{"distances": [64], **options})


class Counting(nn.Module):
    """Of a document, gives the tokens seen so far as often as they were there: blind to their order."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Embedding(VOCABULARY, 1)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.unused

    def forward(
        self, input_ids: Tensor, use_cache: bool = False, position_ids: Tensor | None = None
    ) -> SimpleNamespace:
        assert position_ids is not None
        document = (position_ids == 0).cumsum(1)
        seen = (document[:, :, None] == document[:, None, :]).tril().float()
        counts = seen @ nn.functional.one_hot(input_ids, VOCABULARY).float()
        return SimpleNamespace(logits=counts.log1p())


def test_shuffling_keeps_every_token_in_its_document() -> None:
    documents = TEXT.masked_fill(TEXT == 0, 1).clone()
    documents[::45] = 0
    plain, shuffled = (
        length_losses(Counting(), documents, [8, 64, 128], document_token=0, far_context=how).lengths
        for how in (None, "shuffled")
    )
    assert plain == shuffled


def test_recall_on_shards_is_of_tokens_that_begin_no_document(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(["abcdefgh" * 4] * 200))
    shards = tokenize_corpus(
        tmp_path / "text.txt", tmp_path / "shards", vocabulary=257, validation_documents=1
    )
    shown: list[Tensor] = []

    class Shown(Looking):
        def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
            shown.append(input_ids)
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 300))

    (found,) = recall_by_distance(Shown(9), shards, [64])
    assert found.alphabet == 8
    assert not (torch.cat(shown) == shards.document_token).any()


def test_who_uses_the_far_context_loses_by_its_shuffling_and_by_its_cutting() -> None:
    again = TEXT[:100].repeat(12)  # what comes was there 100 tokens before
    lengths = [32, 160]
    for reach, uses in ((150, True), (20, False)):
        plain, shuffled, cut = (
            length_losses(Looking(reach), again, lengths, windows=4, far_context=how).lengths
            for how in (None, "shuffled", "cut")
        )
        assert shuffled[0] == cut[0] == plain[0]
        assert (plain[1].change < -1.0) == uses
        assert shuffled[1].change > -0.3  # nothing gained
        assert cut[1].change == 0.0
    with pytest.raises(InputError, match="far_context must be one of"):
        length_losses(Looking(9), again, lengths, far_context="gone")  # type: ignore[arg-type]
