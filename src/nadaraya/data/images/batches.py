"""Batches of images; a training batch is a function of the seed, the update and the rank alone."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nadaraya.data.images.augment import Augmentation, EvaluationTransform, TrainingTransform
from nadaraya.data.images.decode import CorruptImageError
from nadaraya.data.images.randomness import (
    AUGMENT,
    MIX,
    ORDER,
    SYNTHETIC,
    global_states_kept,
    seed_all,
    seeds,
)
from nadaraya.data.images.sources import ImageSet
from nadaraya.errors import InputError


def steps_per_epoch(images: ImageSet, batch_size: int) -> int:
    """Updates in one pass over the training images; those that fill no batch are left out of that pass.

    Args:
        images: what is trained on.
        batch_size: images in an update, over all processes.

    Returns:
        N // batch_size, at least 1.

    Raises:
        InputError: fewer images than a batch.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; accepted is at least 1")
    if len(images.train) < batch_size:
        raise InputError(
            f"{images.name} has {len(images.train)} training images, fewer than a batch of {batch_size}"
        )
    return len(images.train) // batch_size


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
    """
    share = _share(images, augmentation, batch_size, first_step, steps, rank, world_size)
    order = _Order(images, augmentation.repeats, batch_size, seed, first_step, steps, rank, world_size)
    dataset = _TrainingBatches(images, augmentation, share, seed, rank, world_size)
    return Batches(images, dataset, order, workers, pin_memory, persistent=False)


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
        workers: processes that make batches ahead, kept between passes; 0 makes them in this one.
        rank: number of this process.
        world_size: number of processes; this one has the images rank, rank + world_size, ...
        pin_memory: copy batches to page-locked memory, for faster transfer to a GPU.

    Returns:
        An iterable of pairs: inputs (b, C, S, S) float32, labels (b,) int64. It can be iterated again.

    Raises:
        InputError: a rank out of range; while iterating, a `CorruptImageError`.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; accepted is at least 1")
    _check_rank(rank, world_size)
    mine = range(rank, len(images.validation), world_size)
    chunks = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    dataset = _EvaluationBatches(images, augmentation)
    return Batches(images, dataset, chunks, workers, pin_memory, persistent=True)


def synthetic_batches(
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
) -> Iterator[tuple[Tensor, Tensor]]:
    """One random batch again and again, for the speed of a model without that of the data.

    Args:
        images: gives the number of channels and classes; none is read.
        augmentation: gives the size.
        batch_size: images in an update, over all processes.
        seed: seed of the run, at least 0.
        first_step: updates already done.
        steps: updates in the whole run.
        workers: not used; here so that the arguments are those of `training_batches`.
        rank: number of this process.
        world_size: number of processes.
        pin_memory: put the batch into page-locked memory.

    Returns:
        `steps` - `first_step` times the same tensors: inputs (b, C, S, S), standard normal, and targets
        (b, classes) whose rows sum to 1, float32.

    Raises:
        InputError: as `training_batches`.
    """
    share = _share(images, augmentation, batch_size, first_step, steps, rank, world_size)
    generator = torch.Generator().manual_seed(seeds(1, seed, SYNTHETIC, rank)[0])
    size = augmentation.image_size
    inputs = torch.randn(share, images.channels, size, size, generator=generator)
    targets = torch.rand(share, len(images.classes), generator=generator)
    targets /= targets.sum(dim=1, keepdim=True)
    if pin_memory and torch.cuda.is_available():
        inputs, targets = inputs.pin_memory(), targets.pin_memory()
    return ((inputs, targets) for _ in range(first_step, steps))


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise InputError(f"rank is {rank}; accepted is from 0 to world_size - 1 = {world_size - 1}")


def _share(
    images: ImageSet,
    augmentation: Augmentation,
    batch_size: int,
    first_step: int,
    steps: int,
    rank: int,
    world_size: int,
) -> int:
    """The images of an update that one process gets."""
    steps_per_epoch(images, batch_size)
    _check_rank(rank, world_size)
    if not 0 <= first_step <= steps:
        raise InputError(f"first_step is {first_step}; accepted is from 0 to steps = {steps}")
    share, rest = divmod(batch_size, world_size)
    if rest:
        raise InputError(f"a batch of {batch_size} images does not divide among {world_size} processes")
    if augmentation.mixes and share % 2:
        processes = f" on each of {world_size} processes" if world_size > 1 else ""
        raise InputError(
            f"mixup and cutmix mix images in pairs: a batch of {share}{processes} is odd;"
            " give an even one, or mixup = 0 and cutmix = 0"
        )
    return share


class _Order:
    """Update and image numbers of each batch of one process."""

    def __init__(
        self,
        images: ImageSet,
        repeats: int,
        batch_size: int,
        seed: int,
        first_step: int,
        steps: int,
        rank: int,
        world_size: int,
    ) -> None:
        from timm.data.distributed_sampler import RepeatAugSampler

        # timm would round an epoch down to 256s; all the images that fill batches are wanted.
        self._sampler = RepeatAugSampler(
            range(len(images.train)), world_size, rank, num_repeats=repeats, selected_round=0
        )
        self._seed, self._first, self._last = seed, first_step, steps
        self._share, self._per_epoch = batch_size // world_size, len(images.train) // batch_size

    def __len__(self) -> int:
        return self._last - self._first

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        step = self._first
        while step < self._last:
            epoch, done = divmod(step, self._per_epoch)
            # The sampler is seeded with its epoch alone: the seed of the run goes in here.
            self._sampler.set_epoch(seeds(1, self._seed, ORDER, epoch)[0])
            stream = islice(self._sampler, done * self._share, self._per_epoch * self._share)
            while step < self._last and (indices := list(islice(stream, self._share))):
                yield step, indices
                step += 1


class _TrainingBatches(Dataset):
    """Whole batches, by update and image numbers; errors are returned: those raised in workers grow long."""

    def __init__(
        self, images: ImageSet, augmentation: Augmentation, share: int, seed: int, rank: int, world_size: int
    ) -> None:
        from timm.data import Mixup

        self._images = images
        self._transform = TrainingTransform(augmentation, images.channels)
        self._shape = (share, images.channels, augmentation.image_size, augmentation.image_size)
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._smoothing, self._classes = augmentation.label_smoothing, len(images.classes)
        self._mix = (
            Mixup(
                augmentation.mixup,
                augmentation.cutmix,
                label_smoothing=self._smoothing,
                num_classes=self._classes,
            )
            if augmentation.mixes
            else None
        )

    def __getitem__(
        self, request: tuple[int, Sequence[int]]
    ) -> "tuple[Tensor, Tensor, list[str]] | InputError":
        from timm.data.mixup import mixup_target

        step, indices = request
        share = len(indices)
        # A seed for each place in the batch of all processes, of which this one has every world_size-th.
        own = seeds(share * self._world_size, self._seed, AUGMENT, step)[self._rank :: self._world_size]
        inputs, read, skipped = torch.empty(self._shape), list[int](), list[str]()
        places = zip(own, inputs.unbind(), strict=True)
        try:
            with global_states_kept():
                for index, copies in groupby(indices):  # repeated images are decoded once
                    image, label = self._read(index, skipped)
                    for _, (seed, out) in zip(copies, places):  # noqa: B905
                        seed_all(seed)
                        self._transform(image, out)
                        read.append(label)
                seed_all(seeds(1, self._seed, MIX, step, self._rank)[0])
                labels = torch.tensor(read)
                if self._mix is not None:
                    inputs, targets = self._mix(inputs, labels)
                else:
                    targets = mixup_target(labels, self._classes, smoothing=self._smoothing)
        except InputError as error:
            return error
        return inputs, targets, skipped

    def _read(self, index: int, skipped: list[str]) -> tuple[Image.Image, int]:
        source = self._images.train
        for offset in range(len(source)):
            candidate = (index + offset) % len(source)
            try:
                return source.read(candidate), int(source.labels[candidate])
            except CorruptImageError as error:
                if self._images.corrupt == "fatal":
                    raise
                skipped.append(str(error))
        raise InputError(f"none of the {len(source)} training images of {self._images.name} can be decoded")


class _EvaluationBatches(Dataset):
    """Whole batches, by image numbers; errors are returned: those raised in workers grow long."""

    def __init__(self, images: ImageSet, augmentation: Augmentation) -> None:
        self._images = images
        self._transform = EvaluationTransform(augmentation, images.channels)

    def __getitem__(self, indices: Sequence[int]) -> "tuple[Tensor, Tensor, list[str]] | InputError":
        source, read, skipped = self._images.validation, list[int](), list[str]()
        inputs = torch.empty(len(indices), *self._transform.shape)
        for index in indices:
            try:
                self._transform.into(source.read(index), inputs[len(read)])
                read.append(int(source.labels[index]))
            except CorruptImageError as error:
                if self._images.corrupt == "fatal":
                    return error
                skipped.append(str(error))
            except InputError as error:
                return error
        return inputs[: len(read)], torch.tensor(read, dtype=torch.long), skipped


class Batches:
    """An iterable of batches, made here or by workers; each iteration starts from the beginning."""

    def __init__(
        self, images: ImageSet, dataset: Dataset, order: Any, workers: int, pin_memory: bool, persistent: bool
    ) -> None:
        if workers < 0:
            raise InputError(f"workers is {workers}; accepted is at least 0")
        self._images = images
        self._loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=order,
            num_workers=workers,
            collate_fn=_unchanged,
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


def _unchanged(made: Any) -> Any:
    return made
