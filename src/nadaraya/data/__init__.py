"""Corpora in memory, as they are or as controls, or as token shards on the disk, and tokenizers."""

from nadaraya.data.cache import cache_folder
from nadaraya.data.corpus import Corpus, embedded_corpus, load_corpus, shuffle_text, wrap_text
from nadaraya.data.gutenberg import fetch_dickens, read_dickens
from nadaraya.data.shards import TokenShards, check_shards, is_shards
from nadaraya.data.tokenizer import (
    byte_tokenizer,
    encode_text,
    is_character_tokenizer,
    token_num_bytes,
    tokenizer_from_file,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
)
from nadaraya.data.tokenizing import tokenize_corpus
from nadaraya.data.windows import document_positions, num_windows, read_windows, window_numbers

__all__ = [
    "Corpus",
    "TokenShards",
    "byte_tokenizer",
    "cache_folder",
    "check_shards",
    "document_positions",
    "embedded_corpus",
    "encode_text",
    "fetch_dickens",
    "is_character_tokenizer",
    "is_shards",
    "load_corpus",
    "num_windows",
    "read_dickens",
    "read_windows",
    "shuffle_text",
    "token_num_bytes",
    "tokenize_corpus",
    "tokenizer_from_file",
    "train_byte_pair_tokenizer",
    "train_character_tokenizer",
    "window_numbers",
    "wrap_text",
]
