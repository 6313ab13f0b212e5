"""The transforms are timm's to rounding; each part does what its name says; bad values are refused."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nadaraya.data.images import Augmentation
from nadaraya.data.images.transforms import (
    TrainingTransform,
    evaluation_transform,
    global_states_kept,
    seed_all,
)
from nadaraya.errors import InputError

PHOTOS = Path(__file__).parents[4] / "shared" / "data" / "images"
PLAIN = {"flip": 0.0, "rand_augment": None, "random_erasing": 0.0}


def picture(mode: str = "RGB", size: tuple[int, int] = (48, 36)) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)


def augmented(augmentation: Augmentation, image: Image.Image, seed: int = 0) -> torch.Tensor:
    channels = len(image.getbands())
    transform = TrainingTransform(augmentation, channels)
    out = torch.full((channels, augmentation.image_size, augmentation.image_size), torch.nan)
    with global_states_kept():
        seed_all(seed)
        transform.into(image, out)
    return out


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
def test_training_transform_is_that_of_timm(mode: str, interpolation: str) -> None:
    from timm.data import create_transform

    # Of a magnitude at which timm itself never posterises to no bits, see below.
    augmentation = Augmentation(
        32, interpolation=interpolation, random_erasing=0.5, rand_augment="rand-m7-n2-mstd0.5-inc1"
    )
    image = picture(mode)
    mean, std = augmentation.statistics(len(mode))
    theirs = create_transform(
        32,
        is_training=True,
        auto_augment=augmentation.rand_augment,
        interpolation=interpolation,
        re_prob=0.5,
        re_mode="pixel",
        mean=mean,
        std=std,
    )
    for seed in range(20):
        with global_states_kept():
            seed_all(seed)
            expected = theirs(image)
        torch.testing.assert_close(augmented(augmentation, image, seed), expected, atol=2e-6, rtol=1e-5)


def test_evaluation_transform_is_that_of_timm() -> None:
    from timm.data import create_transform

    if not PHOTOS.is_dir():
        pytest.skip("the photographs are not here")
    theirs = create_transform(224, interpolation="bicubic", crop_pct=0.875)
    for name in ("astronaut", "chelsea", "coffee"):
        image = Image.open(PHOTOS / f"{name}.png")
        ours = evaluation_transform(Augmentation())(image)
        torch.testing.assert_close(ours, theirs(image.convert("RGB")), atol=2e-6, rtol=1e-5)


def test_evaluation_of_small_images_takes_all_of_them() -> None:
    image = picture(size=(32, 32))
    transform = evaluation_transform(
        Augmentation(image_size=32, padding_crop=4, mean=(0.0,) * 3, std=(1.0,) * 3)
    )
    expected = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    torch.testing.assert_close(transform(image), expected)


@pytest.mark.parametrize("size", [(16, 16), (24, 16), (32, 48)])
def test_padded_crops_are_all_the_windows_of_the_padded_image(size: tuple[int, int]) -> None:
    from torchvision.transforms import Resize
    from torchvision.transforms.functional import InterpolationMode, pad

    augmentation = Augmentation(image_size=16, padding_crop=1, mean=(0.0,), std=(1 / 255,), **PLAIN)
    image = picture("L", size)
    padded = np.asarray(pad(Resize(16, InterpolationMode.BICUBIC)(image), 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (16, 16)).reshape(-1, 16, 16)
    expected = {window.tobytes() for window in windows}
    crops = (augmented(augmentation, image, seed)[0] for seed in range(400))
    assert {crop.round().byte().numpy().tobytes() for crop in crops} == expected


def test_posterisation_to_no_bits_is_black() -> None:
    plain = {"flip": 0.0, "random_erasing": 0.0, "mean": (0.0,), "std": (1.0,)}
    augmentation = Augmentation(16, rand_augment="rand-m10-n2-p1-inc1", **plain)
    image = picture("L")
    assert any((augmented(augmentation, image, seed) == 0).all() for seed in range(200))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "policy", ["rand-m9-n2-mstd0.5-inc1", "rand-m15-n2", "augmix-m5-w4-d2", "original", "v0", "3a"]
)
def test_every_policy_of_timm_works(mode: str, policy: str) -> None:
    augmentation = Augmentation(16, rand_augment=policy, color_jitter=0.4)
    image = picture(mode)
    assert all(augmented(augmentation, image, seed).isfinite().all() for seed in range(60))


def test_color_jitter_is_applied_beside_rand_augment() -> None:
    options = {"image_size": 16, "flip": 0.0, "random_erasing": 0.0, "rand_augment": "rand-m0-n0"}
    image = picture()
    without, beside = (augmented(Augmentation(**options, color_jitter=value), image) for value in (None, 0.4))
    assert not torch.equal(without, beside)


def test_flip_always_mirrors() -> None:
    plain = {"image_size": 16, "crop_scale": (1.0, 1.0), "rand_augment": None, "random_erasing": 0.0}
    image = picture(size=(16, 16))
    kept, flipped = (augmented(Augmentation(**plain, flip=value), image) for value in (0.0, 1.0))
    torch.testing.assert_close(flipped, kept.flip(-1))


def test_erasing_with_zeros_erases_a_rectangle() -> None:
    options = {"image_size": 16, "crop_scale": (1.0, 1.0), "flip": 0.0, "rand_augment": None}
    image = picture(size=(16, 16))
    whole = augmented(Augmentation(**options, random_erasing=0.0), image)
    erased = augmented(Augmentation(**options, random_erasing=1.0, erasing_mode="const"), image)
    changed = (whole != erased).any(dim=0)
    assert changed.any()
    rows, columns = changed.any(dim=1).nonzero().ravel(), changed.any(dim=0).nonzero().ravel()
    box = changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert box.all()
    assert (erased[:, changed] == 0).all()


def test_statistics_are_defaults_or_given() -> None:
    assert Augmentation().statistics(1) == ((0.5,), (0.5,))
    assert Augmentation().statistics(3)[0] == (0.485, 0.456, 0.406)
    assert Augmentation(mean=[0.1], std=[0.2]).statistics(1) == ((0.1,), (0.2,))
    with pytest.raises(
        InputError, match=r"augmentation mean must be 3 numbers, one per channel, got \(0\.1,\)"
    ):
        Augmentation(mean=(0.1,)).statistics(3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("image_size", 0),
        ("crop_scale", (0.5, 0.1)),
        ("crop_scale", (0.0, 1.0)),
        ("crop_scale", (0.1, 0.5, 0.7)),
        ("flip", 1.1),
        ("color_jitter", -1.0),
        ("random_erasing", -0.1),
        ("padding_crop", -1),
        ("mixup", -0.1),
        ("cutmix", float("inf")),
        ("label_smoothing", 1.0),
        ("repeats", 0),
        ("std", (0.0,)),
        ("evaluation_crop", 1.5),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"augmentation {name} must be "):
        Augmentation(**{name: value})  # type: ignore[arg-type]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'bicubic'"):
        Augmentation(interpolation="bicubik")
    with pytest.raises(InputError, match="did you mean 'pixel'"):
        Augmentation(erasing_mode="pixels")
    for policy in ("rand-z9", "nonsense"):
        with pytest.raises(InputError, match=f"rand_augment must be a policy of timm, .*, got '{policy}'"):
            TrainingTransform(Augmentation(rand_augment=policy), 3)


def test_global_states_are_put_back() -> None:
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    augmented(Augmentation(image_size=16), picture())
    assert random.getstate() == python
    np.testing.assert_equal(np.random.get_state(), arrays)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), tensors)


def test_only_the_middle_of_a_long_strip_is_resized() -> None:
    pixels = np.zeros((5, 2000, 3), np.uint8)
    pixels[:, 960:1040] = 255
    strip = Image.fromarray(pixels)
    for side in (strip, strip.transpose(Image.Transpose.ROTATE_90)):
        inputs = evaluation_transform(Augmentation(image_size=32, mean=(0,) * 3, std=(1,) * 3))(side)
        assert inputs.shape == (3, 32, 32)
        assert inputs.min() > 0.99
    first = evaluation_transform(Augmentation(image_size=32))._steps[0]
    assert first(Image.new("RGB", (60_000, 1))).size == (16, 1)
