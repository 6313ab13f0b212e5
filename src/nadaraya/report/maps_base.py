"""What the figures of an image and those of a text have in common: which weights stand in which panel."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import Query, query_position, query_rows, rollout
from nadaraya.report.style import WEIGHTS, limits, number, sheet, span


@dataclass(frozen=True)
class Panel:
    """The weights of one query, to be drawn on the subject."""

    title: str  # right before the limits of its colours
    weights: np.ndarray  # (N,), of all tokens
    query: int | None = None  # a query that is boxed and does not count among the limits


class MapFigures(ABC):
    """The figures of the first image or text of `maps`; layers and heads count from 0, in titles from 1."""

    kind: str  # "image" or "text"
    _note: str
    _break: str  # between a title and the limits
    _widths: tuple[int, int, int]  # of the columns of `evolution`, relative
    _row: tuple[float, float]  # inches of a row of `evolution`

    def __init__(self, maps: AttentionMaps, query: Query | None = None) -> None:
        self.maps = maps
        self.query = query_position(maps, query)
        # (H, N) of each layer
        self._rows = [query_rows(weights[:1], maps, self.query)[0].numpy() for weights in maps.weights]

    def rollout(self, ratios: Sequence[float]) -> Figure:
        """Rollout of the query at several discard ratios (Kundu et al. 2026, section 7.2)."""
        panels = []
        for ratio in ratios:
            flow = rollout([weights[:1] for weights in self.maps.weights], ratio)
            row = query_rows(flow, self.maps, self.query)[0].numpy()
            panels.append(Panel(f"discard {ratio:g}{self._break}", row))
        return self._figure(panels)

    def heads(self, layer: int) -> Figure:
        """The query's map of every head of a layer (Kundu et al. 2026, section 7.4)."""
        panels = []
        for head, row in enumerate(self._rows[layer]):
            panels.append(Panel(f"head {head + 1}{self._aside(row)}{self._break}", row))
        return self._figure(panels, f"layer {layer + 1}")

    def queries(self, layer: int) -> Figure:
        """Where four queries of a layer look, mean over heads (Kundu et al. 2026, eq. 15)."""
        fused = self.maps.weights[layer][0].mean(dim=0).numpy()
        panels = []
        for place in self._places():
            title = f"{self._name(place)}, self {number(fused[place, place])}{self._break}"
            panels.append(Panel(title, fused[place], place))
        return self._figure(panels, f"layer {layer + 1}")

    def evolution(self) -> Figure:
        """One row per layer: mean attention matrix, then the query's map (Kundu et al. 2026, section 7.6)."""
        layers, (width, height) = len(self._rows), self._row
        with sheet(width, layers * height + 0.4, self._note) as figure:
            grid = figure.subplots(layers, 3, squeeze=False, width_ratios=self._widths)
            for layer, (axes, row) in enumerate(zip(grid, self._rows, strict=True)):
                matrix = self.maps.weights[layer][0].mean(dim=0).numpy()
                ends = limits(matrix)
                axes[0].imshow(matrix, cmap=WEIGHTS, norm=ends, interpolation="nearest")
                axes[0].set_title(f"all tokens: {span(ends)}")
                axes[0].set_ylabel(f"layer {layer + 1}", fontsize=9)
                axes[0].set_xticks([])
                axes[0].set_yticks([])
                self._draw_layer(axes[1], axes[2], row.mean(axis=0))
        return figure

    @property
    @abstractmethod
    def query_name(self) -> str:
        """The query in words."""

    @abstractmethod
    def token_labels(self, positions: np.ndarray) -> list[str]:
        """Short names of the tokens at some positions, for the axes of a matrix."""

    @abstractmethod
    def _figure(self, panels: Sequence[Panel], heading: str = "") -> Figure:
        """One figure of some maps on the subject."""

    @abstractmethod
    def _draw_layer(self, plain: Axes, on_subject: Axes, weights: np.ndarray) -> None:
        """The (N,) weights of a layer by themselves, and on the subject."""

    @abstractmethod
    def _places(self) -> list[int]:
        """Positions of the four queries."""

    @abstractmethod
    def _name(self, position: int) -> str:
        """The token at a position, for a title."""

    def _aside(self, row: np.ndarray) -> str:
        """What a title says of a head's (N,) weights besides the limits of the colours."""
        return ""
