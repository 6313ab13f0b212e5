"""The six visualisations of document D, section 7: PNG files by kind, and one self-contained page."""

import base64
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from nadaraya.errors import InputError
from nadaraya.files import write_file
from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import sigma_matrix
from nadaraya.report.html import _colour_variables, _versions
from nadaraya.report.maps_matrices import attention_matrix, bandwidth_heatmap, bandwidth_lines, contact_sheet

DISCARD_RATIOS = (0.0, 0.5, 0.9)
PAGE, RECORD = "index.html", "maps.json"
#: folder -> what is in it, in the order of the document's sections 7.2 to 7.7
KINDS = ("rollout", "bandwidths", "heads", "queries", "layers", "matrices")
_DPI = 110
_QUALITY = 82  # of the page's copies (WebP); the files are lossless


class Figures(Protocol):
    """What is drawn of an image or of a text: `ImageFigures`, `TextFigures`."""

    maps: AttentionMaps

    @property
    def query_name(self) -> str: ...
    def rollout(self, ratios: Sequence[float]) -> Figure: ...
    def heads(self, layer: int) -> Figure: ...
    def queries(self, layer: int) -> Figure: ...
    def evolution(self) -> Figure: ...
    def token_labels(self, positions: np.ndarray) -> list[str]: ...


@dataclass(frozen=True)
class Subject:
    """What the page says about what was looked at.

    Attributes:
        model: the model's name.
        given: the image's or the text's name.
        kind: "image" or "text".
        facts: (name, value) pairs: sizes, the normalisation, the checkpoint.
        predictions: (class or token, probability), likeliest first.
    """

    model: str
    given: str
    kind: str
    facts: Sequence[tuple[str, str]] = ()
    predictions: Sequence[tuple[str, float]] = ()


@dataclass
class _Folder:
    """Writes figures and keeps, for the page, a small copy of each and its path."""

    path: Path
    shown: dict[str, list[tuple[str, Markup]]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def add(self, name: str, caption: str, figure: Figure, on_page: bool = True) -> None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=_DPI, facecolor="white")
        file = self.path / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(buffer.getvalue())
        self.names.append(f"{name}.png")
        if on_page:
            kind = name.split("/")[0]
            self.shown.setdefault(kind, []).append((caption, _embedded(buffer)))


def check_folder(out: Path, force: bool) -> None:
    """Refuse a folder that maps may not be written to, before any work.

    Args:
        out: the folder.
        force: whether maps that are there may be replaced.

    Raises:
        InputError: it is no folder, it has maps and force is False, or it has other files.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder: --out takes a folder")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / RECORD).is_file():
        raise InputError(f"{out} has files in it that are no maps: give another --out")
    if not force:
        raise InputError(f"{out} has maps already: give another --out, or --force to replace them")


def write_maps(figures: Figures, subject: Subject, out: str | Path, force: bool = False) -> dict[str, Any]:
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
    """
    path = Path(out)
    check_folder(path, force)
    _remove_old(path)
    maps, folder = figures.maps, _Folder(path)
    sigma = sigma_matrix(maps)
    for name, caption, draw, on_page in _plan(figures, sigma):
        folder.add(name, caption, draw(), on_page)
    record = {
        "model": subject.model,
        "given": subject.given,
        "kind": subject.kind,
        "predictions": [{"class": name, "probability": chance} for name, chance in subject.predictions],
        "query": figures.query_name,
        "layers": len(maps.layers),
        "heads": [layer.weights.shape[1] for layer in maps.layers],
        "tokens": maps.num_tokens,
        "sigma": None if sigma is None else [[None if v != v else float(v) for v in row] for row in sigma],
        "error": max(layer.error for layer in maps.layers),
        "files": [PAGE, *folder.names],
    }
    write_file(path / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    write_file(path / PAGE, _page(figures, subject, folder, sigma))
    return record


def _plan(
    figures: Figures, sigma: np.ndarray | None
) -> Iterator[tuple[str, str, Callable[[], Figure], bool]]:
    """(file, caption, drawing, whether the page shows it) of every figure; layers and heads from 1."""
    maps = figures.maps
    yield "rollout/rollout", "", lambda: figures.rollout(DISCARD_RATIOS), True
    if sigma is not None:
        yield "bandwidths/heatmap", "A row a head, a column a layer.", lambda: bandwidth_heatmap(sigma), True
        yield "bandwidths/lines", "A line a head, over the depth.", lambda: bandwidth_lines(sigma), True
    for layer, weights in enumerate(maps.weights):
        number = f"{layer + 1:02d}"
        yield f"heads/layer-{number}", f"Layer {layer + 1}.", lambda at=layer: figures.heads(at), True  # type: ignore[misc]
        yield f"queries/layer-{number}", f"Layer {layer + 1}.", lambda at=layer: figures.queries(at), True  # type: ignore[misc]
        for head in range(weights.shape[1]):
            yield (
                f"matrices/layer-{number}-head-{head + 1:02d}",
                "",
                lambda at=layer, of=head: attention_matrix(maps, at, of, figures.token_labels),  # type: ignore[misc]
                False,
            )
    yield "layers/evolution", "", figures.evolution, True
    yield "matrices/all", "", lambda: contact_sheet(maps), True


def _remove_old(path: Path) -> None:
    """Figures of maps that are replaced: a model of fewer layers must not leave those of the last one."""
    for kind in KINDS:
        for old in (path / kind).glob("*.png"):
            old.unlink()


def _page(figures: Figures, subject: Subject, folder: _Folder, sigma: np.ndarray | None) -> str:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    resources = files("nadaraya.report")
    style = _colour_variables() + (resources / "report.css").read_text(encoding="utf-8")
    without = [str(n + 1) for n, layer in enumerate(figures.maps.layers) if layer.bandwidth is None]
    channels = any(
        layer.bandwidth is not None and layer.bandwidth.dim() == 2 for layer in figures.maps.layers
    )
    return environment.from_string((resources / "maps.html.jinja").read_text(encoding="utf-8")).render(
        style=Markup(style),
        subject=subject,
        maps=figures.maps,
        query=figures.query_name,
        ratios=DISCARD_RATIOS,
        shown=folder.shown,
        has_sigma=sigma is not None,
        without_sigma=without,
        by_channel=channels,
        error=max(layer.error for layer in figures.maps.layers),
        files=folder.names,
        versions=_versions(),
    )


def _embedded(png: io.BytesIO) -> Markup:
    """A small copy of a figure as a data URL."""
    copy = io.BytesIO()
    with Image.open(png) as picture:
        size = picture.size
        picture.convert("RGB").save(copy, format="WEBP", quality=_QUALITY, method=4)
    data = base64.b64encode(copy.getvalue()).decode("ascii")
    return Markup(f'src="data:image/webp;base64,{data}" width="{size[0]}" height="{size[1]}"')
