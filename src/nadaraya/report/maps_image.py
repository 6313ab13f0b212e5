"""Attention over an image: maps on the patch grid, and laid over the picture (document D, section 7)."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import on_grid, query_patches, query_rows, rollout
from nadaraya.report.maps_style import (
    ALPHA,
    QUERY,
    WEIGHTS,
    bare,
    colours,
    enlarged,
    limits,
    number,
    scaled,
    share,
    sheet,
    span,
)

_SIDE = 1.75  # inches of a square panel
_MOST_A_ROW = 6
_LEAST_PIXELS = 224  # small pictures are drawn at this size
_NOTE = "Colours: inferno, from a panel's smallest weight (black) to its largest (yellow), both over it."


class ImageFigures:
    """The figures of one image.

    Args:
        maps: of a vision model; the first image of the batch is drawn.
        image: (height, width, 3), values 0 … 1: the picture as the model saw it, without its normalisation.
        query: the query whose weights are mapped, as for `query_rows`; default the one that the model reads.

    Raises:
        InputError: the tokens are no patches of a known grid, or an unknown query.
    """

    def __init__(self, maps: AttentionMaps, image: np.ndarray, query: str | int | None = None) -> None:
        if maps.grid is None:
            raise InputError("the tokens of this model are not a known grid of patches: no maps over it")
        self.maps, self.grid = maps, maps.grid
        self.query = maps.reads if query is None else query
        self._image = image
        scale = max(1, -(-_LEAST_PIXELS // max(image.shape[:2])))
        self._large = image.repeat(scale, axis=0).repeat(scale, axis=1)
        self._shape = _SIDE, _SIDE * image.shape[0] / image.shape[1]
        self._rows = [query_rows(weights[:1], maps, self.query)[0] for weights in maps.weights]  # (H, N) each

    @property
    def query_name(self) -> str:
        """The query in words."""
        if self.query == "cls":
            return "the class token (CLS)"
        if self.query == "mean":
            return "the average over all patch queries"
        position = self.maps.num_tokens - 1 if self.query == "last" else int(self.query)
        patch = position - self.maps.num_prefix_tokens
        if patch < 0:
            return f"prefix token {position}"
        return "the patch at row {}, column {}".format(*divmod(patch, self.grid[1]))

    def rollout(self, ratios: Sequence[float]) -> Figure:
        """Rollout of the query at several discard ratios: on the grid and over the image (section 7.2)."""
        with sheet(2, 2 + len(ratios), *self._shape, note=_NOTE) as page:
            self._draw_image(page.panel(0, 0, 2, 2))
            for column, ratio in enumerate(ratios, start=2):
                flow = rollout([weights[:1] for weights in self.maps.weights], ratio)
                grid = self._on_grid(query_rows(flow, self.maps, self.query)[0])
                ends = limits(grid)
                self._draw_grid(page.panel(0, column), grid, ends, f"discard {ratio:g}\n{span(ends)}")
                self._draw_overlay(page.panel(1, column), grid, ends, "over the image")
        return page.figure

    def heads(self, layer: int) -> Figure:
        """The query's map of every head of a layer (section 7.4); layers are counted from 0 here."""
        rows = self._rows[layer]
        bands = -(-len(rows) // _MOST_A_ROW)
        per_band = -(-len(rows) // bands)
        with sheet(2 * bands, 2 + per_band, *self._shape, note=_NOTE) as page:
            self._draw_image(page.panel(0, 0, 2, 2), f"layer {layer + 1}: the image")
            for head, row in enumerate(rows):
                band, column = divmod(head, per_band)
                grid = self._on_grid(row)
                ends = limits(grid)
                title = f"head {head + 1}, patches {share(float(grid.sum()))}\n{span(ends)}"
                self._draw_grid(page.panel(2 * band, 2 + column), grid, ends, title)
                self._draw_overlay(page.panel(2 * band + 1, 2 + column), grid, ends, "over the image")
        return page.figure

    def queries(self, layer: int) -> Figure:
        """Where the four query patches of a layer look, mean over heads (section 7.5, equation 15)."""
        patches = query_patches(self.grid)
        fused = self.maps.weights[layer][0].mean(dim=0)
        note = f"{_NOTE} The query's own weight (self) has no part in them."
        with sheet(2, 2 + len(patches), *self._shape, note=note) as page:
            picture = page.panel(0, 0, 2, 2)
            self._draw_image(picture, f"layer {layer + 1}: the queries")
            for column, (y, x) in enumerate(patches, start=2):
                place = y * self.grid[1] + x
                grid = self._on_grid(fused[self.maps.num_prefix_tokens + place])
                ends = limits(grid, leaving_out=place)
                title = f"({y}, {x}), self {number(grid[y, x])}\n{span(ends)}"
                raw, over = page.panel(0, column), page.panel(1, column)
                self._draw_grid(raw, grid, ends, title)
                self._draw_overlay(over, grid, ends, "over the image")
                raw.add_patch(_box(x - 0.5, y - 0.5, 1, 1))
                for axes in (over, picture):
                    self._box_patch(axes, y, x)
        return page.figure

    def evolution(self) -> Figure:
        """A row a layer: mean attention matrix, the query's map, and it over the image (section 7.6)."""
        layers = len(self._rows)
        with sheet(layers, 3, *self._shape, left=0.75, title=0.3, note=_NOTE) as page:
            for layer, row in enumerate(self._rows):
                first = layer == 0
                matrix = self.maps.weights[layer][0].mean(dim=0).numpy()
                panel = page.panel(layer, 0)
                ends = limits(matrix)
                panel.imshow(matrix, cmap=WEIGHTS, vmin=ends[0], vmax=ends[1], interpolation="nearest")
                panel.set_title(("all tokens: " if first else "") + span(ends))
                panel.set_ylabel(f"layer {layer + 1}", fontsize=9, labelpad=6)
                panel.set_xticks([])
                panel.set_yticks([])
                grid = self._on_grid(row.mean(dim=0))
                ends = limits(grid)
                self._draw_grid(page.panel(layer, 1), grid, ends, ("map: " if first else "") + span(ends))
                self._draw_overlay(page.panel(layer, 2), grid, ends, "over the image" if first else "")
        return page.figure

    def token_labels(self, positions: np.ndarray) -> list[str]:
        """Names of tokens for the axes of a matrix: CLS, registers (reg), patches by row and column."""
        names = []
        for position in positions.tolist():
            patch = position - self.maps.num_prefix_tokens
            if patch >= 0:
                names.append("{},{}".format(*divmod(patch, self.grid[1])))
            else:
                names.append("CLS" if position == 0 and self.maps.class_token else f"reg {position}")
        return names

    def _on_grid(self, row: torch.Tensor) -> np.ndarray:
        return on_grid(row, self.maps).numpy()

    def _draw_image(self, axes: Axes, title: str = "the image") -> None:
        axes.imshow(self._large, extent=self._extent, interpolation="nearest")
        axes.set_title(title)
        bare(axes)

    def _draw_grid(self, axes: Axes, grid: np.ndarray, ends: tuple[float, float], title: str) -> None:
        axes.imshow(grid, cmap=WEIGHTS, vmin=ends[0], vmax=ends[1], interpolation="nearest", aspect="auto")
        axes.set_title(title)
        bare(axes)

    def _draw_overlay(self, axes: Axes, grid: np.ndarray, ends: tuple[float, float], title: str) -> None:
        large = enlarged(grid, *self._large.shape[:2])
        over = ALPHA * colours(scaled(large, ends)) + (1 - ALPHA) * self._large
        axes.imshow(over, extent=self._extent, interpolation="nearest")
        axes.set_title(title)
        bare(axes)

    @property
    def _extent(self) -> tuple[float, float, float, float]:
        height, width = self._image.shape[:2]
        return (0, width, height, 0)

    def _box_patch(self, axes: Axes, y: int, x: int) -> None:
        height, width = self._image.shape[0] / self.grid[0], self._image.shape[1] / self.grid[1]
        axes.add_patch(_box(x * width, y * height, width, height))


def _box(x: float, y: float, width: float, height: float) -> Rectangle:
    return Rectangle((x, y), width, height, fill=False, edgecolor=QUERY, linewidth=1.6)
