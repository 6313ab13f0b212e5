"""The common part of the figures of an image and of a text: which weights stand in which panel."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from nadaraya.errors import unknown_name
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import Query, query_position, query_rows, rollout
from nadaraya.report.style import WEIGHTS, limits, number, sheet, span

#: discard ratios of the rollout (Kundu et al. 2026, section 7.2)
DISCARD_RATIOS = (0.0, 0.5, 0.9)
#: what `MapFigures.panels` gives, one list per layer; all layers at once for the rollout
PANELS = ("rollout", "heads", "queries", "layers")


@dataclass(frozen=True)
class Panel:
    """The weights of one query, to be drawn on the subject.

    Attributes:
        name: what is shown: a head, a query, a layer.
        weights: (N,) of all tokens, as multiples of 1/N: 1 is the weight that all tokens have alike.
        query: position of a query that is marked, and whose own weight is not one of the map; default none.
        aside: what else there is to say; default nothing.
    """

    name: str
    weights: np.ndarray
    query: int | None = None
    aside: str = ""

    @property
    def others(self) -> np.ndarray:
        """The weights without the query's own."""
        return self.weights if self.query is None else np.delete(self.weights, self.query)

    @property
    def title(self) -> str:
        """The name and what else there is to say."""
        return f"{self.name}, {self.aside}" if self.aside else self.name


class MapFigures(ABC):
    """The figures of the first image or text of `maps`; layers and heads count from 0."""

    kind: str  # "image" or "text"
    _note: str
    _break: str  # between a title and the range of weights
    _widths: tuple[int, int, int]  # of the columns of `evolution`, relative
    _row: tuple[float, float]  # inches of a row of `evolution`
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
            kind: "rollout", "heads", "queries" or "layers" (the mean over heads).
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
            return [Panel(label, row, self._own, self._aside(row)) for label, row in rows]
        if kind == "layers":
            return [self._of_query(f"layer {layer}", self._rows[layer].mean(axis=0))]
        if kind != "queries":
            raise unknown_name("kind", kind, PANELS)
        matrix = self.mean_matrices[layer]
        return [Panel(name, matrix[at], at, _self(matrix[at], at)) for at, name in self._queries().items()]

    def scale(self, kind: str) -> Normalize:
        """The ends of the colours that all panels of a kind share, in all layers, as multiples of 1/N."""
        return self._scales[kind]

    @cached_property
    def _scales(self) -> dict[str, Normalize]:
        scales = {}
        for kind in PANELS:
            layers = range(1 if kind == "rollout" else len(self._rows))
            found = [self.seen(panel) for layer in layers for panel in self.panels(kind, layer)]
            scales[kind] = limits(found, self._low)
        # The diagonal, largest with a Gaussian kernel, has the end colour: it does not darken the rest.
        off_diagonal = [each[~np.eye(len(each), dtype=bool)] for each in self.mean_matrices]
        return {**scales, "mean matrices": limits(off_diagonal, 0)}

    @cached_property
    def _rollout_panels(self) -> list[Panel]:
        panels = []
        for ratio in DISCARD_RATIOS:
            flow = rollout([weights[:1] for weights in self.maps.weights], ratio)
            row = self._multiples(query_rows(flow, self.maps, self.query)[0])
            panels.append(self._of_query(f"discard {ratio:g}", row))
        return panels

    @cached_property
    def _own(self) -> int | None:
        """The position of the query where it is one token that the figures show."""
        position = self.query
        if position == "last":
            padding = self.maps.padding
            position = self.maps.num_tokens - 1 if padding is None else int((~padding[0]).nonzero().max())
        return position if isinstance(position, int) and position >= self.maps.num_prefix_tokens else None

    def _of_query(self, name: str, row: np.ndarray) -> Panel:
        return Panel(name, row, self._own, "" if self._own is None else _self(row, self._own))

    def rollout(self) -> Figure:
        """Rollout of the query at several discard ratios (Kundu et al. 2026, section 7.2)."""
        return self._figure(self.panels("rollout"), self.scale("rollout"))

    def heads(self, layer: int) -> Figure:
        """The query's map of every head of a layer (Kundu et al. 2026, section 7.4)."""
        return self._figure(self.panels("heads", layer), self.scale("heads"), f"layer {layer}")

    def queries(self, layer: int) -> Figure:
        """The maps of four queries of a layer, mean over heads (Kundu et al. 2026, eq. 15)."""
        return self._figure(self.panels("queries", layer), self.scale("queries"), f"layer {layer}")

    def evolution(self) -> Figure:
        """One row per layer: mean attention matrix, then the query's map (Kundu et al. 2026, section 7.6)."""
        layers, (width, height) = len(self._rows), self._row
        ends, shared = self.scale("mean matrices"), self.scale("layers")
        with sheet(width, layers * height + 0.4, self._noted(shared)) as figure:
            grid = figure.subplots(layers, 3, squeeze=False, width_ratios=self._widths)
            for layer, axes in enumerate(grid):
                axes[0].imshow(self.mean_matrices[layer], cmap=WEIGHTS, norm=ends, interpolation="nearest")
                axes[0].set(xticks=[], yticks=[], title=f"all tokens, yellow from {number(ends.vmax or 0)}")
                axes[0].set_ylabel(f"layer {layer}", fontsize=9)
                (panel,) = self.panels("layers", layer)
                self._draw_layer(axes[1], axes[2], panel, shared)
        return figure

    def _multiples(self, weights: Tensor) -> np.ndarray:
        return weights.numpy() * self.maps.num_tokens

    def _noted(self, ends: Normalize) -> str:
        return self._note.format(low=number(ends.vmin or 0), high=number(ends.vmax or 0))

    def _heading(self, panel: Panel) -> str:
        return panel.title + self._break + span(self.seen(panel))

    def _aside(self, row: np.ndarray) -> str:
        """An addition to the title of a head of (N,) multiples of 1/N besides their range."""
        return "" if self._own is None else _self(row, self._own)

    def seen(self, panel: Panel) -> np.ndarray:
        """The weights of a panel that its colours show, without the query's own."""
        return panel.others

    @property
    @abstractmethod
    def query_name(self) -> str:
        """The query in words."""

    @abstractmethod
    def token_labels(self, positions: np.ndarray) -> list[str]:
        """Short names of the tokens at some positions, for the axes of a matrix."""

    @abstractmethod
    def tile(self, panel: Panel, ends: Normalize) -> dict[str, Any]:
        """A panel as the page shows it, for the template."""

    @abstractmethod
    def _figure(self, panels: Sequence[Panel], ends: Normalize, heading: str = "") -> Figure:
        """One figure of some maps on the subject."""

    @abstractmethod
    def _draw_layer(self, plain: Axes, on_subject: Axes, panel: Panel, ends: Normalize) -> None:
        """The weights of a layer by themselves, and on the subject."""

    @abstractmethod
    def _queries(self) -> dict[int, str]:
        """Positions of four queries, with their names."""


def _self(row: np.ndarray, position: int) -> str:
    return f"self {number(float(row[position]))}"
