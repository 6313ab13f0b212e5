"""Characters, bytes and byte pairs as ordinary `tokenizers` files, and exact encoding of long texts.

All three lose nothing: decoding an encoded text gives the same text, blanks and newlines included. Each has a
padding token for collators and pipelines, which is in no text: the byte 0xFF where tokens are bytes, which
UTF-8 does not use, and the first id beyond the alphabet where they are characters.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from nadaraya.data.textfile import one_line
from nadaraya.errors import InputError, must_be

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

SMALLEST_VOCABULARY = 256  # every byte has a token: a text that was not trained on can be encoded
_LARGEST_VOCABULARY = 2**24  # the trainer keeps room for all


def train_character_tokenizer(text: str) -> "PreTrainedTokenizerFast":
    """A tokenizer with one id for each character of a text, in order of code point.

    `save_pretrained` writes it; `transformers.AutoTokenizer` reads it. It has no unknown token: a character
    that is not in the text cannot be encoded. `vocab_size` leaves out the padding token, which models of
    `nadaraya.models` know without a row of the embedding.

    Args:
        text: the text whose characters become the vocabulary.

    Raises:
        InputError: when the text is empty or holds a lone surrogate, which no UTF-8 text can.

    >>> from nadaraya.data import train_character_tokenizer
    >>> train_character_tokenizer("banana").get_vocab()["n"]
    2
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(set(_trains(text)))
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(characters)}))
    # A class of everything, because a dot leaves out newlines.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrapped(tokenizer, "<pad>")


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer whose 256 ids are the bytes of UTF-8: it knows every text.

    `save_pretrained` writes it; `transformers.AutoTokenizer` reads it. Bytes that are not UTF-8, as a model
    may generate them, decode to the replacement character U+FFFD.

    >>> from nadaraya.data import byte_tokenizer
    >>> byte_tokenizer()("né")["input_ids"]
    [110, 195, 169]
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer, _byte_characters()[0xFF])


def train_byte_pair_tokenizer(
    text: str | Iterable[str], vocabulary: int = 4096, document_token: str | None = None
) -> "PreTrainedTokenizerFast":
    """A byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019): it knows every text.

    It starts from the 256 bytes and joins, again and again, the neighbours that are most frequent within the
    words of the text. The same text gives the same tokenizer.

    Args:
        text: what the pairs are counted in; or documents, which need not fit in memory together.
        vocabulary: number of tokens, at least 256, default 4096; a text with few pairs gives fewer.
        document_token: a further token, in the vocabulary, with which documents begin, such as
            "<|endoftext|>": `bos_token` and `eos_token`. No text is read as it. Default none.

    Raises:
        InputError: a text is empty or holds a lone surrogate, or the vocabulary is too small.

    >>> from nadaraya.data import train_byte_pair_tokenizer
    >>> tokenizer = train_byte_pair_tokenizer("the cat sat on the mat " * 10, vocabulary=260)
    >>> tokenizer.convert_ids_to_tokens(tokenizer("mat")["input_ids"])
    ['m', 'at']
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    smallest = SMALLEST_VOCABULARY + (document_token is not None)
    if vocabulary < smallest:
        raise must_be("vocabulary", f"at least {smallest}", vocabulary)
    if vocabulary > _LARGEST_VOCABULARY:
        raise must_be("vocabulary", f"at most {_LARGEST_VOCABULARY:,}", vocabulary)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=_byte_characters(),
        special_tokens=[document_token] if document_token else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(_trains, [text] if isinstance(text, str) else text), options)
    marks = {"bos_token": document_token, "eos_token": document_token} if document_token else {}
    return _wrapped(tokenizer, _byte_characters()[0xFF], **marks)


def is_character_tokenizer(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Test whether every character is one token, as `train_character_tokenizer` makes them."""
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    backend = tokenizer.backend_tokenizer
    return (
        isinstance(backend.model, WordLevel)
        and set(tokenizer.added_tokens_decoder) <= {tokenizer.pad_token_id}
        and backend.normalizer is None
        and isinstance(backend.pre_tokenizer, Split)
        and all(len(token) == 1 for token in backend.get_vocab(with_added_tokens=False))
    )


def check_token_bytes(tokenizer: "PreTrainedTokenizerFast") -> None:
    """Refuse a tokenizer whose tokens have no bytes of their own: of those nobody knows the bits per byte."""
    from tokenizers.decoders import ByteLevel

    decoder = tokenizer.backend_tokenizer.decoder
    if not (isinstance(decoder, ByteLevel) or is_character_tokenizer(tokenizer)):
        raise must_be("tokenizer", "one of characters or bytes, as that of GPT-2", type(decoder).__name__)
    _check_alphabet(tokenizer)


def check_vocabulary(tokenizer: "PreTrainedTokenizerFast", tokens: int) -> None:
    """Refuse a tokenizer that is not that of a model of so many tokens: a text would be read wrongly.

    Special tokens beyond, which are in no text, are left alone.
    """
    _check_alphabet(tokenizer)
    unread = set(tokenizer.all_special_ids) - {tokenizer.bos_token_id}
    largest = max((number for number in tokenizer.get_vocab().values() if number not in unread), default=0)
    if largest >= tokens:
        raise must_be("tokenizer", f"that of the model, which has {tokens:,} tokens", f"a token {largest:,}")


