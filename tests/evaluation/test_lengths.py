"""Losses by context length: the same targets at every length, what is seen of the text and nothing else."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from other_models import VOCABULARY, make
from small_models import small_model

from nadaraya import InputError
from nadaraya.data import tokenize_corpus
from nadaraya.evaluation import evaluate_text, length_losses
from nadaraya.evaluation.language import token_bytes, token_nats
from nadaraya.evaluation.lengths import embedded_positions
from nadaraya.models import KernelGPTForCausalLM, extend_context

TOKENS = torch.randint(11, (300,), generator=torch.Generator().manual_seed(2))


def language_model(variant: str = "rope", **changes: Any) -> KernelGPTForCausalLM:
    sizes = {"num_attention_heads": 2, "max_position_embeddings": 16, "initializer_range": 0.4}
    return small_model(**{**sizes, "variant": variant, **changes})


def test_at_the_training_length_it_is_the_loss_of_evaluate() -> None:
    model = language_model()
    whole = evaluate_text(model, TOKENS[:289], context=16, num_bytes=288)
    adjacent = length_losses(model, TOKENS[:289], [16], stride=16)
    assert (adjacent.windows, adjacent.tokens) == (18, 288)
    assert adjacent.lengths[0].cross_entropy == pytest.approx(whole.cross_entropy, rel=1e-6)
    half = length_losses(model, TOKENS, [16, 32], windows=5)
    expected = []
    for window in range(5):  # 33 places 8 tokens apart
        end = 32 + 8 * round(window * 33 / 4)
        inputs, targets = TOKENS[None, end - 16 : end], TOKENS[None, end - 15 : end + 1]
        expected.append(token_nats(model, inputs, targets)[0, -8:])
    assert half.lengths[0].cross_entropy == pytest.approx(torch.cat(expected).mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    "variant", ["rope", "gpa-mul", "gpa-rope", "alibi", "t5", "kerple", "fire", "gka", "fox", "nope"]
)
def test_lengths_beyond_training_are_those_of_the_model_on_such_windows(variant: str) -> None:
    model = language_model(variant)
    result = length_losses(model, TOKENS, [48, 8, 24], windows=3)
    assert [loss.length for loss in result.lengths] == [8, 24, 48]
    starts = [0, 4 * round(62 / 2), 4 * 62]
    rows = torch.stack([TOKENS[start : start + 49] for start in starts])
    for loss in result.lengths:
        nats = token_nats(model, rows[:, -loss.length - 1 : -1], rows[:, -loss.length :])[:, -4:]
        assert loss.cross_entropy == pytest.approx(nats.mean().item(), rel=1e-5)
    longest = token_nats(model, rows[:, :-1], rows[:, 1:])
    assert result.by_position == pytest.approx(longest.mean(0).tolist(), rel=1e-5)
    assert result.lengths[0].change == 0
    change = result.lengths[2].cross_entropy - result.lengths[0].cross_entropy
    assert result.lengths[2].change == pytest.approx(change, abs=1e-6)


def test_profiles_with_an_extent_go_on_beyond_it() -> None:
    model = language_model("inkling", variant_options={"extent": 16})
    result = length_losses(model, TOKENS, [16, 64], windows=2)
    assert all(math.isfinite(loss.cross_entropy) for loss in result.lengths)


@torch.no_grad()
def test_a_kernel_that_reaches_a_few_tokens_gains_nothing_from_length() -> None:
    near = language_model("decay", num_hidden_layers=1, variant_options={"num_terms": 1})
    near.model.blocks[0].attention.position.log_length.fill_(math.log(0.2))
    result = length_losses(near, TOKENS, [16, 32, 64, 128])
    assert [loss.change for loss in result.lengths] == pytest.approx([0] * 4, abs=1e-6)
    far = length_losses(language_model("nope", num_hidden_layers=1), TOKENS, [16, 128])
    assert abs(far.lengths[1].change) > 1e-3


def test_errors_are_those_of_paired_windows() -> None:
    model = language_model()
    result = length_losses(model, TOKENS, [8, 24], windows=6)
    changes = []
    for window in range(6):
        one = length_losses(model, TOKENS[4 * round(window * 68 / 5 + 1e-9) :][:25], [8, 24])
        assert one.lengths[0].error is None
        changes.append(one.lengths[1].change)
    assert result.windows == 6
    assert result.lengths[1].error == pytest.approx(torch.tensor(changes).std().item() / 6**0.5, rel=1e-4)


def test_no_target_is_predicted_twice_and_batches_change_nothing() -> None:
    model = language_model()
    result = length_losses(model, TOKENS, [8, 24], windows=10_000)
    assert (result.windows, result.tokens) == (69, 276)
    small = length_losses(model, TOKENS, [8, 24], windows=10_000, batch_tokens=1)
    assert small.lengths[1].cross_entropy == pytest.approx(result.lengths[1].cross_entropy, rel=1e-6)


def test_bytes_and_documents_of_shards(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(["Tyger Tyger burning bright"] * 12))
    shards = tokenize_corpus(
        tmp_path / "text.txt", tmp_path / "shards", vocabulary=257, validation_documents=1
    )
    model = language_model(vocab_size=257)
    sizes, border = token_bytes(shards.tokenizer), shards.document_token
    options: dict[str, Any] = {"windows": 9, "bytes_of_token": sizes}
    packed = length_losses(model, shards, [54, 216], document_token=border, **options)
    joined = length_losses(model, shards, [54, 216], **options)
    in_memory = length_losses(model, shards.tokens([0], shards.num_tokens)[0], [54, 216], **options)
    assert in_memory == joined
    assert packed.lengths[1].change == pytest.approx(0, abs=1e-6)  # documents are shorter than either
    assert abs(joined.lengths[1].change) > 1e-3
    assert packed.bytes == packed.windows * 26  # one border in the 27 tokens of a stride
    json.dumps(asdict(packed))


def test_positions_with_an_embedding_end_where_it_does() -> None:
    tokens = torch.randint(3, VOCABULARY, (200,))
    gpt2 = make("gpt2")
    assert embedded_positions(gpt2) == 64
    length_losses(gpt2, tokens, [16, 64], windows=2)
    with pytest.raises(InputError, match="lengths must be at most 64, for which this model has positions"):
        length_losses(gpt2, tokens, [16, 65], windows=2)
    for name in ("llama", "mistral"):
        assert embedded_positions(make(name)) is None
    assert embedded_positions(language_model()) is None


def test_lengths_that_cannot_be_are_refused() -> None:
    model = language_model()
    for lengths, options, words in (
        ([], {}, "lengths must be whole numbers of at least 1"),
        ([0, 4], {}, "lengths must be whole numbers of at least 1"),
        ([8, 300], {}, "lengths must be below the 300 tokens of the text, got 300"),
        ([8], {"windows": 0}, "windows must be 1 or more"),
        ([8, 16], {"stride": 9}, "stride must be from 1 to the shortest length, 8, got 9"),
    ):
        with pytest.raises(InputError, match=words):
            length_losses(model, TOKENS, lengths, **options)


def test_a_sliding_window_at_evaluation_is_a_model_of_such_windows() -> None:
    model, limited = language_model(), language_model(window_pattern="S", sliding_window=5)
    limited.load_state_dict(model.state_dict())
    limited.model.blocks[-1].attention.window = 5  # the last layer of a pattern sees all
    expected = length_losses(limited, TOKENS, [8, 32], windows=3)
    assert length_losses(model, TOKENS, [8, 32], windows=3, sliding_window=5) == expected
    # Layers that see fewer tokens keep their window, and afterwards all have theirs.
    assert length_losses(limited, TOKENS, [8, 32], windows=3, sliding_window=6) == expected
    assert length_losses(model, TOKENS, [8, 32], windows=3) != expected
    with pytest.raises(InputError, match="sliding_window must be 1 or more, got 0"):
        length_losses(model, TOKENS, [8], sliding_window=0)
    llama = make("llama")
    full, wide, narrow = (
        length_losses(llama, TOKENS, [8, 32], windows=3, sliding_window=window).lengths[1].cross_entropy
        for window in (None, 32, 4)
    )
    assert full == pytest.approx(wide, abs=1e-6)
    assert full != pytest.approx(narrow, abs=1e-4)


def test_rotary_positions_are_changed_beyond_the_context_of_the_model() -> None:
    model = language_model(variant="rope")  # whose context is 16
    plain = length_losses(model, TOKENS, [8, 16, 64], windows=3)
    for method in ("interpolate", "ntk", "yarn"):
        found = length_losses(model, TOKENS, [8, 16, 64], windows=3, extended=method)
        with extend_context(model, method, factor=4.0):
            expected = length_losses(model, TOKENS, [8, 16, 64], windows=3).lengths[2].cross_entropy
        assert found.lengths[:2] == plain.lengths[:2]
        assert found.lengths[2].cross_entropy == pytest.approx(expected, abs=1e-7)
        assert found.lengths[2].cross_entropy != pytest.approx(plain.lengths[2].cross_entropy, abs=1e-6)
    with pytest.raises(InputError, match="extended must be one of"):
        length_losses(model, TOKENS, [8], extended="drop")  # type: ignore[arg-type]
