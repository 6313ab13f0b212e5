"""Batches of images; a training batch is a function of the seed, the update and the rank alone."""

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import torch
from PIL import Image
from timm.data import Mixup
from timm.data.distributed_sampler import RepeatAugSampler
from timm.data.mixup import mixup_target
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nadaraya.data.images.sources import CorruptImageError, ImageSet
from nadaraya.data.images.transforms import (
    Augmentation,
    TrainingTransform,
    evaluation_transform,
    global_states_kept,
    seed_all,
    seeds,
)
from nadaraya.errors import InputError, must_be

Made = tuple[Tensor, Tensor, list[str]]  # inputs, targets and what was left out
_ORDER, _AUGMENT, _MIX, _SYNTHETIC = 2, 3, 4, 5  # independent streams; 0 and 1 are those of text batches


def steps_per_epoch(images: ImageSet, batch_size: int) -> int:
    """Updates in one pass over the training images; those that fill no batch are left out of that pass.

    An InputError for fewer images than a batch, which is that of all processes.
    """
    count = len(images.train)
    if not 1 <= batch_size <= count:
        raise must_be("batch_size", f"from 1 to the {count} training images of {images.name}", batch_size)
    return count // batch_size


def training_batches(
    images: ImageSet,
    augmentation: Augmentation,
    *,
    batch_size: int,
    seed: int,
    first_step: int,
    steps: int,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
) -> "Batches":
    """Augmented, mixed batches for the updates `first_step` + 1 to `steps`.

    A batch depends on the seed, the update and the rank alone: not on the number of workers, nor on where the
    run began. An update has the same images, augmented in the same way, on any number of processes; what is
    mixed with what differs. The order is that of repeated augmentation (timm's `RepeatAugSampler`): in each
    epoch a permutation whose images are each repeated, of which the first N are used.

    Args:
        images: what to train on.
        augmentation: what to do to them.
        batch_size: images in an update, over all processes.
        seed: seed of the run, at least 0.
        first_step: updates already done.
        steps: updates in the whole run.
        workers: processes that make batches ahead; 0 makes them in this one.
        rank: number of this process.
        world_size: number of processes; each gets `batch_size` / `world_size` images of an update.
        pin_memory: copy batches to page-locked memory, for faster transfer to a GPU.

    Returns:
        An iterable of `steps` - `first_step` pairs: inputs (b, C, S, S) float32, targets (b, classes) float32
        whose rows sum to 1. Iterating again starts again.

    Raises:
        InputError: fewer images than a batch, a batch that does not divide among the processes, an odd
            number of images to mix; while iterating, a `CorruptImageError`.

    >>> from nadaraya.data.images import Augmentation, training_batches
    >>> from nadaraya.data.images.sources import ImageSet
    >>> images = ImageSet("ten images", ("even", "odd"), 1, train=range(10), validation=range(2))
    >>> run = {"batch_size": 4, "seed": 0, "first_step": 97, "steps": 100}
    >>> len(training_batches(images, Augmentation(image_size=32), **run))
    3
    """
    updates = _Updates(images, augmentation, batch_size, seed, first_step, steps, rank, world_size)
    return Batches(images, updates, updates, workers, pin_memory, persistent=False)


