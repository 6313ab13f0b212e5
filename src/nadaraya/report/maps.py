"""The six visualisations of Kundu et al. (2026), section 7: PNG files by kind, and one page of them all."""

import base64
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from nadaraya.errors import InputError, must_be
from nadaraya.files import write_file
from nadaraya.interpret.rollout import sigma_matrix
from nadaraya.report.maps_base import MapFigures
from nadaraya.report.maps_matrices import attention_matrix, bandwidth_heatmap, bandwidth_lines, contact_sheet
from nadaraya.report.page import render_page

DISCARD_RATIOS = (0.0, 0.5, 0.9)
RECORD = "maps.json"
#: the folders, in the order of sections 7.2 to 7.7
KINDS = ("rollout", "bandwidths", "heads", "queries", "layers", "matrices")
_DPI = 110
_QUALITY = 82  # of the page's copies (WebP); the files are lossless


@dataclass(frozen=True)
class Subject:
    """What the page says about what was looked at.

    Attributes:
        model: the model's name.
        given: the image's or the text's name.
        facts: (name, value) pairs: sizes, the normalisation, the checkpoint.
        predictions: (class or token, probability), likeliest first.

    >>> from nadaraya.report import Subject
    >>> Subject("gka", "cat.png", predictions=[("cat", 0.75), ("dog", 0.25)]).predictions[0]
    ('cat', 0.75)
    """

    model: str
    given: str
    facts: Sequence[tuple[str, str]] = ()
    predictions: Sequence[tuple[str, float]] = ()


def check_folder(out: Path, force: bool) -> None:
    """Refuse a folder that has other files than maps, or maps that `force` does not let be replaced."""
    if (out / RECORD).is_file():
        if not force:
            raise InputError(f"{out} has maps already: choose another folder, or --force to replace them")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise must_be("out", "a folder of maps or an empty one", str(out))


def write_maps(figures: MapFigures, subject: Subject, out: str | Path, force: bool = False) -> dict[str, Any]:
    """Draw all six visualisations of one image or text.

    Args:
        figures: `ImageFigures` or `TextFigures`.
        subject: what was looked at.
        out: the folder to write to; made if it is absent.
        force: replace the maps in a folder that has some (default False).

    Returns:
        The record, which is also written as maps.json: model, given, kind, predictions, query, layers, heads,
        tokens, sigma ((H, L) lists with None for gaps, or None), largest error, files.

    Raises:
        InputError: the folder may not be written to.

    >>> import torch
    >>> from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
    >>> from nadaraya.report import Subject, TextFigures, write_maps
    >>> layer = LayerMaps("attn", torch.full((1, 1, 2, 2), 0.5), bandwidth=None, error=0.0)
    >>> maps = AttentionMaps((layer,), output=None, reads="last", tokens=(("a", "b"),))
    >>> record = write_maps(TextFigures(maps), Subject("gpt", "a text"), "maps")
    >>> record["files"][:2]
    ['index.html', 'rollout/rollout.png']
    """
    path, maps = Path(out), figures.maps
    check_folder(path, force)
    for kind in KINDS:  # a model of fewer layers must not leave figures of the last one
        for old in (path / kind).glob("*.png"):
            old.unlink()
    sigma = sigma_matrix(maps)
    names: list[str] = []
    shown: dict[str, list[tuple[str, Markup]]] = {}
    for name, caption, figure in _drawn(figures, sigma):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=_DPI, facecolor="white")
        write_file(path / f"{name}.png", picture.getvalue())
        names.append(f"{name}.png")
        if caption is not None:
            shown.setdefault(name.split("/")[0], []).append((caption, _embedded(picture)))
    record = {
        "model": subject.model,
        "given": subject.given,
        "kind": figures.kind,
        "predictions": [{"class": name, "probability": chance} for name, chance in subject.predictions],
        "query": figures.query_name,
        "layers": len(maps.layers),
        "heads": [layer.weights.shape[1] for layer in maps.layers],
        "tokens": maps.num_tokens,
        "sigma": None if sigma is None else [[None if v != v else float(v) for v in row] for row in sigma],
        "error": max(layer.error for layer in maps.layers),
        "files": ["index.html", *names],
    }
    bandwidths = [layer.bandwidth for layer in maps.layers]
    page = render_page(
        "maps.html.jinja",
        record=record,
        subject=subject,
        maps=maps,
        ratios=DISCARD_RATIOS,
        shown=shown,
        without_sigma=[str(n + 1) for n, bandwidth in enumerate(bandwidths) if bandwidth is None],
        by_channel=any(bandwidth is not None and bandwidth.dim() == 2 for bandwidth in bandwidths),
    )
    write_file(path / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    write_file(path / "index.html", page)
    return record


def _drawn(figures: MapFigures, sigma: np.ndarray | None) -> Iterator[tuple[str, str | None, Figure]]:
    """File, caption (None for files that the page does not show) and figure, one drawn at a time."""
    maps = figures.maps
    yield "rollout/rollout", "", figures.rollout(DISCARD_RATIOS)
    if sigma is not None:
        yield "bandwidths/heatmap", "One row per head, one column per layer.", bandwidth_heatmap(sigma)
        yield "bandwidths/lines", "One line per head, over depth.", bandwidth_lines(sigma)
    for layer, weights in enumerate(maps.weights):
        number = f"layer-{layer + 1:02d}"
        yield f"heads/{number}", f"Layer {layer + 1}.", figures.heads(layer)
        yield f"queries/{number}", f"Layer {layer + 1}.", figures.queries(layer)
        for head in range(weights.shape[1]):
            matrix = attention_matrix(maps, layer, head, figures.token_labels)
            yield f"matrices/{number}-head-{head + 1:02d}", None, matrix
    yield "layers/evolution", "", figures.evolution()
    yield "matrices/all", "", contact_sheet(maps)


def _embedded(png: io.BytesIO) -> Markup:
    """A small copy of a figure as a data URL."""
    copy = io.BytesIO()
    with Image.open(png) as picture:
        size = picture.size
        picture.convert("RGB").save(copy, format="WEBP", quality=_QUALITY, method=4)
    data = base64.b64encode(copy.getvalue()).decode("ascii")
    return Markup(f'src="data:image/webp;base64,{data}" width="{size[0]}" height="{size[1]}"')
