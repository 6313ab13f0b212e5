"""The image task: a timm classifier on augmented images, soft targets, an average of the weights."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from safetensors.torch import save_model
from timm.loss import SoftTargetCrossEntropy
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from nadaraya.data.images import (
    evaluation_batches,
    steps_per_epoch,
    synthetic_batches,
    training_batches,
)
from nadaraya.evaluation.classification import evaluate_side_by_side
from nadaraya.files import write_file, write_into
from nadaraya.training.folder import (
    AVERAGE_FILE,
    IMAGES_FILE,
    INITIAL_KERNELS_FILE,
    MODEL_FILE,
    save_kernels,
)
from nadaraya.training.image_data import open_recipe_images
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.optimizer import make_optimizer
from nadaraya.training.processes import Processes


class ImageTask:
    """A `Task` on images: see there for the attributes.

    Args:
        recipe: what to train.
        processes: those of the run; each takes an equal part of every batch.

    Raises:
        InputError: the images or the model of the recipe cannot be used.
    """

    unit = "images"
    fingerprint_error = "the images are not those"

    def __init__(self, recipe: ImageRecipe, processes: Processes) -> None:
        self._recipe = recipe
        self._augmentation = recipe.augmentation()
        self._images = open_recipe_images(recipe)
        options = recipe.training
        self._steps_per_epoch = steps_per_epoch(self._images, options.batch_size)
        set_seed(recipe.seed)
        self.model = recipe.build_model(len(self._images.classes), self._images.channels)
        self.steps = options.epochs * self._steps_per_epoch
        self.evaluate_every = options.evaluate_every_epochs * self._steps_per_epoch
        self.units_per_step = options.batch_size
        self.fingerprint: dict[str, Any] = {"images_sha256": self._images.sha256}
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
            batch_size=options.batch_size // (options.gradient_accumulation * processes.count),
            **self._share,
        )
        self.batches(self.steps)  # refuses what cannot be batched before a folder is made

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW over three groups of parameters."""
        options = self._recipe.training
        return make_optimizer(self.model, options, options.peak_learning_rate)

    def schedule(self, optimizer: torch.optim.Optimizer, done: int) -> Callable[[int], None]:
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
        batches: Iterable[tuple[Tensor, Tensor]] = make(
            self._images,
            self._augmentation,
            batch_size=self._recipe.training.batch_size,
            seed=self._recipe.seed,
            first_step=done,
            steps=self.steps,
            **self._share,
        )
        return batches

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

    def shown_metrics(self, validation: dict[str, float]) -> str:
        """Validation loss and top-1, that of the average too."""
        text = f"validation {validation['loss']:.3f}  top-1 {validation['top1']:.2%}"
        return f"{text} (EMA {validation['ema_top1']:.2%})" if "ema_top1" in validation else text

    def begin(self, folder: Path) -> None:
        """What the images are, and the kernels that training starts from."""
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
        save_kernels(self.model, folder / INITIAL_KERNELS_FILE)

    def finish(
        self, folder: Path, averaged: nn.Module | None, validation: dict[str, float], step_seconds: float
    ) -> dict[str, Any]:
        """The model and its average; the figures are those of the last validation, which saw every image."""
        with write_into(folder, MODEL_FILE) as scratch:
            save_model(self.model, str(scratch / MODEL_FILE))
            if averaged is not None:
                save_model(averaged, str(scratch / AVERAGE_FILE))
        return {**validation, "images_per_second": self.units_per_step / step_seconds}
