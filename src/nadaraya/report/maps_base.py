"""The common part of the figures of an image and of a text: which weights stand in which panel."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from nadaraya.errors import unknown_name
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import Query, query_position, query_rows, rollout, thinned
from nadaraya.report.page import pixels
from nadaraya.report.style import WEIGHTS, limits, number, sheet, span

#: discard ratios of the rollout (Kundu et al. 2026, section 7.2)
DISCARD_RATIOS = (0.0, 0.5, 0.9)
#: what `MapFigures.panels` gives, one list per layer; all layers at once for the rollout
PANELS = ("rollout", "heads", "queries", "layers", "matrices")
_NOTE = (
    "Weights off the diagonal as multiples of 1/N (1: as all tokens alike). Colours, shared by all: inferno, "
    "black at 0, yellow from {high} on (99th percentile). Over each: its largest."
)


@dataclass(frozen=True)
class Panel:
    """The weights of one query, to be drawn on the subject, or a matrix."""

    name: str  # what is shown: a head, a query, a layer
    # (N,) of all tokens, or a matrix of some, as multiples of 1/N: 1 is the weight that all tokens have alike
    weights: np.ndarray
    # position of a query that is marked, and whose own weight is not one of the map; default none
    query: int | None = None
    aside: str = ""  # what else there is to say; default nothing
    first: int = 0  # position of the first token that the map shows; default 0

    @property
    def seen(self) -> np.ndarray:
        """The weights that the colours show, without the query's own."""
        shown = self.weights[self.first :]
        return shown if self.query is None else np.delete(shown, self.query - self.first)

    @property
    def title(self) -> str:
        """The name and what else there is to say."""
        return f"{self.name}, {self.aside}" if self.aside else self.name


