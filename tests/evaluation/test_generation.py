"""Generated text: as long as asked for, reproducible, greedy and beams as defined, beyond the context."""

from typing import Any

import pytest
import torch

from nadaraya.data import byte_tokenizer, train_byte_pair_tokenizer, train_character_tokenizer
from nadaraya.data.tokenizer import encode_text
from nadaraya.errors import InputError
from nadaraya.evaluation import generate_text, sample_text
from nadaraya.evaluation.generation import default_prompt
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

TOKENIZER = train_character_tokenizer("\nabcdefg")


@pytest.fixture(scope="module")
def model() -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    config = KernelGPTConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=12
    )
    return KernelGPTForCausalLM(config)


@pytest.mark.parametrize("prompt", ["a", "abc\n", "gfedcba" * 5])
@pytest.mark.parametrize("tokens", [1, 11, 40])
def test_the_prompt_is_continued_by_what_was_asked_for(
    model: KernelGPTForCausalLM, prompt: str, tokens: int
) -> None:
    text = generate_text(model, TOKENIZER, prompt, tokens)
    assert text.startswith(prompt)
    assert len(text) == len(prompt) + tokens


def test_the_seed_decides_and_the_global_generator_is_left_alone(model: KernelGPTForCausalLM) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = generate_text(model, TOKENIZER, "a", 30, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert generate_text(model, TOKENIZER, "a", 30, seed=1) == first
    assert generate_text(model, TOKENIZER, "a", 30, seed=2) != first


def test_greedy_takes_the_likeliest_and_so_do_its_limits(model: KernelGPTForCausalLM) -> None:
    text = generate_text(model, TOKENIZER, "ab", 8, greedy=True)
    model.eval()
    for end in range(2, 10):
        ids = encode_text(TOKENIZER, text[:end])[None]
        assert TOKENIZER.decode([int(model(input_ids=ids).logits[0, -1].argmax())]) == text[end]
    assert generate_text(model, TOKENIZER, "ab", 8, top_k=1) == text
    assert generate_text(model, TOKENIZER, "ab", 8, temperature=1e-6) == text


@pytest.mark.parametrize(
    "options", [{"temperature": 1e300}, {"temperature": 2}, {"seed": 2**64 - 1}, {"beams": 20}]
)
def test_whatever_is_in_range_is_honoured(model: KernelGPTForCausalLM, options: dict[str, Any]) -> None:
    assert len(generate_text(model, TOKENIZER, "ab", 8, **options)) == 10


def test_more_likeliest_tokens_than_the_vocabulary_has_are_all(model: KernelGPTForCausalLM) -> None:
    assert generate_text(model, TOKENIZER, "a", 20, top_k=2**62) == generate_text(model, TOKENIZER, "a", 20)


def test_progress_counts_the_tokens_added(model: KernelGPTForCausalLM) -> None:
    told: list[int] = []
    generate_text(model, TOKENIZER, "ab", 20, progress=told.append)
    assert told == [10, 16, 20]  # the context of 12 is full; the newer half of it is; the end


def test_a_vocabulary_of_one_token_has_one_text() -> None:
    config = KernelGPTConfig(vocab_size=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    tokenizer = train_character_tokenizer("a")
    assert generate_text(KernelGPTForCausalLM(config), tokenizer, "a", 3, beams=2) == "aaaa"


@torch.no_grad()
def test_beyond_the_context_the_model_reads_the_newer_half_of_it(model: KernelGPTForCausalLM) -> None:
    prompt = "gfedcba" * 5
    text = generate_text(model, TOKENIZER, prompt, 10, greedy=True)
    model.eval()
    for place in range(10):
        # 6 of 12 tokens are read at first; they grow to 12 before the next half is taken.
        start = len(prompt) - 6 if place < 6 else len(prompt)
        ids = encode_text(TOKENIZER, text[start : len(prompt) + place])[None]
        following = TOKENIZER.decode([int(model(input_ids=ids).logits[0, -1].argmax())])
        assert following == text[len(prompt) + place]


def test_beam_search_finds_a_likelier_text_than_greedy(model: KernelGPTForCausalLM) -> None:
    def likelihood(text: str) -> float:
        ids = encode_text(TOKENIZER, text)[None]
        scores = model.eval()(input_ids=ids).logits.log_softmax(-1)[0, :-1]
        return scores.gather(1, ids[0, 1:, None]).sum().item()

    greedy = generate_text(model, TOKENIZER, "a", 6, greedy=True)
    beams = generate_text(model, TOKENIZER, "a", 6, beams=8)
    assert likelihood(beams) >= likelihood(greedy)


def test_a_sample_starts_with_a_newline_and_joins_whole_lines(model: KernelGPTForCausalLM) -> None:
    text = sample_text(model, TOKENIZER, 2000, seed=3)
    assert text.startswith("\n")
    assert 1500 < len(text) <= 2004
    assert sample_text(model, TOKENIZER, 2000, seed=3) == text


def test_a_sample_without_newlines_starts_with_the_first_token() -> None:
    torch.manual_seed(0)
    config = KernelGPTConfig(
        vocab_size=2, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=8
    )
    model, tokenizer = KernelGPTForCausalLM(config), train_character_tokenizer("xy")
    for text in (sample_text(model, tokenizer, 20), generate_text(model, tokenizer, None, 20)):
        assert text.startswith("x")
        assert len(text) == 21


def test_every_tokenizer_knows_its_default_prompt() -> None:
    prompts = {"ab\n": "\n", "ab": "a", "<pad>": "<"}
    assert {text: default_prompt(train_character_tokenizer(text)) for text in prompts} == prompts
    assert default_prompt(byte_tokenizer()) == "\n"
    assert default_prompt(train_byte_pair_tokenizer("ab", 256)) == "\n"


def test_generated_bytes_that_are_no_text_become_replacement_characters() -> None:
    torch.manual_seed(0)
    config = KernelGPTConfig(vocab_size=256, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = KernelGPTForCausalLM(config)
    text = generate_text(model, byte_tokenizer(), "é", 50)
    assert text.startswith("é")
    assert "\ufffd" in text
    assert sample_text(model, byte_tokenizer(), 50).startswith("\n")


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt must be at least one character"),
        ("abz", {}, "'z'"),
        *[
            ("a", {"temperature": value}, "temperature must be a finite number of at least 1e-06 .*, got")
            for value in (0.0, -1.0, 1e-320, float("nan"), float("inf"))
        ],
        ("a", {"seed": -1}, "seed must be from 0 to 2.64 − 1, got -1"),
        ("a", {"seed": 2**64}, "seed must be from 0 to 2.64 − 1, got 18446744073709551616"),
        ("a", {"tokens": 2**63}, "tokens must be a positive integer below 2.63"),
        ("a", {"beams": 10**12}, "a beam search of width 1,000,000,000,000 needs .* reduce beams"),
        ("a", {"top_k": 0}, "top_k must be a positive integer .*, got 0"),
        ("a", {"beams": 0}, "beams must be a positive integer .*, got 0"),
        ("a", {"tokens": 0}, "tokens must be a positive integer .*, got 0"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    model: KernelGPTForCausalLM, prompt: str, options: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        generate_text(model, TOKENIZER, prompt, **{"tokens": 5, **options})  # type: ignore[arg-type]
