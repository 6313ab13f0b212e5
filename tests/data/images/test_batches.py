"""A training batch is a function of seed, update and rank; validation images come once; errors are short."""

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nadaraya.data.images import (
    Augmentation,
    CorruptImageError,
    evaluation_batches,
    open_images,
    training_batches,
)
from nadaraya.data.images.batches import steps_per_epoch, synthetic_batches
from nadaraya.data.images.sources import ImageSet
from nadaraya.errors import InputError

SMALL = Augmentation(image_size=16)
UNMIXED = Augmentation(image_size=16, mixup=0, cutmix=0)
PLAIN = Augmentation(
    image_size=12, padding_crop=0, flip=0, rand_augment=None, random_erasing=0, mixup=0, cutmix=0, repeats=1
)


def batches(
    images: ImageSet, augmentation: Augmentation = SMALL, **changes: Any
) -> list[tuple[Tensor, Tensor]]:
    arguments = {"batch_size": 6, "seed": 1, "first_step": 0, "steps": 8, **changes}
    return list(training_batches(images, augmentation, **arguments))


def assert_same(ours: list[tuple[Tensor, ...]], theirs: list[tuple[Tensor, ...]]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_shapes_types_and_sums(insects: ImageSet) -> None:
    made = batches(insects)
    assert len(made) == 8
    for inputs, targets in made:
        assert (inputs.shape, inputs.dtype) == ((6, 3, 16, 16), torch.float32)
        assert (targets.shape, targets.dtype) == ((6, 3), torch.float32)
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(6))
        assert inputs.isfinite().all()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(insects: ImageSet, workers: int) -> None:
    assert_same(batches(insects, workers=workers), batches(insects))


@pytest.mark.parametrize("first", [1, 3, 5, 8])
def test_resumed_batches_are_those_of_the_whole_run(insects: ImageSet, first: int) -> None:
    assert_same(batches(insects, first_step=first), batches(insects)[first:])


def test_real_images_with_workers_and_resumed(cifar: ImageSet) -> None:
    augmentation = Augmentation(image_size=32, padding_crop=4)
    last = steps_per_epoch(cifar, 64) + 2  # over the end of an epoch
    arguments: dict[str, Any] = {"batch_size": 64, "seed": 3, "steps": last}
    whole = list(training_batches(cifar, augmentation, first_step=last - 5, **arguments))
    resumed = training_batches(cifar, augmentation, first_step=last - 3, workers=2, **arguments)
    assert_same(list(resumed), whole[2:])


def test_every_form_gives_the_same_batches(every_form: dict[str, str]) -> None:
    expected = batches(open_images(every_form.pop("npz")))
    for source in every_form.values():
        assert_same(batches(open_images(source), workers=2), expected)


def test_seed_and_update_matter(insects: ImageSet) -> None:
    ours, other = batches(insects), batches(insects, seed=2)
    for index, (inputs, _) in enumerate(ours):
        assert not torch.equal(inputs, other[index][0])
        assert not torch.equal(inputs, ours[index - 1][0])


