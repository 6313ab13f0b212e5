"""Character tokenizers as ordinary `tokenizers` files, and fast exact encoding of long texts."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from nadaraya.errors import InputError
from nadaraya.files import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def train_character_tokenizer(text: str) -> "PreTrainedTokenizerFast":
    """A tokenizer with one id for each character of a text, in order of code point.

    It adds nothing and cleans nothing: decoding an encoded text gives the same text, blanks and newlines
    included. `save_pretrained` writes it; `transformers.AutoTokenizer` reads it. It has no unknown token.

    Args:
        text: the text whose characters become the vocabulary.

    Returns:
        The tokenizer.

    Raises:
        InputError: when the text is empty or holds a lone surrogate, which no UTF-8 text can.

    >>> from nadaraya.data import train_character_tokenizer
    >>> train_character_tokenizer("banana").get_vocab()["n"]
    2
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if not text:
        raise InputError("the text is empty: a tokenizer needs at least one character")
    characters = sorted(set(text))
    if any("\ud800" <= character <= "\udfff" for character in characters):
        raise InputError("the text must be what UTF-8 can hold, got a lone surrogate (U+D800 to U+DFFF)")
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(characters)}))
    # A class of everything, because a dot leaves out newlines.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def is_character_tokenizer(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Whether every character is one token, as `train_character_tokenizer` makes them.

    Args:
        tokenizer: any fast tokenizer.

    >>> from nadaraya.data import is_character_tokenizer, train_character_tokenizer
    >>> is_character_tokenizer(train_character_tokenizer("abc"))
    True
    """
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    backend = tokenizer.backend_tokenizer
    return (
        isinstance(backend.model, WordLevel)
        and not tokenizer.added_tokens_decoder
        and backend.normalizer is None
        and isinstance(backend.pre_tokenizer, Split)
        and all(len(token) == 1 for token in backend.get_vocab())
    )


def encode_text(tokenizer: "PreTrainedTokenizerFast", text: str) -> torch.Tensor:
    """Token ids of a text, with nothing added.

    Character tokenizers go through a table over code points, some hundred times as fast as `tokenizers`.

    Args:
        tokenizer: any fast tokenizer.
        text: what to encode, of any length.

    Returns:
        Ids, (number of tokens,), int64.

    Raises:
        InputError: when a character tokenizer has not seen a character; it names it and where it stands.

    >>> from nadaraya.data import encode_text, train_character_tokenizer
    >>> encode_text(train_character_tokenizer("banana"), "nab")
    tensor([2, 0, 1])
    """
    if not is_character_tokenizer(tokenizer):
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long)
    vocabulary = tokenizer.get_vocab()
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


def tokenizer_from_file(folder: str | Path) -> "PreTrainedTokenizerFast":
    """The tokenizer saved in a folder; nothing is downloaded and no code from the folder runs.

    Args:
        folder: holds tokenizer.json, and tokenizer_config.json if there is one.

    Returns:
        The tokenizer.

    Raises:
        InputError: when tokenizer.json is absent or cannot be read.

    >>> from nadaraya.data import tokenizer_from_file, train_character_tokenizer
    >>> _ = train_character_tokenizer("banana").save_pretrained("letters")
    >>> len(tokenizer_from_file("letters"))
    3
    """
    from transformers import PreTrainedTokenizerFast

    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"no tokenizer in {folder}: {path.name} is absent")
    try:
        return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exception for a malformed file
        raise InputError(f"{path} is not a readable tokenizer: {first_line(error)}") from error