class MapFigures(ABC):
    """The figures of the first image or text of `maps`; layers and heads count from 0."""

    kind: str  # "image" or "text"
    _low: float  # percentile of the weights at the lower end of the colours; 0 for a weight of 0

    def __init__(self, maps: AttentionMaps, query: Query | None = None) -> None:
        self.maps = maps
        self.query = query_position(maps, query)
        # (H, N) of each layer
        self._rows = [self._multiples(query_rows(each[:1], maps, self.query)[0]) for each in maps.weights]
        self.mean_matrices = [self._multiples(each[0].mean(dim=0)) for each in maps.weights]

    def panels(self, kind: str, layer: int = 0) -> list[Panel]:
        """The maps of one kind in one layer (counted from 0).

        Args:
            kind: "rollout", "heads", "queries", "layers" (the mean over heads), or "matrices" of all heads,
                with zeros on the diagonal and at most 50 tokens (Kundu et al. 2026, section 7.7).
            layer: which; the rollout, of all layers, has one list only.

        Returns:
            The panels in the order in which they are drawn.

        Raises:
            InputError: an unknown kind.
        """
        if kind == "rollout":
            return self._rollout_panels
        if kind == "heads":
            rows = zip(self.maps.labels(layer), self._rows[layer], strict=True)
            return [self._panel(label, row, self._own, self._aside(row)) for label, row in rows]
        if kind == "layers":
            return [self._panel(f"layer {layer}", self._rows[layer].mean(axis=0), self._own)]
        if kind == "matrices":
            at = thinned(self.maps.num_tokens)
            thin = self.maps.weights[layer][0].numpy()[:, at[:, None], at] * self.maps.num_tokens
            thin = thin * (1 - np.eye(len(at)))
            return [Panel(label, head) for label, head in zip(self.maps.labels(layer), thin, strict=True)]
        if kind != "queries":
            raise unknown_name("kind", kind, PANELS)
        matrix = self.mean_matrices[layer]
        return [self._panel(name, matrix[at], at) for at, name in self._queries().items()]

    def scale(self, kind: str) -> Normalize:
        """The ends of the colours that all panels of a kind share, in all layers, as multiples of 1/N."""
        return self._scales[kind]

    @cached_property
    def _scales(self) -> dict[str, Normalize]:
        scales = {}
        for kind in PANELS:
            layers = range(1 if kind == "rollout" else len(self._rows))
            found = [panel.seen for layer in layers for panel in self.panels(kind, layer)]
            scales[kind] = limits(found, 0 if kind == "matrices" else self._low)
        # The diagonal, largest with a Gaussian kernel, has the end colour: it does not darken the rest.
        off_diagonal = [each[~np.eye(len(each), dtype=bool)] for each in self.mean_matrices]
        return {**scales, "mean matrices": limits(off_diagonal, 0)}

    def tiles(self, kind: str, layer: int = 0) -> list[dict[str, Any]]:
        """The panels of a kind as the page shows them, for its template."""
        ends = self.scale(kind)
        found = [
            {"title": panel.title, "span": span(panel.seen), **self._tile(panel, ends)}
            for panel in self.panels(kind, layer)
        ]
        if kind == "layers":
            at = thinned(self.maps.num_tokens)
            matrix = self.mean_matrices[layer][at[:, None], at]
            found[0]["matrix"] = pixels(matrix, self.scale("mean matrices"))
        return found

    def _tile(self, panel: Panel, ends: Normalize) -> dict[str, Any]:
        """A matrix as the page shows it, for the template."""
        return {"plain": pixels(panel.weights, ends)}

    @cached_property
    def _rollout_panels(self) -> list[Panel]:
        panels = []
        for ratio in DISCARD_RATIOS:
            flow = rollout([weights[:1] for weights in self.maps.weights], ratio)
            row = self._multiples(query_rows(flow, self.maps, self.query)[0])
            panels.append(self._panel(f"discard {ratio:g}", row, self._own))
        return panels

    @cached_property
    def _own(self) -> int | None:
        """The position of the query where it is one token that the figures show."""
        position = self.query
        if position == "last":
            padding = self.maps.padding
            position = self.maps.num_tokens - 1 if padding is None else int((~padding[0]).nonzero().max())
        return position if isinstance(position, int) and position >= self.maps.num_prefix_tokens else None

    def _panel(self, name: str, row: np.ndarray, query: int | None, aside: str = "") -> Panel:
        """The weights of a query; the own one beside the name where nothing else is."""
        own = "" if query is None else f"self {number(float(row[query]))}"
        return Panel(name, row, query, aside or own, self.maps.num_prefix_tokens)

    def matrix(self, layer: int, row: int) -> Figure:
        """The matrix of one head, which stands in this row of its layer (Kundu et al. 2026, section 7.7)."""
        names, panel = self.token_labels(thinned(self.maps.num_tokens)), self.panels("matrices", layer)[row]
        with sheet(5.4, 4.4) as figure:
            axes = figure.subplots()
            image = axes.imshow(
                panel.weights, cmap=WEIGHTS, norm=self.scale("matrices"), interpolation="nearest"
            )
            if max(map(len, names)) <= 2:  # characters: all of them fit, upright
                axes.set_xticks(range(len(names)), names, fontsize=5.5)
                axes.set_yticks(range(len(names)), names, fontsize=5.5)
                axes.tick_params(length=0)
            else:
                ticks = thinned(len(names), len(names) if len(names) <= 20 else 10).tolist()
                axes.set_xticks(ticks, [names[tick] for tick in ticks], rotation=90)
                axes.set_yticks(ticks, [names[tick] for tick in ticks])
            axes.set(xlabel="key", ylabel="query")
            axes.set_title(f"{panel.name}: weights off the diagonal × N")
            figure.colorbar(image, extend="max").outline.set_visible(False)
        return figure

    def matrices(self) -> Figure:
        """All matrices on one sheet: one row per head, one column per layer."""
        heads, ends = [layer.heads for layer in self.maps.layers], self.scale("matrices")
        rows = 1 + max(map(max, heads))
        note = _NOTE.format(high=number(ends.vmax or 0))
        with sheet(1.3 * len(heads) + 0.7, 1.5 * rows + 0.8, note) as figure:
            axes = figure.subplots()
            for layer, there in enumerate(heads):
                for head, panel in zip(there, self.panels("matrices", layer), strict=True):
                    place = (layer - 0.46, layer + 0.46, head + 0.46, head - 0.36)
                    axes.imshow(panel.weights, cmap=WEIGHTS, norm=ends, extent=place, interpolation="nearest")
                    largest = number(float(panel.weights.max()))
                    axes.text(layer, head - 0.38, largest, fontsize=8, ha="center", va="bottom")
            axes.spines[:].set_visible(False)
            axes.set_xticks(range(len(heads)), [f"layer {layer}" for layer in range(len(heads))], fontsize=8)
            axes.set_yticks(range(rows), [f"head {head}" for head in range(rows)], fontsize=8)
            axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
            axes.set(xlim=(-0.5, len(heads) - 0.5), ylim=(rows - 0.5, -0.56), aspect="auto")
        return figure

    def _multiples(self, weights: Tensor) -> np.ndarray:
        return weights.numpy() * self.maps.num_tokens

    def _aside(self, row: np.ndarray) -> str:
        """An addition to the title of a head of (N,) multiples of 1/N in place of its own weight."""
        return ""

    @property
    @abstractmethod
    def query_name(self) -> str:
        """The query in words."""

    @abstractmethod
    def token_labels(self, positions: np.ndarray) -> list[str]:
        """Short names of the tokens at some positions, for the axes of a matrix."""

    @abstractmethod
    def _queries(self) -> dict[int, str]:
        """Positions of four queries, with their names."""