def test_iterating_again_starts_again(insects: ImageSet) -> None:
    again = training_batches(insects, SMALL, batch_size=6, seed=1, first_step=0, steps=3)
    assert len(again) == 3
    assert_same(list(again), list(again))


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_out_the_batch_of_one(insects: ImageSet, world_size: int) -> None:
    together = [batches(insects, UNMIXED, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step, (inputs, targets) in enumerate(batches(insects, UNMIXED)):
        for rank in range(world_size):
            assert torch.equal(together[rank][step][0], inputs[rank::world_size])
            assert torch.equal(together[rank][step][1], targets[rank::world_size])


def shown(images: ImageSet, made: list[tuple[Tensor, Tensor]]) -> list[int]:
    """Which training image each input is, found by its pixels (under `PLAIN`)."""
    known = {}
    for index in range(len(images.train)):
        pixels = torch.from_numpy(np.array(images.train.read(index))).permute(2, 0, 1) / 255
        known[pixels.mul(1000).round().short().numpy().tobytes()] = index
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in PLAIN.statistics(3))
    inputs = torch.cat([inputs for inputs, _ in made])
    return [known[(one * std + mean).mul(1000).round().short().numpy().tobytes()] for one in inputs]


def test_epoch_is_a_permutation(insects: ImageSet) -> None:
    assert steps_per_epoch(insects, 6) == 3
    order = shown(insects, batches(insects, PLAIN, steps=6))
    first, second = order[:18], order[18:]
    assert sorted(first) == sorted(second) == list(range(18))
    assert first != second


def test_labels_are_those_of_the_images(insects: ImageSet) -> None:
    made = batches(insects, PLAIN, steps=3)
    labels = torch.cat([targets for _, targets in made]).argmax(dim=1)
    np.testing.assert_array_equal(labels, insects.train.labels[shown(insects, made)])


def test_repeated_images_follow_each_other(insects: ImageSet) -> None:
    repeated = Augmentation(**{**vars(PLAIN), "repeats": 3})
    order = shown(insects, batches(insects, repeated, steps=3))
    assert order == [image for image in order[::3] for _ in range(3)]
    assert len(set(order)) == 6


def test_unmixed_targets_are_smoothed(insects: ImageSet) -> None:
    for _, targets in batches(insects, UNMIXED):
        ordered = targets.sort(dim=1).values
        torch.testing.assert_close(ordered, torch.tensor([0.1 / 3, 0.1 / 3, 0.9 + 0.1 / 3]).expand(6, 3))


def mixing_shares(images: ImageSet, **changes: int) -> list[float]:
    """What share of each batch is its own under mixup; inputs and targets must be mixed alike."""
    options = {**vars(PLAIN), "label_smoothing": 0.0}
    plain = batches(images, Augmentation(**options), **changes)
    mixed = batches(images, Augmentation(**{**options, "mixup": 0.8}), **changes)
    shares = []
    for (inputs, targets), (mixed_inputs, mixed_targets) in zip(plain, mixed, strict=True):
        difference = (inputs - inputs.flip(0)).flatten()
        share = (mixed_inputs - inputs.flip(0)).flatten() @ difference / (difference @ difference)
        for own, made in ((inputs, mixed_inputs), (targets, mixed_targets)):
            torch.testing.assert_close(made, share * own + (1 - share) * own.flip(0), atol=1e-4, rtol=0)
        shares.append(float(share))
    return shares


def test_mixup_mixes_inputs_and_targets_alike(insects: ImageSet) -> None:
    assert len(set(mixing_shares(insects))) == 8


def test_processes_mix_differently(insects: ImageSet) -> None:
    ours, theirs = (mixing_shares(insects, batch_size=12, world_size=2, rank=rank) for rank in (0, 1))
    assert all(abs(one - other) > 1e-4 for one, other in zip(ours, theirs, strict=True))


def test_each_copy_is_augmented_differently(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 12, 12, 3), dtype=np.uint8).repeat(6, axis=0)
    arrays = {
        f"{split}_{kind}": a
        for split in ("train", "val")
        for kind, a in (("images", pixels), ("labels", np.zeros(6, int)))
    }
    np.savez(tmp_path / "alike.npz", **arrays)
    made = batches(open_images(str(tmp_path / "alike.npz")), UNMIXED, steps=3)
    inputs = torch.cat([inputs for inputs, _ in made])
    assert len({one.numpy().tobytes() for one in inputs}) == 18


def test_global_states_are_left_alone(insects: ImageSet) -> None:
    def states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = states()
    for workers in (0, 1):
        for _ in training_batches(
            insects, SMALL, batch_size=6, seed=0, first_step=0, steps=2, workers=workers
        ):
            assert states() == before
        list(evaluation_batches(insects, SMALL, batch_size=4, workers=workers))
        assert states() == before


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (2, 0), (4, 0), (16, 0), (1, 2), (2, 2)])
def test_validation_images_come_once_each(insects: ImageSet, world_size: int, workers: int) -> None:
    whole = torch.cat([evaluated for evaluated, _ in evaluation_batches(insects, SMALL, batch_size=99)])
    seen = torch.zeros(len(whole))
    for rank in range(world_size):
        made = evaluation_batches(
            insects, SMALL, batch_size=2, rank=rank, world_size=world_size, workers=workers
        )
        for inputs, labels in made:
            same = (inputs[:, None] == whole[None]).flatten(2).all(dim=2)
            seen += same.sum(dim=0)
            np.testing.assert_array_equal(labels, insects.validation.labels[same.int().argmax(dim=1)])
    assert (seen == 1).all()


