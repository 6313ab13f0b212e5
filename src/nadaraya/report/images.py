"""Runs on images in a report: what is read of each, and the sections that show it.

The model of a run looks at a few validation images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.colors import Normalize

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import capture_attention
from nadaraya.interpret.bandwidths import GridShape, bandwidth_matrix, grid_shapes
from nadaraya.interpret.loading import ImageModel
from nadaraya.interpret.reach import LagWeights, weights_by_distance
from nadaraya.interpret.rollout import on_grid, query_rows, thinned
from nadaraya.report.bandwidths import bandwidth_panel
from nadaraya.report.figures import draw_accuracies, draw_losses
from nadaraya.report.page import pixels, render_part
from nadaraya.report.reach import reach_part
from nadaraya.report.runs import RunData, leading, shown
from nadaraya.report.style import limits
from nadaraya.report.text_report import progress_panels

if TYPE_CHECKING:
    from nadaraya.data.images.sources import ImageSet
    from nadaraya.training import Run

#: layers of which an example shows its map
LAYERS_SHOWN = 4


@dataclass(frozen=True, eq=False)
class ExampleMaps:
    """One validation image, and where the query that the model reads looks in some layers.

    Attributes:
        truth: the class of the image.
        predicted: the likeliest class.
        chance: its probability.
        picture: (height, width, 3), values 0 … 1.
        maps: (index of the layer, (rows, columns) weights as multiples of 1/N, the mean over heads).

    >>> import numpy as np
    >>> from nadaraya.report.images import ExampleMaps
    >>> ExampleMaps("cat", "dog", 0.5, np.zeros((8, 8, 3)), [(0, np.ones((2, 2)))]).right
    False
    """

    truth: str
    predicted: str
    chance: float
    picture: np.ndarray
    maps: Sequence[tuple[int, np.ndarray]]

    @property
    def right(self) -> bool:
        """The likeliest class is that of the image."""
        return self.truth == self.predicted


@dataclass(frozen=True, eq=False)
class ImageRunData(RunData):
    """One run on images as reports show it: what `RunData` has, with these besides.

    `text` says which validation images were measured: numbers of runs that differ in it do not compare.

    Args:
        sigma: (H, L) bandwidths, NaN where a layer has none; default none.
        sigma_start: the same before training; default not known.
        grids: the kernels of the patch grid, layer by layer; default none.
        examples: validation images with their maps; default none, `problem` says why.

    >>> from nadaraya.report.images import ImageRunData
    >>> final = {"kind": "final", "step": 8, "loss": 1.25, "top1": 0.5, "ema_top1": 0.6}
    >>> ImageRunData("demo", "runs/demo", "gka_tiny_patch16_224", [final]).accuracy
    0.6
    """

    sigma: np.ndarray | None = None
    sigma_start: np.ndarray | None = None
    grids: Sequence[GridShape] = ()
    examples: Sequence[ExampleMaps] = ()

    def latest(self, key: str) -> float | None:
        """A number of the final record, or of the newest validation; None where neither has it."""
        curve = self.validated(key)
        value: float | None = self.final.get(key, float(curve[-1, 1]) if len(curve) else None)
        return value

    @property
    def accuracy(self) -> float | None:
        """Top-1 at the end, or at the newest validation: of the averaged weights where there are any."""
        averaged = self.latest("ema_top1")
        return self.latest("top1") if averaged is None else averaged

    @property
    def rank(self) -> float | None:
        return None if self.accuracy is None else -self.accuracy


def read_image_run(run: "Run", examples: int = 3) -> ImageRunData:
    """Everything that a report shows of a run on images; what its model has learned, when it is finished.

    `examples` validation images are looked at. An InputError for a run on text, and for a damaged file.
    """
    recipe = run.image_recipe()
    model, data, training = recipe.model, recipe.data, recipe.training
    options = "".join(f", {key} {value}" for key, value in model.options.items())
    source = Path(data.source or "").name
    found: dict[str, Any] = {"problem": "training is not finished"}
    if run.final:
        looking = ImageModel.from_run(run)
        found = {"sigma": bandwidth_matrix(looking.model), "sigma_start": looking.sigma_start}
        found["grids"] = grid_shapes(looking.model, run.load_model(initial=True))
        try:
            found["examples"], found["reads"] = _examples(looking, run.images(), examples)
        except InputError as error:
            found["problem"] = str(error)
    return ImageRunData.of(
        run,
        setup=(
            f"{model.name}{options}; images of {model.image_size} × {model.image_size} pixels; "
            f"{training.epochs:,} epoch{'s' * (training.epochs != 1)} in batches of {training.batch_size}; "
            f"images: {source}"
            f"{f', first {data.limit:,}' if data.limit else ''}."
        ),
        text=(data.source, data.validation),
        **found,
    )


def _examples(
    looking: ImageModel, images: "ImageSet", count: int
) -> tuple[list[ExampleMaps], list[LagWeights]]:
    """Validation images evenly spread over the set, so that they are of several classes; their weights."""
    found, captured = [], []
    for index in thinned(len(images.validation), count).tolist():
        pixels = looking.transform(images.validation.read(index))
        maps = capture_attention(looking.model, pixels[None])
        captured.append(maps)
        drawn = []
        for layer in thinned(len(maps.layers), LAYERS_SHOWN).tolist():
            row = query_rows(maps.weights[layer], maps)[0].mean(dim=0)
            drawn.append((layer, (on_grid(row, maps) * maps.num_tokens).numpy()))
        (predicted, chance), *_ = looking.top_k(maps.output[0], 1)
        truth = images.classes[int(images.validation.labels[index])]
        found.append(ExampleMaps(truth, predicted, chance, looking.picture(pixels), drawn))
    rows, columns = maps.grid or (0, 0)
    patches = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    apart = (patches[:, None] - patches).abs().amax(dim=-1)  # in patches, also diagonally
    return found, weights_by_distance(captured, apart) if maps.grid else []


def image_part(given: Sequence[ImageRunData]) -> Markup:
    """The sections on runs on images."""
    alike, losses = shown(given), partial(draw_losses, unit="nats/image")
    runs = alike["runs"]
    return render_part(
        "image_runs.html.jinja",
        **alike,
        leading=leading(runs, ("loss",), ("top1", "ema_top1")),
        reads=reach_part(runs, "image-reads", "distance, patches"),
        curves=[
            *progress_panels(runs, "image-loss", "loss", losses, " nats/image", "updates"),
            *progress_panels(runs, "image-top-1", "top-1", draw_accuracies, " nats/image", "updates"),
        ],
        bandwidth_panel=bandwidth_panel,
        grid_row=_grid_row,
        full=_full_colours,
    )


def _grid_row(factors: np.ndarray) -> Markup:
    """The kernels of the patch grid of all heads, (H, rows, columns), side by side."""
    apart = np.pad(factors, ((0, 0), (0, 0), (0, 1)), constant_values=np.nan)
    return pixels(np.concatenate(list(apart), axis=1)[:, :-1], Normalize(0, 1))


def _full_colours(run: ImageRunData) -> Normalize:
    """The weights that have no colour and the full one in all maps of a run."""
    return limits([weights for example in run.examples for _, weights in example.maps], low=0)
