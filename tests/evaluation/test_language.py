"""Cross-entropy and bits per byte: every token once, known values, bytes and not characters."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nadaraya.data import byte_tokenizer, train_byte_pair_tokenizer, train_character_tokenizer
from nadaraya.data.tokenizer import encode_text
from nadaraya.errors import InputError
from nadaraya.evaluation import bits_per_byte, evaluate_string, evaluate_text
from nadaraya.evaluation.language import token_bytes
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM


class Bigram(nn.Module):
    """Logits that depend on the current token alone: windows cannot change its predictions."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(vocabulary, vocabulary, generator=generator))
        self.dropout = nn.Dropout(0.9)
        self.seen: list[Tensor] = []

    def forward(self, input_ids: Tensor, use_cache: bool = True) -> SimpleNamespace:
        assert not use_cache
        self.seen.append(input_ids)
        return SimpleNamespace(logits=self.dropout(self.table[input_ids]))


@pytest.mark.parametrize("context", [1, 3, 7, 10, 30, 31, 500])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_every_token_but_the_first_is_predicted_once(context: int, batch_size: int) -> None:
    tokens = torch.randint(0, 5, (31,), generator=torch.Generator().manual_seed(1))
    model = Bigram(5)
    result = evaluate_text(model, tokens, context=context, num_bytes=60, batch_size=batch_size)
    expected = F.cross_entropy(model.table[tokens[:-1]].double(), tokens[1:]).item()
    assert result.cross_entropy == pytest.approx(expected, rel=1e-6)
    assert result.bits_per_byte == pytest.approx(expected * 30 / 60 / math.log(2), rel=1e-6)
    assert (result.tokens, result.bytes) == (30, 60)
    assert torch.equal(torch.cat([batch.flatten() for batch in model.seen]), tokens[:-1])
    assert max(batch.shape[0] for batch in model.seen) <= batch_size


def test_the_model_is_left_in_training_mode_and_dropout_does_not_act() -> None:
    model = Bigram(5).train()
    tokens = torch.arange(5).repeat(6)
    results = {evaluate_text(model, tokens, context=4, num_bytes=29).cross_entropy for _ in range(3)}
    assert len(results) == 1
    assert model.training


def test_a_model_that_knows_nothing_costs_the_logarithm_of_the_vocabulary() -> None:
    text = "aé🎉b" * 10
    tokenizer = train_character_tokenizer(text)
    model = Bigram(4)
    nn.init.zeros_(model.table)
    result = evaluate_string(model, tokenizer, text, context=8)
    assert result.cross_entropy == pytest.approx(math.log(4))
    assert (result.tokens, result.bytes) == (39, 10 * (1 + 2 + 4 + 1) - 1)
    assert result.bits_per_byte == pytest.approx(2 * 39 / 79)


def test_bytes_of_the_first_character_are_left_out_whatever_their_number() -> None:
    text = "🎉ab"
    result = evaluate_string(Bigram(3), train_character_tokenizer(text), text, context=8)
    assert (result.tokens, result.bytes) == (2, 2)


@pytest.mark.parametrize("text", ["", "a"])
def test_a_text_without_anything_to_predict_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="2 or more"):
        evaluate_string(Bigram(2), train_character_tokenizer("ab"), text, context=8)


def test_an_unseen_character_is_named() -> None:
    with pytest.raises(InputError, match="'c'"):
        evaluate_string(Bigram(2), train_character_tokenizer("ab"), "abc", context=8)


def test_bits_per_byte_of_bytes_are_nats_per_token_in_bits() -> None:
    text = "🎉 naïve, ÿ"
    result = evaluate_string(Bigram(256), byte_tokenizer(), text, context=8)
    assert (result.tokens, result.bytes) == (len(text.encode()) - 1,) * 2
    assert result.bits_per_byte == pytest.approx(result.cross_entropy / math.log(2))