def evaluation_batches(
    images: ImageSet,
    augmentation: Augmentation,
    *,
    batch_size: int,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
) -> "Batches":
    """The validation images, resized and cropped at the centre: over all processes each exactly once.

    Nothing is padded: the last batch may be smaller, and a process may have one batch less than another. An
    image that cannot be decoded is left out when `images.corrupt` is "skip".

    Args:
        images: what to validate on.
        augmentation: gives size, interpolation, crop and statistics.
        batch_size: images in a batch of one process.
        workers, pin_memory: as for `training_batches`; workers are kept between passes.
        rank, world_size: this process has the images rank, rank + world_size, ...

    Returns:
        An iterable of pairs: inputs (b, C, S, S) float32, labels (b,) int64. It can be iterated again.

    Raises:
        InputError: a rank out of range; while iterating, a `CorruptImageError`.

    >>> from nadaraya.data.images import Augmentation, evaluation_batches
    >>> from nadaraya.data.images.sources import ImageSet
    >>> images = ImageSet("ten images", ("even", "odd"), 1, train=range(10), validation=range(5))
    >>> len(evaluation_batches(images, Augmentation(image_size=32), batch_size=4))
    2
    """
    if batch_size < 1:
        raise must_be("batch_size", "a positive integer", batch_size)
    _check_rank(rank, world_size)
    mine = range(rank, len(images.validation), world_size)
    chunks = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    dataset = _EvaluationBatches(images, augmentation)
    return Batches(images, dataset, chunks, workers, pin_memory, persistent=True)


