"""Character tokenizers: exact round trips, files that transformers reads, unseen characters named."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from nadaraya.data import (
    embedded_corpus,
    encode_text,
    is_character_tokenizer,
    tokenizer_from_file,
    train_character_tokenizer,
)
from nadaraya.errors import InputError

AWKWARD = "a  b\n\n\tc 😀é e\u0301 don ' t . , 's\r\u00a0\u200b n't ?"
utf8_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@settings(deadline=None, max_examples=50)
@given(utf8_text)
def test_decoding_an_encoded_text_gives_it_back(text: str) -> None:
    tokenizer = train_character_tokenizer(text)
    ids = encode_text(tokenizer, text)
    assert ids.dtype == torch.long
    assert ids.shape == (len(text),)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", [AWKWARD, embedded_corpus().text[:5000]])
def test_table_agrees_with_the_tokenizers_library(text: str) -> None:
    tokenizer = train_character_tokenizer(text)
    assert encode_text(tokenizer, text).tolist() == tokenizer(text)["input_ids"]


def test_ids_follow_code_points_and_fill_the_vocabulary() -> None:
    tokenizer = train_character_tokenizer("hello, world\n")
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary, key=vocabulary.__getitem__) == sorted(set("hello, world\n"))
    assert sorted(vocabulary.values()) == list(range(len(tokenizer)))
    assert tokenizer.all_special_tokens == []


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
    with pytest.raises(InputError):
        train_character_tokenizer(text)


def test_any_other_fast_tokenizer_encodes_by_itself() -> None:
    backend = Tokenizer(models.WordLevel({"?": 0, "one": 1, "two": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert not is_character_tokenizer(words)
    assert encode_text(words, "two one three").tolist() == [2, 1, 0]


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
        with pytest.raises(InputError, match=r"tokenizer\.json is not a readable tokenizer"):
            tokenizer_from_file(tmp_path)