def test_evaluation_can_be_repeated_and_broken_off(insects: ImageSet) -> None:
    made = evaluation_batches(insects, SMALL, batch_size=2, workers=2)
    expected = list(evaluation_batches(insects, SMALL, batch_size=2))
    next(iter(made))
    assert_same(list(made), expected)
    assert_same(list(made), expected)


@pytest.fixture
def damaged(folder: Path) -> Path:
    (folder / "train" / "bee" / "009.png").write_bytes(b"no image")
    (folder / "val" / "bee" / "004.png").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_corrupt_image_stops_with_one_line(damaged: Path, workers: int) -> None:
    images = open_images(str(damaged))
    for made in (
        training_batches(images, SMALL, batch_size=6, seed=0, first_step=0, steps=20, workers=workers),
        evaluation_batches(images, SMALL, batch_size=2, workers=workers),
    ):
        with pytest.raises(
            CorruptImageError, match=r"bee/00[49]\.png: not a known image format( \(|$)"
        ) as caught:
            list(made)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_image_is_replaced_by_the_next_one_and_warned_of_once(
    damaged: Path, insects: ImageSet, workers: int
) -> None:
    images = open_images(str(damaged), corrupt="skip")
    with pytest.warns(UserWarning, match=r"train/bee/009\.png: not a known") as caught:
        skipping = batches(images, PLAIN, steps=9, workers=workers)
    # Newer Pythons warn of every fork as well.
    assert [each.category for each in caught if issubclass(each.category, UserWarning)] == [UserWarning]
    whole = shown(insects, batches(insects, PLAIN, steps=9))
    assert shown(insects, skipping) == [10 if index == 9 else index for index in whole]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        batches(images, PLAIN, steps=9, workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_validation_image_is_left_out(damaged: Path, insects: ImageSet, workers: int) -> None:
    images = open_images(str(damaged), corrupt="skip")
    with pytest.warns(UserWarning, match=r"val/bee/004\.png"):
        skipping = list(evaluation_batches(images, SMALL, batch_size=2, workers=workers))
    whole = next(iter(evaluation_batches(insects, SMALL, batch_size=9)))
    kept = torch.arange(9) != 4
    for place in range(2):
        assert torch.equal(torch.cat([made[place] for made in skipping]), whole[place][kept])


def test_no_readable_image_is_bad_input(folder: Path) -> None:
    for file in (folder / "train").rglob("*.png"):
        file.write_bytes(b"no image")
    images = open_images(str(folder), corrupt="skip")
    with pytest.raises(InputError, match="none of the 18 training images of insects can be decoded"):
        batches(images)


def test_synthetic_batch_is_one_of_the_same_form(insects: ImageSet) -> None:
    made = list(synthetic_batches(insects, SMALL, batch_size=6, seed=0, first_step=2, steps=8))
    assert len(made) == 6
    assert len({id(inputs) for inputs, _ in made}) == 1
    for ours, real in zip(made[0], batches(insects)[0], strict=True):
        assert (ours.shape, ours.dtype) == (real.shape, real.dtype)
    torch.testing.assert_close(made[0][1].sum(dim=1), torch.ones(6))


@pytest.mark.parametrize("make", [training_batches, synthetic_batches])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 20}, "batch_size must be from 1 to the 18 training images of arrays, got 20"),
        ({"batch_size": 0}, "batch_size must be from 1 to the 18 .*, got 0"),
        ({"batch_size": 5}, "mix images in pairs: .* even on each of the 1 processes, got 5"),
        (
            {"batch_size": 6, "world_size": 2},
            "mix images in pairs: .* even on each of the 2 processes, got 3",
        ),
        ({"world_size": 4}, "batch_size must be a multiple of the 4 processes, got 6"),
        ({"rank": 1}, "rank must be from 0 to world_size - 1 = 0, got 1"),
        ({"first_step": 9}, "first_step must be from 0 to steps = 8, got 9"),
    ],
)
def test_bad_arguments_are_refused_at_once(
    insects: ImageSet, make: Any, changes: dict[str, int], message: str
) -> None:
    arguments = {"batch_size": 6, "seed": 0, "first_step": 0, "steps": 8, **changes}
    with pytest.raises(InputError, match=message):
        make(insects, SMALL, **arguments)


def test_odd_batches_need_no_mixing(insects: ImageSet) -> None:
    assert len(batches(insects, UNMIXED, batch_size=5)[0][0]) == 5
    with pytest.raises(InputError, match="workers must be an integer of at least 0, got -1"):
        batches(insects, workers=-1)