def synthetic_batches(
    images: ImageSet,
    augmentation: Augmentation,
    *,
    workers: int = 0,
    pin_memory: bool = False,
    **run: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One random batch again and again, for the speed of a model without that of the data.

    The arguments are those of `training_batches`; no image is read, and `workers` has no effect. It gives
    `steps` - `first_step` times the same tensors: inputs (b, C, S, S), standard normal, and targets
    (b, classes) whose rows sum to 1, float32.
    """
    updates = _Updates(images, augmentation, **run)
    size = augmentation.image_size
    generator = torch.Generator().manual_seed(seeds(1, updates.seed, _SYNTHETIC, updates.rank)[0])
    inputs = torch.randn(updates.share, images.channels, size, size, generator=generator)
    targets = torch.rand(updates.share, len(images.classes), generator=generator)
    targets /= targets.sum(dim=1, keepdim=True)
    if pin_memory and torch.cuda.is_available():
        inputs, targets = inputs.pin_memory(), targets.pin_memory()
    return ((inputs, targets) for _ in range(len(updates)))


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise must_be("rank", f"from 0 to world_size - 1 = {world_size - 1}", rank)


@dataclass(eq=False)
class _Updates(Dataset):
    """Each update of one process with its images, in order, and its batch; fields as for `training_batches`.

    Errors are returned: those raised in workers grow long.
    """

    images: ImageSet
    augmentation: Augmentation
    batch_size: int
    seed: int
    first_step: int
    steps: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        steps_per_epoch(self.images, self.batch_size)
        _check_rank(self.rank, self.world_size)
        if not 0 <= self.first_step <= self.steps:
            raise must_be("first_step", f"from 0 to steps = {self.steps}", self.first_step)
        if self.batch_size % self.world_size:
            raise must_be("batch_size", f"a multiple of the {self.world_size} processes", self.batch_size)
        if self.augmentation.mixes and self.share % 2:
            raise InputError(
                "mixup and cutmix mix images in pairs: batch_size must be even on each of the"
                f" {self.world_size} processes, got {self.share}; or set mixup = 0 and cutmix = 0"
            )
        self._transform = TrainingTransform(self.augmentation, self.images.channels)
        self._mix = Mixup(
            self.augmentation.mixup,
            self.augmentation.cutmix,
            label_smoothing=self.augmentation.label_smoothing,
            num_classes=len(self.images.classes),
        )

    @property
    def share(self) -> int:
        """The images of an update that this process gets."""
        return self.batch_size // self.world_size

    def __len__(self) -> int:
        return self.steps - self.first_step

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        count, per_epoch = len(self.images.train), steps_per_epoch(self.images, self.batch_size)
        repeats = self.augmentation.repeats
        # Without selected_round=0 timm would round an epoch down to 256s; all that fill batches are wanted.
        sampler = RepeatAugSampler(
            range(count), self.world_size, self.rank, num_repeats=repeats, selected_round=0
        )
        for epoch in range(self.first_step // per_epoch, math.ceil(self.steps / per_epoch)):
            # The sampler is seeded with its epoch alone: the seed of the run goes in here.
            sampler.set_epoch(seeds(1, self.seed, _ORDER, epoch)[0])
            stream = iter(sampler)
            for step in range(epoch * per_epoch, min((epoch + 1) * per_epoch, self.steps)):
                indices = list(islice(stream, self.share))
                if step >= self.first_step:
                    yield step, indices

    def __getitem__(self, request: tuple[int, Sequence[int]]) -> Made | InputError:
        step, indices = request
        # A seed for each image of the batch of all processes; this one has every world_size-th.
        own = seeds(self.batch_size, self.seed, _AUGMENT, step)[self.rank :: self.world_size]
        read, skipped = list[int](), list[str]()
        inputs = torch.empty(self.share, *self._transform.shape)
        places = zip(own, inputs.unbind(), strict=True)
        try:
            with global_states_kept():
                for index, copies in groupby(indices):  # repeated images are decoded once
                    image, label = self._read(index, skipped)
                    for _, (seed, out) in zip(copies, places):  # noqa: B905
                        seed_all(seed)
                        self._transform.into(image, out)
                        read.append(label)
                labels = torch.tensor(read)
                seed_all(seeds(1, self.seed, _MIX, step, self.rank)[0])
                if self.augmentation.mixes:
                    return *self._mix(inputs, labels), skipped
            smoothing = self.augmentation.label_smoothing
            return inputs, mixup_target(labels, len(self.images.classes), smoothing=smoothing), skipped
        except InputError as error:
            return error

    def _read(self, index: int, skipped: list[str]) -> tuple[Image.Image, int]:
        source = self.images.train
        for offset in range(len(source)):
            candidate = (index + offset) % len(source)
            try:
                return source.read(candidate), int(source.labels[candidate])
            except CorruptImageError as error:
                if self.images.corrupt == "fatal":
                    raise CorruptImageError(f"{error} (data.corrupt=skip goes on without it)") from None
                skipped.append(str(error))
        raise InputError(f"none of the {len(source)} training images of {self.images.name} can be decoded")


class _EvaluationBatches(Dataset):
    """Whole batches, by image numbers; errors are returned: those raised in workers grow long."""

    def __init__(self, images: ImageSet, augmentation: Augmentation) -> None:
        self._images = images
        self._transform = evaluation_transform(augmentation, images.channels)

    def __getitem__(self, indices: Sequence[int]) -> Made | InputError:
        source, read, skipped = self._images.validation, list[int](), list[str]()
        inputs = torch.empty(len(indices), *self._transform.shape)
        for index in indices:
            try:
                self._transform.into(source.read(index), inputs[len(read)])
                read.append(int(source.labels[index]))
            except InputError as error:
                if self._images.corrupt == "fatal" or not isinstance(error, CorruptImageError):
                    return error
                skipped.append(str(error))
        return inputs[: len(read)], torch.tensor(read, dtype=torch.long), skipped


class Batches:
    """An iterable of batches, made here or by workers; each iteration starts from the beginning."""

    def __init__(
        self, images: ImageSet, dataset: Dataset, order: Any, workers: int, pin_memory: bool, persistent: bool
    ) -> None:
        if workers < 0:
            raise must_be("workers", "an integer of at least 0", workers)
        self._images = images
        self._loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=order,
            num_workers=workers,
            pin_memory=pin_memory and torch.cuda.is_available(),
            persistent_workers=persistent and workers > 0,
            # Forked workers share the arrays of images and offsets; others would each get a copy.
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            # Without a generator of its own it would draw a number from the global one.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for made in self._loader:
            if isinstance(made, InputError):
                raise made
            inputs, targets, skipped = made
            for message in skipped:
                if message not in self._images.warned:
                    self._images.warned.add(message)
                    warnings.warn(f"{message}; left out", stacklevel=2)
            if len(inputs):
                yield inputs, targets
