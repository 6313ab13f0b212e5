"""Top-1, top-5 and cross-entropy of an image classifier."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from nadaraya.errors import must_be
from nadaraya.modes import evaluating


@dataclass(frozen=True)
class ImageEvaluation:
    """Result of `evaluate_images`.

    Args:
        loss: cross-entropy against the labels, in nats/image.
        top1: fraction of the images whose label has the largest logit.
        top5: fraction of the images whose label is among the five largest logits (all, with fewer classes).
        images: how many there were.

    >>> from nadaraya.evaluation.classification import ImageEvaluation
    >>> ImageEvaluation(loss=0.9, top1=0.72, top5=0.91, images=10_000).top1
    0.72
    """

    loss: float
    top1: float
    top5: float
    images: int


def evaluate_images(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> ImageEvaluation:
    """Classify every image of some batches once.

    Where `torch.distributed` runs, each process gives its own batches and all get the metrics of all images:
    every process must call this, with a model whose forward pass does not wait for those of the others.

    Args:
        model: maps (B, C, S, S) images to (B, classes) logits; set to eval mode while it is used.
        batches: images and their labels, (B,) int64, as `evaluation_batches` gives them.

    Returns:
        The metrics; sums are taken in float64.

    Raises:
        InputError: there is no image.

    >>> import torch
    >>> from nadaraya.evaluation import evaluate_images
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> evaluate_images(model, [(torch.randn(5, 1, 8, 8), torch.arange(5))]).images
    5
    """
    return evaluate_side_by_side([model], batches)[0]


@torch.no_grad()
def evaluate_side_by_side(
    models: Sequence[nn.Module], batches: Iterable[tuple[Tensor, Tensor]]
) -> list[ImageEvaluation]:
    """One result per model, all on one device, reading each batch once; see `evaluate_images`."""
    device = next(models[0].parameters()).device
    sums = torch.zeros(len(models), 4, dtype=torch.float64, device=device)  # images, nats, top-1, top-5
    with evaluating(*models):
        for inputs, labels in batches:
            inputs, labels = (part.to(device, non_blocking=True) for part in (inputs, labels))
            for model, row in zip(models, sums, strict=True):
                logits = model(inputs).float()
                hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
                row[0] += len(labels)
                row[1] += F.cross_entropy(logits, labels, reduction="none").double().sum()
                row[2] += hits[:, 0].sum()
                row[3] += hits.any(1).sum()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(sums)
    if not sums[0, 0]:
        raise must_be("batches", "at least one image", "none")
    return [
        ImageEvaluation(nats / images, top1 / images, top5 / images, int(images))
        for images, nats, top1, top5 in sums.tolist()
    ]
