"""Tokenizers: exact round trips, files that transformers reads, padding, unseen characters named."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, PreTrainedTokenizerFast, pipeline

from nadaraya.data import (
    byte_tokenizer,
    tokenizer_from_file,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
)
from nadaraya.data.corpus import embedded_corpus
from nadaraya.data.tokenizer import (
    check_token_bytes,
    check_vocabulary,
    encode_text,
    is_character_tokenizer,
    token_num_bytes,
)
from nadaraya.errors import InputError
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

AWKWARD = "a  b\n\n\tc 😀é e\u0301 don ' t . , 's\r\u00a0\u200b n't ?"
utf8_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
SPECIAL = "<pad> ÿ ÿÿ <pad>"  # what stands for padding, as text
BYTES, PAIRS = byte_tokenizer(), train_byte_pair_tokenizer(embedded_corpus().text[:50_000], 600)
OPEN = [pytest.param(BYTES, id="bytes"), pytest.param(PAIRS, id="bpe")]
EVERY = [*OPEN, pytest.param(train_character_tokenizer(AWKWARD + SPECIAL), id="characters")]


@settings(deadline=None, max_examples=50)
@given(utf8_text)
def test_decoding_an_encoded_text_gives_it_back(text: str) -> None:
    tokenizer = train_character_tokenizer(text)
    ids = encode_text(tokenizer, text)
    assert ids.dtype == torch.long
    assert ids.shape == (len(text),)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokenizer", OPEN)
@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_and_byte_pairs_know_every_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = encode_text(tokenizer, text)
    assert ids.dtype == torch.long
    assert ids.tolist() == tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert sum(token_num_bytes(tokenizer, token) for token in ids.tolist()) == len(text.encode())


@pytest.mark.parametrize("tokenizer", EVERY)
@pytest.mark.parametrize("text", [AWKWARD, SPECIAL])
def test_no_text_is_read_as_padding(tokenizer: PreTrainedTokenizerFast, text: str, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path), tokenizer_from_file(tmp_path)):
        ids = encode_text(loaded, text)
        assert ids.tolist() == loaded(text)["input_ids"]
        assert loaded.pad_token_id not in ids
        assert loaded.decode(ids, skip_special_tokens=True) == text


@given(st.lists(st.integers(0, 255)))
def test_ids_of_bytes_are_bytes_and_what_is_not_utf8_decodes_to_the_replacement_character(
    ids: list[int],
) -> None:
    assert BYTES.decode(ids) == bytes(ids).decode(errors="replace")
    assert (BYTES.vocab_size, len(BYTES)) == (256, 256)


@given(st.lists(st.integers(0, PAIRS.vocab_size - 1)))
def test_any_byte_pairs_decode(ids: list[int]) -> None:
    lengths = [token_num_bytes(PAIRS, token) for token in ids]
    assert len(PAIRS.decode(ids)) <= sum(lengths)


def test_byte_pairs_shorten_a_text_like_the_one_they_were_found_in() -> None:
    text = embedded_corpus().text
    ids = encode_text(PAIRS, text[50_000:60_000])
    assert len(ids) < 0.6 * 10_000
    assert PAIRS.vocab_size == len(PAIRS) == 600
    again = train_byte_pair_tokenizer(text[:50_000], 600)
    assert again.backend_tokenizer.to_str() == PAIRS.backend_tokenizer.to_str()
    assert train_byte_pair_tokenizer("no pairs", 256).vocab_size == 256


def test_the_smallest_vocabulary_of_byte_pairs_is_the_bytes() -> None:
    with pytest.raises(InputError, match="vocabulary must be at least 256, got 255"):
        train_byte_pair_tokenizer("abc", 255)
    with pytest.raises(InputError, match="vocabulary must be at most 16,777,216, got 1000000000000"):
        train_byte_pair_tokenizer("abc", 10**12)


@pytest.mark.parametrize("tokenizer", OPEN)
def test_what_utf8_cannot_hold_is_named(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"at position 2 must be one that UTF-8 has, got '\\ud800'"):
        encode_text(tokenizer, "ab\ud800")


def test_a_byte_tokenizer_that_puts_a_blank_first_encodes_by_itself() -> None:
    other = byte_tokenizer()
    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert encode_text(other, "a").tolist() == [32, 97]


def small_model(tokenizer: PreTrainedTokenizerFast) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = KernelGPTConfig(vocab_size=tokenizer.vocab_size, variant="gpa-mul", **sizes)
    return KernelGPTForCausalLM(config).eval()


@pytest.mark.parametrize("tokenizer", EVERY)
def test_a_collated_batch_has_the_loss_of_its_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    model = small_model(tokenizer)
    texts = [tokenizer(text)["input_ids"] for text in ("don", "don ' t . ,", SPECIAL)]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    batch = collate([{"input_ids": ids} for ids in texts])
    assert batch["input_ids"].shape == (3, max(map(len, texts)))
    alone = [torch.tensor([ids]) for ids in texts]
    total = sum(model(ids, labels=ids).loss * (ids.numel() - 1) for ids in alone)
    torch.testing.assert_close(model(**batch).loss, total / sum(ids.numel() - 1 for ids in alone))


@pytest.mark.parametrize("tokenizer", EVERY)
@pytest.mark.parametrize("options", [{}, {"eos_token_id": 1, "max_new_tokens": 30}])
def test_a_pipeline_continues_a_batch_as_it_continues_each_prompt(
    tokenizer: PreTrainedTokenizerFast, options: dict[str, Any]
) -> None:
    generate = pipeline("text-generation", model=small_model(tokenizer), tokenizer=tokenizer)
    prompts = ["don", "don ' t . ,", "é"]
    options = {"max_new_tokens": 6, "do_sample": False, **options}
    together = generate(prompts, batch_size=3, **options)
    assert together == [generate(prompt, **options) for prompt in prompts]


@pytest.mark.parametrize("text", [AWKWARD, embedded_corpus().text[:5000]])
def test_table_agrees_with_the_tokenizers_library(text: str) -> None:
    tokenizer = train_character_tokenizer(text)
    assert encode_text(tokenizer, text).tolist() == tokenizer(text)["input_ids"]


def test_ids_follow_code_points_and_fill_the_vocabulary() -> None:
    tokenizer = train_character_tokenizer("hello, world\n")
    alphabet = sorted(set("hello, world\n"))
    assert tokenizer.vocab_size == len(alphabet)
    assert tokenizer.convert_ids_to_tokens(list(range(len(alphabet)))) == alphabet
    assert tokenizer.pad_token_id == len(alphabet)


def test_saved_files_load_in_transformers_and_here(tmp_path: Path) -> None:
    tokenizer = train_character_tokenizer(AWKWARD)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), tokenizer_from_file(tmp_path)):
        assert is_character_tokenizer(loaded)
        assert encode_text(loaded, AWKWARD).equal(encode_text(tokenizer, AWKWARD))
        assert loaded.decode(encode_text(loaded, AWKWARD), skip_special_tokens=True) == AWKWARD


def test_empty_text_has_no_tokens() -> None:
    assert encode_text(train_character_tokenizer("ab"), "").shape == (0,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abcz", r"'z' \(U\+007A\) at position 3"),
        ("a\nb", r"'\\n' \(U\+000A\) at position 1"),
        ("ab😀", r"'😀' \(U\+1F600\) at position 2"),
        ("\udc80", r"'\\udc80' \(U\+DC80\) at position 0"),
    ],
)
def test_unseen_character_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode_text(train_character_tokenizer("abc"), text)


@pytest.mark.parametrize("text", ["", "a\ud800"])
def test_text_that_makes_no_tokenizer_is_bad_input(text: str) -> None:
    for make in (train_character_tokenizer, train_byte_pair_tokenizer):
        with pytest.raises(InputError):
            make(text)


def test_any_other_fast_tokenizer_encodes_by_itself() -> None:
    backend = Tokenizer(models.WordLevel({"?": 0, "one": 1, "two": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert not is_character_tokenizer(words)
    assert encode_text(words, "two one two").tolist() == [2, 1, 2]


def unknowing() -> dict[str, PreTrainedTokenizerFast]:
    """Tokenizers that do not know every text, each with its own way of saying so."""
    letters = {"a": 0, "b": 1, "?": 2}
    made: dict[str, Any] = {
        "words": models.WordLevel(letters, unk_token="?"),
        "words that raise": models.WordLevel(letters),
        "pieces": models.WordPiece(letters, unk_token="?"),
        "pairs": models.BPE(letters, [], unk_token="?"),
        "unigrams": models.Unigram([("a", -1.0), ("b", -1.0), ("?", -9.0)], unk_id=2),
    }
    found = {}
    for name, model in made.items():
        backend = Tokenizer(model)
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        mark = {"unk_token": "?"} if name == "unigrams" else {}
        found[name] = PreTrainedTokenizerFast(tokenizer_object=backend, **mark)
    return found


@pytest.mark.parametrize("name", unknowing())
def test_a_text_that_a_tokenizer_does_not_know_is_refused_not_read_as_something_else(name: str) -> None:
    tokenizer = unknowing()[name]
    assert encode_text(tokenizer, "a b a").tolist() == [0, 1, 0]
    with pytest.raises(InputError, match=r"position 2 must be one that this tokenizer knows|Missing \[UNK\]"):
        encode_text(tokenizer, "a é")


def test_byte_pairs_that_leave_out_what_they_do_not_know_are_refused() -> None:
    backend = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    for check in (check_token_bytes, partial(check_vocabulary, tokens=9)):
        with pytest.raises(InputError, match="a token for each byte"):
            check(PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.parametrize("special", [True, False])
def test_what_spells_a_special_token_is_text(special: bool) -> None:
    tokenizer = train_byte_pair_tokenizer("no more", 270, document_token="<|endoftext|>")
    tokenizer.split_special_tokens = False  # as most of the hub have it
    added = AddedToken("<|mörk|>", special=special)
    tokenizer.add_tokens([added], special_tokens=special)
    text = "no <|endoftext|>more<|mörk|> <pad>"
    ids = encode_text(tokenizer, text)
    assert tokenizer.eos_token_id not in ids
    assert (tokenizer.convert_tokens_to_ids("<|mörk|>") in ids) is not special
    assert sum(token_num_bytes(tokenizer, int(token)) for token in ids) == len(text.encode())


def test_a_tokenizer_with_more_tokens_than_a_model_is_refused() -> None:
    check_vocabulary(train_character_tokenizer("abc"), 3)  # padding, which is in no text, has number 3
    check_vocabulary(BYTES, 300)
    for tokenizer, tokens in ((BYTES, 254), (PAIRS, 599), (train_character_tokenizer("abc"), 2)):
        with pytest.raises(InputError, match=rf"that of the model, which has {tokens} tokens, got 'a token"):
            check_vocabulary(tokenizer, tokens)


def test_character_tokenizer_that_changes_its_text_encodes_by_itself() -> None:
    lower = train_character_tokenizer("abc")
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert not is_character_tokenizer(lower)
    assert encode_text(lower, "CAB").tolist() == [2, 0, 1]


def test_absent_or_corrupt_tokenizer_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json is absent"):
        tokenizer_from_file(tmp_path)
    train_character_tokenizer("abc").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = path.read_text()
    for broken in (whole[: len(whole) // 2], "", json.dumps({"model": 3})):
        path.write_text(broken)
        with pytest.raises(InputError, match=r"the tokenizer of .* cannot be read"):
            tokenizer_from_file(tmp_path)
