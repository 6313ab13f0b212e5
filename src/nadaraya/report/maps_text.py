"""Attention over a text: tokens on the colours of their weights (document D, section 7, for texts)."""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import query_positions, query_rows, rollout
from nadaraya.report.maps_style import (
    ALPHA,
    QUERY,
    WEIGHTS,
    bare,
    colours,
    limits,
    number,
    readable_on,
    scaled,
    sheet,
    span,
)
from nadaraya.report.palette import COLOURS

_WIDTH = 9.0  # inches of a panel
_CELL = 0.19  # inches a line of text is high
_LETTERS = 64  # monospaced letters that a line has room for
_LONGEST = 8  # letters of a token that are shown
_FONT = "DejaVu Sans Mono"  # matplotlib brings it along
_NOTE = (
    "Colours: inferno, a panel's smallest weight dark, its largest yellow, both over it. · blank, ⏎ newline."
)
_PRINTED = {" ": "·", "\n": "⏎", "\t": "→", "\r": "←"}


class TextFigures:
    """The figures of one text, with the same names as those of an image.

    Args:
        maps: of a language model, with tokens; the first text of the batch is drawn.
        query: the query whose weights are mapped, as for `query_rows`; default the last token.

    Raises:
        InputError: the tokens are not known, or an unknown query.
    """

    def __init__(self, maps: AttentionMaps, query: str | int | None = None) -> None:
        if maps.tokens is None:
            raise InputError("the tokens of this text are not known: give capture_attention the tokenizer")
        self.maps = maps
        self.query = maps.reads if query is None else query
        self.tokens = [printable(token) for token in maps.tokens[0]]
        self._cell = max(map(len, self.tokens))
        self._columns = max(1, _LETTERS // self._cell)
        self._lines = -(-len(self.tokens) // self._columns)
        self._rows = [query_rows(weights[:1], maps, self.query)[0] for weights in maps.weights]  # (H, N) each

    @property
    def query_name(self) -> str:
        """The query in words."""
        if self.query == "mean":
            return "the average over all tokens"
        position = len(self.tokens) - 1 if self.query == "last" else int(self.query)
        last = ", the last" if position == len(self.tokens) - 1 else ""
        return f"token {position}{last} ({self.tokens[position]})"

    def rollout(self, ratios: Sequence[float]) -> Figure:
        """Rollout of the query at several discard ratios (section 7.2)."""
        with sheet(len(ratios), 1, *self._shape, title=0.3, note=_NOTE) as page:
            for row, ratio in enumerate(ratios):
                flow = rollout([weights[:1] for weights in self.maps.weights], ratio)
                weights = query_rows(flow, self.maps, self.query)[0].numpy()
                self._draw(page.panel(row, 0), weights, f"discard {ratio:g}")
        return page.figure

    def heads(self, layer: int) -> Figure:
        """The query's weights in every head of a layer (section 7.4); layers are counted from 0 here."""
        rows = self._rows[layer]
        with sheet(len(rows), 1, *self._shape, title=0.3, note=_NOTE) as page:
            for head, row in enumerate(rows):
                self._draw(page.panel(head, 0), row.numpy(), f"layer {layer + 1}, head {head + 1}")
        return page.figure

    def queries(self, layer: int) -> Figure:
        """Where four tokens of a layer look, mean over heads (section 7.5, equation 15)."""
        positions = query_positions(len(self.tokens))
        fused = self.maps.weights[layer][0].mean(dim=0)
        note = f"{_NOTE} The boxed query's own weight (self) has no part in them."
        with sheet(len(positions), 1, *self._shape, title=0.3, note=note) as page:
            for row, position in enumerate(positions):
                weights = fused[position].numpy()
                title = f"layer {layer + 1}, token {position}, self {number(weights[position])}"
                self._draw(page.panel(row, 0), weights, title, position)
        return page.figure

    def evolution(self) -> Figure:
        """A row a layer: mean matrix, the query's weights by position and on the text (section 7.6)."""
        layers = len(self._rows)
        height = max(1.7, self._shape[1])
        with sheet(layers, 7, 1.7, height, left=0.75, title=0.3, bottom=0.25, note=_NOTE) as page:
            for layer, row in enumerate(self._rows):
                matrix, mean = self.maps.weights[layer][0].mean(dim=0).numpy(), row.mean(dim=0).numpy()
                panel, ends = page.panel(layer, 0), limits(matrix)
                panel.imshow(matrix, cmap=WEIGHTS, vmin=ends[0], vmax=ends[1], interpolation="nearest")
                panel.set_title(f"all tokens: {span(ends)}" if layer == 0 else span(ends))
                panel.set_ylabel(f"layer {layer + 1}", fontsize=9, labelpad=6)
                panel.set_xticks([])
                panel.set_yticks([])
                self._draw_profile(page.panel(layer, 1, columns=2), mean)
                self._draw(page.panel(layer, 3, columns=4), mean, "on the text")
        return page.figure

    def token_labels(self, positions: np.ndarray) -> list[str]:
        """The tokens at some positions, for the axes of a matrix."""
        return [self.tokens[position] for position in positions.tolist()]

    @property
    def _shape(self) -> tuple[float, float]:
        return _WIDTH, _CELL * self._lines

    def _draw_profile(self, axes: Axes, weights: np.ndarray) -> None:
        axes.fill_between(np.arange(weights.size), weights, step="mid", color=COLOURS["blue"][0], linewidth=0)
        axes.set_xlim(-0.5, weights.size - 0.5)
        axes.set_ylim(0, 1.08 * weights.max())
        axes.set_yticks([])
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_title(f"weight by position, up to {number(float(weights.max()))}", loc="left")

    def _draw(self, axes: Axes, weights: np.ndarray, title: str, query: int | None = None) -> None:
        """The text in lines, each token on the colour of its weight."""
        ends = limits(weights, leaving_out=query)
        shades = ALPHA * colours(scaled(weights, ends)) + (1 - ALPHA)
        inches = axes.get_window_extent().width / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
        letters = self._cell * self._columns
        size = min(8.5, 0.95 * 72 * inches / letters / 0.602)  # a monospaced letter is 0.602 of its size wide
        for position, (token, shade) in enumerate(zip(self.tokens, shades, strict=True)):
            line, column = divmod(position, self._columns)
            later = query is not None and position > query and weights[position] == 0
            if not later:
                axes.add_patch(Rectangle((column, line), 1, 1, facecolor=shade, linewidth=0))
            axes.text(
                column + 0.5,
                line + 0.5,
                token,
                family=_FONT,
                fontsize=size,
                color=COLOURS["muted"][0] if later else readable_on(shade),
                ha="center",
                va="center_baseline",
                parse_math=False,
            )
        if query is not None:
            line, column = divmod(query, self._columns)
            axes.add_patch(
                Rectangle((column, line), 1, 1, fill=False, edgecolor=QUERY, linewidth=1.8, zorder=3)
            )
        axes.set_xlim(0, self._columns)
        axes.set_ylim(self._lines, 0)
        axes.set_title(f"{title}: {span(ends)}", loc="left")
        bare(axes)


def printable(token: str) -> str:
    """A token as it can be drawn: blanks and newlines as signs, what has no glyph as □, long ones cut.

    Args:
        token: the characters of a token.
    """
    shown = "".join(_PRINTED.get(letter) or (letter if _has_glyph(letter) else "□") for letter in token)
    shown = shown or "∅"
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


@cache
def _has_glyph(letter: str) -> bool:
    if unicodedata.category(letter)[0] in "CMZ":  # controls, marks that need a letter, exotic blanks
        return False
    return get_font(findfont(FontProperties(family=_FONT))).get_char_index(ord(letter)) != 0
