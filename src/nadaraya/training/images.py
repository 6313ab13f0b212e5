"""The image task: a timm classifier on augmented images, soft targets, an average of the weights."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from PIL import Image
from safetensors.torch import save_model
from timm.loss import SoftTargetCrossEntropy
from timm.models import save_for_hf
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from nadaraya.data.images import evaluation_batches, open_images, training_batches
from nadaraya.data.images.batches import steps_per_epoch, synthetic_batches
from nadaraya.data.images.sources import ImageSet, ImageSource
from nadaraya.device import check_memory
from nadaraya.errors import must_be
from nadaraya.evaluation.classification import evaluate_side_by_side
from nadaraya.files import write_file, write_into
from nadaraya.training.folder import AVERAGE_FILE, IMAGES_FILE, MODEL_FILE
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.processes import Processes
from nadaraya.training.task import Task


class ImageTask(Task):
    """A `Task` on images."""

    unit = "images"
    fingerprint_error = "the images are not those"

    def __init__(self, recipe: ImageRecipe, processes: Processes) -> None:
        self._recipe = recipe
        self._augmentation = recipe.augmentation()
        self._images = open_recipe_images(recipe)
        options = recipe.training
        self._steps_per_epoch = steps_per_epoch(self._images, options.batch_size)
        side, images = recipe.model.image_size, options.batch_size // processes.count or 1
        check_memory(
            f"a batch of {options.batch_size:,} images of {side} × {side} pixels",
            4 * images * self._images.channels * side**2,  # float32, in a process
            "training.batch_size or model.image_size",
        )
        set_seed(recipe.seed)
        self.model: Any = recipe.build_model(len(self._images.classes), self._images.channels)
        self.steps = options.epochs * self._steps_per_epoch
        self.evaluate_every = options.evaluate_every_epochs * self._steps_per_epoch
        self.units_per_step = options.batch_size
        self.fingerprint = {"images_sha256": self._images.sha256}
        self._loss = SoftTargetCrossEntropy()
        self._share: dict[str, Any] = {
            "workers": recipe.data.workers,
            "rank": processes.rank,
            "world_size": processes.count,
            "pin_memory": processes.device.type == "cuda",
        }
        self._validation = evaluation_batches(
            self._images,
            self._augmentation,
            batch_size=options.batch_size // (options.pieces(processes.count) * processes.count),
            **self._share,
        )
        self.batches(self.steps)  # refuses what cannot be batched before a folder is made

    def schedule(self, optimizer: torch.optim.Optimizer, done: int) -> Callable[[int], object]:
        """Linear warm-up and cosine decay, a function of the number of updates alone."""
        options = self._recipe.training
        scheduler, _ = create_scheduler_v2(
            optimizer,
            sched="cosine",
            num_epochs=options.epochs,
            min_lr=options.min_learning_rate,
            warmup_lr=options.warmup_learning_rate,
            warmup_epochs=options.warmup_epochs,
            step_on_epochs=False,
            updates_per_epoch=self._steps_per_epoch,
        )
        scheduler.step_update(done)
        return scheduler.step_update

    def average(self) -> ModelEmaV3 | None:
        """timm's exponential moving average of weights and buffers."""
        options = self._recipe.training
        if options.ema_decay is None:
            return None
        return ModelEmaV3(self.model, decay=options.ema_decay, use_warmup=options.ema_warmup)

    def batches(self, done: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Augmented images (b, C, S, S) and mixed, smoothed targets (b, classes), b = B / processes."""
        make = synthetic_batches if self._recipe.data.synthetic else training_batches
        return make(
            self._images,
            self._augmentation,
            batch_size=self._recipe.training.batch_size,
            seed=self._recipe.seed,
            first_step=done,
            steps=self.steps,
            **self._share,
        )

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy against the soft targets, in nats/image."""
        loss: Tensor = self._loss(network(inputs).float(), targets)
        return loss

    def validate(self, network: nn.Module, averaged: nn.Module | None) -> dict[str, float]:
        """Loss, top-1 and top-5 (fractions) on every validation image; those of the average with `ema_`."""
        models = {"": network} if averaged is None else {"": network, "ema_": averaged}
        results = evaluate_side_by_side(list(models.values()), self._validation)
        return {
            f"{prefix}{name}": getattr(result, name)
            for prefix, result in zip(models, results, strict=True)
            for name in ("loss", "top1", "top5")
        }

    def score(self, validation: dict[str, float]) -> float:
        """1 − top-1, of the average where there is one."""
        return 1.0 - validation.get("ema_top1", validation["top1"])

    def shown_metrics(self, validation: dict[str, float]) -> str:
        text = f"{super().shown_metrics(validation)}  top-1 {validation['top1']:.2%}"
        return f"{text} (EMA {validation['ema_top1']:.2%})" if "ema_top1" in validation else text

    def begin(self, folder: Path) -> None:
        described = {
            "name": self._images.name,
            "classes": list(self._images.classes),
            "channels": self._images.channels,
            "sha256": self._images.sha256,
            "training_images": len(self._images.train),
            "validation_images": len(self._images.validation),
            "steps": self.steps,
        }
        write_file(folder / IMAGES_FILE, json.dumps(described, indent=1))

    def finish(
        self, folder: Path, averaged: nn.Module | None, validation: dict[str, float], step_seconds: float
    ) -> dict[str, Any]:
        """The model and its average; the metrics are those of the last validation, which saw every image."""
        augmentation, images = self._augmentation, self._images
        mean, std = augmentation.statistics(images.channels)
        inputs = {
            "input_size": (images.channels, augmentation.image_size, augmentation.image_size),
            **augmentation.evaluation,
            "mean": tuple(mean),
            "std": tuple(std),
        }
        with write_into(folder, MODEL_FILE) as scratch:
            # Configuration and weights: the folder is a model of timm, create_model("local-dir:FOLDER").
            labels = {"label_names": list(images.classes)}
            self.model.pretrained_cfg.update(inputs)
            save_for_hf(self.model, str(scratch), labels, safe_serialization=True)
            if averaged is not None:
                save_model(averaged, str(scratch / AVERAGE_FILE))
        return {**validation, "images_per_second": self.units_per_step / step_seconds}


class _LimitedImages(ImageSource):
    """`count` images of a source, or all where there are fewer: the same ones for every run."""

    def __init__(self, source: ImageSource, count: int) -> None:
        drawn = np.random.default_rng(0).permutation(len(source))[:count]
        self._source, self._numbers = source, np.sort(drawn)
        super().__init__(source.labels[self._numbers], source.channels)

    def name(self, index: int) -> str:
        return self._source.name(int(self._numbers[index]))

    def digest(self) -> bytes:
        return self._source.digest() + self._numbers.tobytes()

    def _open(self, index: int) -> Image.Image:
        return self._source._open(int(self._numbers[index]))


def open_recipe_images(recipe: ImageRecipe) -> ImageSet:
    """The images of a recipe; an InputError where there are none, or they cannot be read."""
    data = recipe.data
    if data.source is None:
        accepted = "a folder of images, tar shards, an .npz file or a set such as torchvision:CIFAR10"
        raise must_be("recipe key data.source", accepted, None)
    images = open_images(data.source, validation=data.validation, corrupt=data.corrupt)
    return replace(images, train=_LimitedImages(images.train, data.limit)) if data.limit else images
