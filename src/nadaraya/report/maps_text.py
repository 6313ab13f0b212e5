"""Attention over a text: tokens on the colours of their weights (Kundu et al. 2026, section 7, for texts)."""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import Query, query_positions
from nadaraya.report.maps_base import MapFigures, Panel
from nadaraya.report.palette import COLOURS
from nadaraya.report.style import QUERY, TOKENS, number, readable_on, sheet

_WIDTH = 9.0  # inches of a figure
_LINE = 0.19  # inches a line of text is high
_LETTERS = 64  # monospaced letters per line
_LONGEST = 8  # letters of a token that are shown
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
    >>> len(figures.heads(0).axes)  # one panel per head
    2
    """

    kind = "text"
    _note = (
        "Weights as multiples of 1/N (1: as all tokens alike), smallest and largest above each panel. "
        "Colours, shared by all layers: white at {low}, the strongest from {high} on (99th percentile). "
        "· blank, ⏎ newline."
    )
    _low = 0.0
    _break = ": "
    _widths = (2, 3, 6)

    def __init__(self, maps: AttentionMaps, query: Query | None = None) -> None:
        if maps.tokens is None:
            raise InputError("the tokens of this text are not known: give capture_attention the tokenizer")
        super().__init__(maps, query)
        self.tokens = [printable(token) for token in maps.tokens[0]]
        self._columns = max(1, _LETTERS // max(map(len, self.tokens)))
        self._lines = -(-len(self.tokens) // self._columns)
        self._row = 1.5 * _WIDTH, max(2.1, _LINE * self._lines + 0.4)

    @property
    def query_name(self) -> str:
        if self.query == "mean":
            return "the average over all tokens"
        position = len(self.tokens) - 1 if self.query == "last" else int(self.query)
        last = ", the last" if position == len(self.tokens) - 1 else ""
        return f"token {position}{last} ({self.tokens[position]})"

    def token_labels(self, positions: np.ndarray) -> list[str]:
        return [self.tokens[position] for position in positions.tolist()]

    def _tile(self, panel: Panel, ends: Normalize) -> dict[str, Any]:
        """A shaded text: for each token how strong its colour is (0 to 1), its weight, its role."""
        roles = np.full(len(self.tokens), "", dtype=object)
        if panel.query is not None:  # "later": what the query cannot see
            roles[panel.query :] = np.where(panel.weights[panel.query :] == 0, "later", "")
            roles[panel.query] = "query"
        columns = (self.tokens, np.asarray(ends(panel.weights)).tolist(), panel.weights.tolist(), roles)
        tokens = [
            {"text": text, "share": share, "weight": number(weight), "role": role}
            for text, share, weight, role in zip(*columns, strict=True)
        ]
        return {"tokens": tokens}

    def _figure(self, panels: Sequence[Panel], ends: Normalize, heading: str = "") -> Figure:
        note = self._noted(ends)
        if panels[0].query is not None:
            note += " The boxed query's own weight (self) has no part in them."
        height = len(panels) * (_LINE * self._lines + 0.35) + 0.6
        with sheet(_WIDTH, height, note, heading) as figure:
            for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
                self._draw(axes, panel, ends)
        return figure

    def _draw_layer(self, plain: Axes, on_subject: Axes, panel: Panel, ends: Normalize) -> None:
        weights = panel.weights
        positions, colour = np.arange(weights.size), COLOURS["blue"][0]
        plain.fill_between(positions, weights, step="mid", color=colour, linewidth=0)
        plain.set_xlim(-0.5, weights.size - 0.5)
        plain.set_ylim(0, 1.08 * float(panel.seen.max()) or 1.0)
        plain.set_yticks([])
        plain.spines["left"].set_visible(False)
        plain.set_title(f"weight by position, up to {number(float(panel.seen.max()))} × 1/N")
        self._draw(on_subject, panel, ends)

    def _queries(self) -> dict[int, str]:
        return {at: f"query: token {at} ({self.tokens[at]})" for at in query_positions(len(self.tokens))}

    def _draw(self, axes: Axes, panel: Panel, ends: Normalize) -> None:
        """The text in lines, each token on the colour of its weight; what a query cannot see has none."""
        for position, token in enumerate(self._tile(panel, ends)["tokens"]):
            line, column = divmod(position, self._columns)
            shade, later = np.array(TOKENS(token["share"]))[:3], token["role"] == "later"
            if not later:
                axes.add_patch(Rectangle((column, line), 1, 1, facecolor=shade, linewidth=0))
            options: dict[str, Any] = {"family": _FONT, "fontsize": 8.5, "parse_math": False, "ha": "center"}
            text = axes.text(column + 0.5, line + 0.5, token["text"], va="center_baseline", **options)
            text.set_color(COLOURS["muted"][0] if later else readable_on(shade))
            text.set_in_layout(False)  # it lies inside the axes
        if panel.query is not None:
            line, column = divmod(panel.query, self._columns)
            box = Rectangle((column, line), 1, 1, fill=False, edgecolor=QUERY, linewidth=1.8, zorder=3)
            axes.add_patch(box)
        axes.set(xlim=(0, self._columns), ylim=(self._lines, 0))
        axes.set_title(self._heading(panel), parse_math=False)
        axes.set_axis_off()


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
