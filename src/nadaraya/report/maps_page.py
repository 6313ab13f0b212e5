"""The page of maps: small pictures and shaded words in place of the large figures of the files."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.colors import Normalize

from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import thinned
from nadaraya.report.maps_base import MapFigures, Panel
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_matrices import sigma_limits, thin_matrix
from nadaraya.report.maps_text import TextFigures
from nadaraya.report.style import number, span
from nadaraya.report.tiles import over, pixels


@dataclass(frozen=True)
class Token:
    """A word of a shaded text: how strong its colour is (0 to 1), its weight, what it is to the query."""

    text: str
    share: float
    weight: str
    role: str  # "query", "later" (the query cannot see it) or ""


@dataclass(frozen=True)
class Tile:
    """One panel of the page: pictures of an image, or shaded tokens of a text."""

    title: str
    span: str
    plain: Markup | None = None  # the map by itself, one pixel per patch
    over: Markup | None = None  # to lie over the photograph
    grid: tuple[int, int] = (0, 0)
    values: str = ""  # of the patches, as multiples of 1/N
    box: tuple[float, float] | None = None  # left and top of the query's patch, in percent
    tokens: Sequence[Token] = ()
    matrix: Markup | None = None  # the mean attention matrix of a layer


def tiles(figures: MapFigures, kind: str, layer: int = 0) -> list[Tile]:
    """The panels of `figures.panels(kind, layer)` as the page shows them."""
    ends = figures.scale(kind)
    matrix = None
    if kind == "layers":
        every = figures.maps.weights[layer][0].mean(dim=0).numpy() * figures.maps.num_tokens
        matrix = pixels(_thinned(every), figures.scale("mean matrices"))
    draw = _image_tile if isinstance(figures, ImageFigures) else _text_tile
    return [draw(figures, panel, ends, matrix) for panel in figures.panels(kind, layer)]  # type: ignore[arg-type]


def matrices(maps: AttentionMaps, layer: int, ends: Normalize) -> list[Tile]:
    """The matrix without diagonal of every head of a layer, between the `ends` of `matrix_scale`."""
    found = []
    for row, label in enumerate(maps.labels(layer)):
        matrix, _ = thin_matrix(maps, layer, row)
        found.append(Tile(label, span(matrix), plain=pixels(matrix, ends)))
    return found


def sigma_rows(sigma: np.ndarray, start: np.ndarray | None) -> list[list[tuple[str, float]]]:
    """For each head and layer σ as text, and its place on the axis of all (0 to 1), NaN as a dash."""
    low, high = np.log(sigma_limits(sigma, start))
    places = (np.log(sigma) - low) / (high - low)
    return [
        [("–", 0.0) if np.isnan(value) else (number(value), place) for value, place in zip(*row, strict=True)]
        for row in zip(sigma.tolist(), places.tolist(), strict=True)
    ]


def _image_tile(figures: ImageFigures, panel: Panel, ends: Normalize, matrix: Markup | None) -> Tile:
    grid = figures.on_grid(panel.weights)
    box = None
    if panel.query is not None:
        row, column = divmod(panel.query - figures.maps.num_prefix_tokens, grid.shape[1])
        box = (100 * column / grid.shape[1], 100 * row / grid.shape[0])
    return Tile(
        panel.title,
        span(figures.seen(panel)),
        pixels(grid, ends),
        over(grid, ends),
        (grid.shape[0], grid.shape[1]),
        " ".join(number(float(weight)) for weight in grid.ravel()),
        box,
        matrix=matrix,
    )


def _text_tile(figures: TextFigures, panel: Panel, ends: Normalize, matrix: Markup | None) -> Tile:
    tokens = []
    shares = np.asarray(ends(panel.weights)).tolist()
    for position, (text, share) in enumerate(zip(figures.tokens, shares, strict=True)):
        weight = float(panel.weights[position])
        later = panel.query is not None and position > panel.query and weight == 0
        role = "query" if position == panel.query else "later" if later else ""
        tokens.append(Token(text, share, number(weight), role))
    return Tile(panel.title, span(panel.others), tokens=tokens, matrix=matrix)


def _thinned(matrix: np.ndarray) -> np.ndarray:
    positions = thinned(len(matrix))
    return matrix[np.ix_(positions, positions)]
