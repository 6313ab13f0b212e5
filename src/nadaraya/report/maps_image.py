"""Attention over an image: maps on the patch grid, and over the picture (Kundu et al. 2026, section 7)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import Query, query_patches
from nadaraya.report.maps_base import MapFigures, Panel
from nadaraya.report.page import over, pixels
from nadaraya.report.style import OVER_IMAGE, QUERY, WEIGHTS, number, sheet, span

_SIDE = 1.85  # inches of a square panel


class ImageFigures(MapFigures):
    """The figures of one image.

    Args:
        maps: of a vision model; the first image of the batch is drawn.
        image: (height, width, 3), values 0 … 1: the picture as the model saw it, without its normalisation.
        query: the query whose weights are mapped, as for `query_rows`; default the one that the model reads.

    Raises:
        InputError: the tokens are no patches of a known grid, or an unknown query.

    >>> import numpy as np, torch
    >>> from nadaraya.report.maps_image import ImageFigures
    >>> from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
    >>> layer = LayerMaps("attn", torch.full((1, 2, 4, 4), 0.25), bandwidth=None, error=0.0)
    >>> maps = AttentionMaps((layer,), output=None, reads="mean", grid=(2, 2))
    >>> figures = ImageFigures(maps, np.zeros((8, 8, 3)))
    >>> len(figures.heads(0).axes)  # the image, and two panels per head
    5
    """

    kind = "image"
    _note = (
        "Weights as multiples of 1/N (1: as all tokens alike), smallest and largest above each panel. "
        "Colours, shared by all layers: black, or clear over the image, up to {low}; yellow from {high} on "
        "(1st and 99th percentile)."
    )
    _low = 1.0

    def __init__(self, maps: AttentionMaps, image: np.ndarray, query: Query | None = None) -> None:
        if maps.grid is None:
            raise InputError("the tokens of this model are not a known grid of patches: no maps over it")
        super().__init__(maps, query)
        self.grid = maps.grid
        height, width = image.shape[:2]
        self.image, self._extent = image, (0, width, height, 0)
        self._patch = height / self.grid[0], width / self.grid[1]
        self._height = _SIDE * height / width
        self._row = 3 * _SIDE + 0.4, self._height + 0.3

    @property
    def query_name(self) -> str:
        if self.query == "cls":
            return "the class token (CLS)"
        if self.query == "mean":
            return "the average over all patch queries"
        position = self.maps.num_tokens - 1 if self.query == "last" else int(self.query)
        row, column = self._patch_at(position)
        return f"prefix token {position}" if row < 0 else f"the patch at row {row}, column {column}"

    def token_labels(self, positions: np.ndarray) -> list[str]:
        """Names of tokens for the axes of a matrix: CLS, registers (reg), patches by row and column."""

        def label(position: int) -> str:
            row, column = self._patch_at(position)
            before = "CLS" if position == 0 and self.maps.class_token else f"reg {position}"
            return before if row < 0 else f"{row},{column}"

        return [label(position) for position in positions.tolist()]

    def _tile(self, panel: Panel, ends: Normalize) -> dict[str, Any]:
        """Pictures of a map, one pixel per patch, and one to lie over the photograph; the weights as text."""
        if panel.weights.ndim == 2:
            return super()._tile(panel, ends)
        grid, box = self._on_grid(panel), None
        if panel.query is not None:
            row, column = self._patch_at(panel.query)
            box = (100 * column / grid.shape[1], 100 * row / grid.shape[0])
        return {
            "plain": pixels(grid, ends),
            "over": over(grid, ends),
            "grid": grid.shape,
            "weights": " ".join(number(float(weight)) for weight in grid.ravel()),
            "box": box,  # left and top of the query's patch, in percent
        }

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
            grid = figure.subplots(layers, 3, squeeze=False)
            for layer, axes in enumerate(grid):
                axes[0].imshow(self.mean_matrices[layer], cmap=WEIGHTS, norm=ends, interpolation="nearest")
                axes[0].set(xticks=[], yticks=[], title=f"all tokens, yellow from {number(ends.vmax or 0)}")
                axes[0].set_ylabel(f"layer {layer}", fontsize=9)
                (panel,) = self.panels("layers", layer)
                self._draw_layer(axes[1], axes[2], panel, shared)
        return figure

    def _figure(self, panels: Sequence[Panel], ends: Normalize, heading: str = "") -> Figure:
        """The picture, and beside it each map on the grid and, under that, over the picture."""
        bands = -(-len(panels) // 6)
        columns = -(-len(panels) // bands)
        mosaic = np.full((2 * bands, 2 + columns), "", dtype=object)
        mosaic[:2, :2] = "image"
        for place in range(len(panels)):
            band, column = divmod(place, columns)
            mosaic[2 * band : 2 * band + 2, 2 + column] = f"grid {place}", f"overlay {place}"
        size = _SIDE * (2 + columns) + 0.3, 2 * bands * (self._height + 0.4) + 0.4
        boxed = panels[0].query is not None
        note = self._noted(ends) + " The query's own weight (self) has no part in them." * boxed
        with sheet(*size, note, heading) as figure:
            axes = figure.subplot_mosaic(mosaic.tolist(), empty_sentinel="")
            self._draw_image(axes["image"], "the queries" if boxed else "the image")
            for place, panel in enumerate(panels):
                self._draw_layer(axes[f"grid {place}"], axes[f"overlay {place}"], panel, ends)
                if panel.query is not None:
                    self._box(axes["image"], panel.query, self._patch)
        return figure

    def _noted(self, ends: Normalize) -> str:
        return self._note.format(low=number(ends.vmin or 0), high=number(ends.vmax or 0))

    def _draw_layer(self, plain: Axes, on_subject: Axes, panel: Panel, ends: Normalize) -> None:
        """A map on the patch grid, and over the picture, clear where the weights are small."""
        grid = self._on_grid(panel)
        plain.imshow(grid, cmap=WEIGHTS, norm=ends, interpolation="nearest")
        plain.set_aspect(self._patch[0] / self._patch[1])
        plain.set_title(f"{panel.title}\n{span(panel.seen)}")
        plain.set_axis_off()
        self._draw_image(on_subject, "over the image")
        # matplotlib's name for the bicubic interpolation that passes through the values ("bicubic" smooths)
        on_subject.imshow(grid, cmap=OVER_IMAGE, norm=ends, extent=self._extent, interpolation="catrom")
        if panel.query is not None:
            self._box(plain, panel.query, (1, 1), corner=-0.5)
            self._box(on_subject, panel.query, self._patch)

    def _draw_image(self, axes: Axes, title: str) -> None:
        axes.imshow(self.image, extent=self._extent, interpolation="nearest")
        axes.set_title(title)
        axes.set_axis_off()

    def _box(self, axes: Axes, query: int, patch: tuple[float, float], corner: float = 0.0) -> None:
        row, column = self._patch_at(query)
        place = (column * patch[1] + corner, row * patch[0] + corner)
        axes.add_patch(Rectangle(place, patch[1], patch[0], fill=False, edgecolor=QUERY, linewidth=1.6))

    def _queries(self) -> dict[int, str]:
        return {
            self.maps.num_prefix_tokens + row * self.grid[1] + column: f"patch {row}, {column}"
            for row, column in query_patches(self.grid)
        }

    def _aside(self, row: np.ndarray) -> str:
        return f"patches {float(row[self.maps.num_prefix_tokens :].sum()) / self.maps.num_tokens:.1%}"

    def _patch_at(self, position: int) -> tuple[int, int]:
        """Row and column of a token; rows below 0 are prefix tokens."""
        return divmod(position - self.maps.num_prefix_tokens, self.grid[1])

    def _on_grid(self, panel: Panel) -> np.ndarray:
        """The weights of the patches, (rows, columns)."""
        return panel.weights[panel.first :].reshape(self.grid)
