"""The six visualisations of Kundu et al. (2026), section 7: PNG files by kind, and one page of them all."""

import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from nadaraya.errors import InputError, must_be
from nadaraya.files import remove_folder, write_into
from nadaraya.interpret.attention_maps import maps_as_bytes
from nadaraya.interpret.rollout import sigma_matrix
from nadaraya.report.bandwidths import bandwidth_heatmap, bandwidth_lines, bandwidth_panel, sigma_limits
from nadaraya.report.maps_base import DISCARD_RATIOS, MapFigures
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_text import TextFigures
from nadaraya.report.page import render_page

RECORD, WEIGHTS_FILE = "maps.json", "weights.safetensors"
#: the folders, in the order of sections 7.2 to 7.7
KINDS = ("rollout", "bandwidths", "heads", "queries", "layers", "matrices")
_DPI = 110


@dataclass(frozen=True)
class Subject:
    """Facts on the subject of some maps, for their page.

    Attributes:
        model: the model's name.
        given: the image's or the text's name.
        facts: (name, value) pairs: sizes, the normalisation, the checkpoint.
        predictions: (class or token, probability), likeliest first.
        sigma_start: (H, L) bandwidths before training, marked where bandwidths are drawn; default not known.

    >>> from nadaraya.report.maps import Subject
    >>> Subject("gka", "cat.png", predictions=[("cat", 0.75), ("dog", 0.25)]).predictions[0]
    ('cat', 0.75)
    """

    model: str
    given: str
    facts: Sequence[tuple[str, str]] = ()
    predictions: Sequence[tuple[str, float]] = ()
    sigma_start: np.ndarray | None = None


def check_folder(out: Path, force: bool) -> None:
    """Refuse a folder that has other files than maps, or maps that `force` does not let be replaced."""
    if (out / RECORD).is_file():
        if not force:
            raise InputError(f"{out} has maps already: choose another folder, or --force to replace them")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise must_be("out", "a folder of maps or an empty one", str(out))


def write_maps(
    figures: MapFigures,
    subject: Subject,
    out: str | Path,
    force: bool = False,
    drawing: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Draw all six visualisations of one image, or the matrices of one text, and write their page.

    Args:
        figures: `ImageFigures` or `TextFigures`.
        subject: what was looked at.
        out: the folder to write to; made if it is absent.
        force: replace the maps in a folder that has some (default False).
        drawing: called before each figure with the file's name, its number from 1 and how many there are;
            default None.

    Returns:
        The record, which is also written as maps.json: model, given, kind, predictions, query, layers, heads,
        tokens, sigma ((H, L) lists with None for gaps, or None), largest error, files.

    Raises:
        InputError: the folder may not be written to.
        WriteFailed: the disk is full or refuses; what was in the folder is as it was.

    >>> import torch
    >>> from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
    >>> from nadaraya.report import write_maps
    >>> from nadaraya.report.maps import Subject
    >>> from nadaraya.report.maps_text import TextFigures
    >>> layer = LayerMaps("attn", torch.full((1, 1, 2, 2), 0.5), bandwidth=None, error=0.0)
    >>> maps = AttentionMaps((layer,), output=None, reads="last", tokens=(("a", "b"),))
    >>> record = write_maps(TextFigures(maps), Subject("gpt", "a text"), "maps")
    >>> record["files"][:2]
    ['index.html', 'weights.safetensors']
    """
    path, maps = Path(out), figures.maps
    check_folder(path, force)
    sigma = sigma_matrix(maps)
    steps = _steps(figures, sigma, subject.sigma_start)
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
        "files": ["index.html", WEIGHTS_FILE, *steps],
    }
    with write_into(path) as scratch:
        for place, (name, draw) in enumerate(steps.items(), start=1):
            if drawing is not None:
                drawing(name, place, len(steps))
            (scratch / name).parent.mkdir(exist_ok=True)
            picture = io.BytesIO()
            draw().savefig(picture, format="png", dpi=_DPI, facecolor="white")
            (scratch / name).write_bytes(picture.getvalue())
        (scratch / WEIGHTS_FILE).write_bytes(maps_as_bytes(maps))
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        (scratch / RECORD).write_text(text, encoding="utf-8")
        page = _page(figures, subject, sigma, record)
        (scratch / "index.html").write_text(page, encoding="utf-8")
        for kind in KINDS:  # what is not ours stays in the folders that are replaced
            for other in (path / kind).glob("*"):
                if other.suffix != ".png":
                    (scratch / kind).mkdir(exist_ok=True)
                    copy = shutil.copytree if other.is_dir() else shutil.copy2
                    copy(other, scratch / kind / other.name)
    for kind in KINDS:  # what this model has not, such as bandwidths, a model before it may have had
        if not any(name.startswith(f"{kind}/") for name in steps):
            remove_folder(path / kind)
    return record


def _steps(
    figures: MapFigures, sigma: np.ndarray | None, start: np.ndarray | None
) -> dict[str, Callable[[], Figure]]:
    """The files of figures in order, and what draws each."""
    on_image = figures if isinstance(figures, ImageFigures) else None  # a text has the page
    steps: dict[str, Callable[[], Figure]] = {"rollout/rollout.png": on_image.rollout} if on_image else {}
    if sigma is not None:
        steps["bandwidths/heatmap.png"] = partial(bandwidth_heatmap, sigma, start)
        steps["bandwidths/lines.png"] = partial(bandwidth_lines, sigma, start)
    for layer, found in enumerate(figures.maps.layers):
        name = f"layer-{layer:02d}"
        if on_image:
            steps[f"heads/{name}.png"] = partial(on_image.heads, layer)
            steps[f"queries/{name}.png"] = partial(on_image.queries, layer)
        for row, head in enumerate(found.heads):
            steps[f"matrices/{name}-head-{head:02d}.png"] = partial(figures.matrix, layer, row)
    if on_image:
        steps["layers/evolution.png"] = on_image.evolution
    return {**steps, "matrices/all.png": figures.matrices}


def _page(figures: MapFigures, subject: Subject, sigma: np.ndarray | None, record: dict[str, Any]) -> str:
    maps, start = figures.maps, subject.sigma_start
    bandwidths = [layer.bandwidth for layer in maps.layers]
    return render_page(
        "maps.html.jinja",
        figures=figures,
        record=record,
        subject=subject,
        maps=maps,
        ratios=DISCARD_RATIOS,
        image=figures.image if isinstance(figures, ImageFigures) else None,
        views=figures.views() if isinstance(figures, TextFigures) else None,
        sigma_svg=None if sigma is None else bandwidth_panel(sigma, start, "sigma"),
        shade=None if sigma is None else LogNorm(*sigma_limits(sigma, start)),
        without_sigma=[str(n) for n, bandwidth in enumerate(bandwidths) if bandwidth is None],
        by_channel=any(bandwidth is not None and bandwidth.dim() == 2 for bandwidth in bandwidths),
    )
