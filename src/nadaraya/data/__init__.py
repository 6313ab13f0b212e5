"""Corpora (named, in files, Dickens of Project Gutenberg) and tokenizers (characters, bytes, byte pairs)."""

from nadaraya.data.cache import cache_folder
from nadaraya.data.corpus import Corpus, embedded_corpus, load_corpus
from nadaraya.data.gutenberg import fetch_dickens, read_dickens
from nadaraya.data.tokenizer import (
    byte_tokenizer,
    encode_text,
    is_character_tokenizer,
    token_num_bytes,
    tokenizer_from_file,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
)

__all__ = [
    "Corpus",
    "byte_tokenizer",
    "cache_folder",
    "embedded_corpus",
    "encode_text",
    "fetch_dickens",
    "is_character_tokenizer",
    "load_corpus",
    "read_dickens",
    "token_num_bytes",
    "tokenizer_from_file",
    "train_byte_pair_tokenizer",
    "train_character_tokenizer",
]