def test_the_bytes_of_the_first_pair_are_left_out_and_no_others() -> None:
    text = "🎉 naïve, the naïve"
    tokenizer = train_byte_pair_tokenizer("the naïve🎉 " * 9, 290)
    tokens = encode_text(tokenizer, text)
    after = len(text.encode()) - 4
    assert tokenizer.decode(tokens[:1]) == "🎉"
    result = evaluate_string(Bigram(290), tokenizer, text, context=8)
    assert (result.tokens, result.bytes) == (len(tokens) - 1, after)
    assert result.bits_per_byte == pytest.approx(result.cross_entropy * result.tokens / math.log(2) / after)


def test_a_first_token_that_is_part_of_a_character_counts_its_own_bytes() -> None:
    result = evaluate_string(Bigram(256), train_byte_pair_tokenizer("ab", 256), "🎉b", context=8)
    assert (result.tokens, result.bytes) == (4, 4)


def windows_of(text: str, context: int) -> list[tuple[Tensor, Tensor]]:
    tokens = encode_text(byte_tokenizer(), text)
    starts = range(0, len(tokens) - 1, context)
    return [
        (tokens[i : i + context][: len(tokens) - 1 - i][None], tokens[i + 1 : i + 1 + context][None])
        for i in starts
    ]


def test_bits_per_byte_of_the_windows_of_a_text_are_those_of_the_text() -> None:
    text = "🎉 naïve, the naïve"
    expected = evaluate_string(Bigram(256), byte_tokenizer(), text, context=5).bits_per_byte
    found = bits_per_byte(Bigram(256), windows_of(text, 5), token_bytes(byte_tokenizer()))
    assert found == pytest.approx(expected, rel=1e-6)


def test_tokens_without_bytes_and_targets_below_zero_are_in_neither_sum() -> None:
    model, sizes = Bigram(5), torch.tensor([0, 1, 2, 3, 1])
    inputs, targets = (
        torch.tensor([[0, 1, 2, 3], [4, 0, 1, 2]]),
        torch.tensor([[1, 2, 0, 4], [-1, 3, 0, -100]]),
    )
    losses = -model.table.double().log_softmax(-1)
    counted = [(0, 1), (1, 2), (3, 4), (0, 3)]  # (input, target) with bytes
    nats = sum(losses[pair].item() for pair in counted)
    found = bits_per_byte(model, [(inputs, targets)], sizes)
    assert found == pytest.approx(nats / math.log(2) / (1 + 2 + 1 + 3), rel=1e-6)
    with pytest.raises(InputError, match="a target that has bytes"):
        bits_per_byte(model, [(inputs, torch.zeros_like(inputs))], sizes)


def test_bytes_of_tokens_add_up_to_those_of_the_text_and_special_tokens_have_none() -> None:
    text = "the naïve 🎉 cat"
    pairs = train_byte_pair_tokenizer("the naïve🎉 " * 9, 290)
    pairs.add_special_tokens({"bos_token": "<|bos|>"})
    for tokenizer in (train_character_tokenizer(text), byte_tokenizer(), pairs):
        sizes = token_bytes(tokenizer)
        assert sizes.shape == (len(tokenizer),)
        assert sizes[encode_text(tokenizer, text)].sum() == len(text.encode())
        assert sizes[tokenizer.all_special_ids].tolist() == [0] * len(tokenizer.all_special_ids)


def test_tokens_that_are_neither_characters_nor_bytes_have_no_bytes() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0}))
    words.decoder = decoders.Metaspace()
    with pytest.raises(
        InputError, match="tokenizer must be one of characters or bytes, as that of GPT-2, got 'Metaspace'"
    ):
        token_bytes(PreTrainedTokenizerFast(tokenizer_object=words))


def test_windows_share_a_batch_as_far_as_their_logits_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=90)).eval()
    rows: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    tokens = torch.arange(81) % 90
    found = evaluate_text(model, tokens, context=8, num_bytes=80)
    monkeypatch.setattr("nadaraya.evaluation.language.LARGEST_LOGITS", 3 * 8 * 90)
    bounded = evaluate_text(model, tokens, context=8, num_bytes=80)
    assert rows == [10, 3, 3, 3, 1]
    assert bounded.cross_entropy == pytest.approx(found.cross_entropy)