def _check_alphabet(tokenizer: "PreTrainedTokenizerFast") -> None:
    """Byte pairs without a token for what they do not know leave it out without a word."""
    model = tokenizer.backend_tokenizer.model
    silent = getattr(model, "unk_token", "") is None and not getattr(model, "byte_fallback", True)
    if silent and not set(_byte_characters()) <= tokenizer.get_vocab().keys():
        raise must_be("tokenizer", "one with a token for each byte or for the unknown", "byte pairs without")


def encode_text(tokenizer: "PreTrainedTokenizerFast", text: str) -> torch.Tensor:
    """Token ids of a text of any length, (number of tokens,) int64, with nothing added.

    Characters go through a table over code points, some hundred times as fast as `tokenizers`, and bytes are
    read as they are; any other tokenizer encodes the whole text at once. What spells a special token, such as
    "<|endoftext|>", is text like any other. An InputError names a character that the tokenizer does not know,
    or a lone surrogate, and where it stands.
    """
    if is_character_tokenizer(tokenizer):
        return _character_ids(tokenizer, text)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        index, character = error.start, text[error.start]
        raise must_be(f"the character at position {index}", "one that UTF-8 has", character) from error
    if _is_byte_tokenizer(tokenizer):
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).astype(np.int64))
    with one_line("the text", "by this tokenizer"):
        encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
    ids = torch.tensor(encoded["input_ids"], dtype=torch.long)
    backend = tokenizer.backend_tokenizer
    unknown = {tokenizer.unk_token_id, backend.token_to_id(getattr(backend.model, "unk_token", None) or "")}
    if len(indices := np.flatnonzero(np.isin(ids, list(unknown - {None})))):
        index = encoded.token_to_chars(int(indices[0])).start
        raise must_be(f"the character at position {index}", "one that this tokenizer knows", text[index])
    return ids


def token_num_bytes(tokenizer: "PreTrainedTokenizerFast", token_id: int) -> int:
    """UTF-8 bytes that one token stands for, maybe a part of a character; 0 of a border of documents."""
    from tokenizers.decoders import ByteLevel

    if token_id in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        return 0
    if token_id in tokenizer.added_tokens_decoder:  # written as it is
        return len(str(tokenizer.convert_ids_to_tokens(token_id)).encode())
    if isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):  # a character of its tokens is a byte
        return len(str(tokenizer.convert_ids_to_tokens(token_id)))
    return len(str(tokenizer.decode([token_id])).encode())


def tokenizer_from_file(folder: str | Path) -> "PreTrainedTokenizerFast":
    """The tokenizer saved in a folder; nothing is downloaded and no code from the folder runs.

    Args:
        folder: holds tokenizer.json, and tokenizer_config.json if there is one.

    Raises:
        InputError: when tokenizer.json is absent or cannot be read.

    >>> from nadaraya.data import tokenizer_from_file, train_character_tokenizer
    >>> _ = train_character_tokenizer("banana").save_pretrained("letters")
    >>> tokenizer_from_file("letters").vocab_size
    3
    """
    from transformers import PreTrainedTokenizerFast

    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"no tokenizer in {folder}: {path.name} is absent")
    with one_line(f"the tokenizer of {folder}"):
        return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)


def _trains(text: str) -> str:
    """The text, unless a tokenizer cannot be made from it."""
    if not text:
        raise InputError("the text is empty: a tokenizer needs at least one character")
    if any("\ud800" <= character <= "\udfff" for character in set(text)):
        raise InputError("the text must be what UTF-8 can hold, got a lone surrogate (U+D800 to U+DFFF)")
    return text


def _wrapped(tokenizer: "Tokenizer", pad_token: str, **marks: str) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    # Split special tokens: "<pad>" or "ÿ" in a text is those characters, not padding.
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        pad_token=pad_token,
        split_special_tokens=True,
        **marks,
    )


def _byte_characters() -> list[str]:
    """The characters by which byte-level tokens write each byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [character for _, character in sorted(bytes_to_unicode().items())]


def _is_byte_tokenizer(tokenizer: "PreTrainedTokenizerFast") -> bool:
    backend = tokenizer.backend_tokenizer
    return (
        len(tokenizer) == 256
        and set(tokenizer.added_tokens_decoder) <= {tokenizer.pad_token_id}
        and backend.normalizer is None
        and tokenizer.convert_ids_to_tokens(list(range(256))) == _byte_characters()
        and backend.encode(" a", add_special_tokens=False).ids == [32, 97]
        and backend.encode("a", add_special_tokens=False).ids == [97]  # no blank put before it
    )


def _character_ids(tokenizer: "PreTrainedTokenizerFast", text: str) -> torch.Tensor:
    vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    table = np.full(max(map(ord, vocabulary)) + 2, -1, dtype=np.int64)
    for character, token_id in vocabulary.items():
        table[ord(character)] = token_id
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    # Code points beyond the vocabulary share the table's last entry, which no character owns.
    ids = table[np.minimum(points, len(table) - 1)]
    unseen = np.flatnonzero(ids < 0)
    if unseen.size:
        position = int(unseen[0])
        raise InputError(
            f"the character {text[position]!r} (U+{ord(text[position]):04X}) at position {position} was not"
            f" in the text this tokenizer was made from; it knows {len(vocabulary)} characters"
        )
    return torch.from_numpy(ids)
