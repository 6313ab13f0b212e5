"""Attention over a text: the weights of every query, which a page shades its tokens with."""

import base64
import unicodedata
from functools import cache
from typing import Any

import numpy as np
from matplotlib.font_manager import FontProperties, findfont, get_font

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import Query, query_positions, rollout
from nadaraya.report.maps_base import DISCARD_RATIOS, MapFigures

_LONGEST = 8  # letters of a token that are shown
_MOST = 2**24  # weights of single heads on a page
_FONT = "DejaVu Sans Mono"  # it comes with matplotlib
_PRINTED = {" ": "·", "\n": "⏎", "\t": "→", "\r": "←"}


class TextFigures(MapFigures):
    """The figures of one text, with the same names as those of an image.

    Args:
        maps: of a language model, with tokens; the first text of the batch is drawn.
        query: the query whose weights are mapped, as for `query_rows`; default the last token.

    Raises:
        InputError: the tokens are not known, or an unknown query.

    >>> import torch
    >>> from nadaraya.report.maps_text import TextFigures
    >>> from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
    >>> layer = LayerMaps("attn", torch.full((1, 2, 3, 3), 1 / 3), bandwidth=None, error=0.0)
    >>> figures = TextFigures(AttentionMaps((layer,), output=None, reads="last", tokens=(("a", " ", "b"),)))
    >>> figures.query_name
    'token 2, the last (b)'
    >>> figures.views()["names"]["layer 0"]
    ['mean over heads', '0.0', '0.1']
    """

    kind = "text"
    _low = 0.0

    def __init__(self, maps: AttentionMaps, query: Query | None = None) -> None:
        if maps.tokens is None:
            raise InputError("the tokens of this text are not known: give capture_attention the tokenizer")
        super().__init__(maps, query)
        self.tokens = [printable(token) for token in maps.tokens[0]]

    @property
    def query_name(self) -> str:
        if self.query == "mean":
            return "the average over all tokens"
        position = len(self.tokens) - 1 if self.query == "last" else int(self.query)
        last = ", the last" if position == len(self.tokens) - 1 else ""
        return f"token {position}{last} ({self.tokens[position]})"

    def token_labels(self, positions: np.ndarray) -> list[str]:
        return [self.tokens[position] for position in positions.tolist()]

    def views(self) -> dict[str, Any]:
        """The weights of every query for the page, in all layers and heads and in the rollout.

        Keys: names, those of matrices by layer; heads, whether single heads are among them; weights, of the
        matrices in this order, row by row up to the diagonal, 65,535 for 1, as 16 bits in base64.
        """
        maps, size = self.maps, len(self.tokens)
        heads = size**2 * sum(len(layer.heads) for layer in maps.layers) <= _MOST
        found = {
            f"layer {number}": {"mean over heads": each[0].mean(dim=0)}
            | dict(zip(maps.labels(number), each[0] if heads else (), strict=heads))
            for number, each in enumerate(maps.weights)
        }
        flows = {f"discard {ratio:g}": ratio for ratio in DISCARD_RATIOS}
        first = [each[:1] for each in maps.weights]
        found["all, by rollout"] = {name: rollout(first, ratio)[0] for name, ratio in flows.items()}
        rows, columns = np.tril_indices(size)
        shares = [matrix.numpy()[rows, columns] for layer in found.values() for matrix in layer.values()]
        whole = (65535 * np.concatenate(shares)).round().astype("<u2")
        weights = base64.b64encode(whole.tobytes()).decode("ascii")
        return {
            "names": {name: list(each) for name, each in found.items()},
            "heads": heads,
            "weights": weights,
        }

    def _queries(self) -> dict[int, str]:
        return {at: f"query: token {at} ({self.tokens[at]})" for at in query_positions(len(self.tokens))}


def printable(token: str) -> str:
    """A token as it can be drawn: blanks and newlines as signs, what has no glyph as □, long ones cut."""
    shown = "".join(_PRINTED.get(letter) or (letter if _has_glyph(letter) else "□") for letter in token)
    shown = shown or "∅"
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


@cache
def _has_glyph(letter: str) -> bool:
    if unicodedata.category(letter)[0] in "CMZ":  # controls, marks that need a letter, exotic blanks
        return False
    return get_font(findfont(FontProperties(family=_FONT))).get_char_index(ord(letter)) != 0
