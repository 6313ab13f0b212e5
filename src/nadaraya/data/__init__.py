"""Corpora in memory, as they are or as controls, or as token shards on the disk, and tokenizers."""

from nadaraya.data.corpus import Corpus, load_corpus
from nadaraya.data.gutenberg import fetch_dickens
from nadaraya.data.shards import TokenShards, check_shards
from nadaraya.data.tokenizer import (
    byte_tokenizer,
    tokenizer_from_file,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
)
from nadaraya.data.tokenizing import tokenize_corpus

__all__ = [
    "Corpus",
    "TokenShards",
    "byte_tokenizer",
    "check_shards",
    "fetch_dickens",
    "load_corpus",
    "tokenize_corpus",
    "tokenizer_from_file",
    "train_byte_pair_tokenizer",
    "train_character_tokenizer",
]
