"""Non-local means: the definition, scikit-image, kernel attention on patches, limits and errors."""

import numpy as np
import pytest
import torch

from nadaraya import kernel_attention
from nadaraya.errors import InputError
from nadaraya.kernels import Gaussian
from nadaraya.regression import non_local_means

RANDOM = np.random.default_rng(0)
GREY, COLOUR = RANDOM.random((13, 17)), RANDOM.random((14, 11, 3))
SETTINGS = [
    {"h": 0.2, "patch_size": 5, "patch_distance": 4},
    {"h": 0.3, "patch_size": 7, "patch_distance": 30, "sigma": 0.1},  # a window wider than the image
    {"h": 0.1, "patch_size": 3, "patch_distance": 1, "sigma": 0.2},
]


def patches_of(image: np.ndarray, size: int) -> np.ndarray:
    """(pixels, size² channels), whose squared distances are those of non-local means."""
    reach = size // 2
    image = image.reshape(*image.shape[:2], -1)
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    lags = np.arange(-reach, reach + 1)
    weights = np.exp(-(lags[:, None] ** 2 + lags**2) / (2 * ((size - 1) / 4) ** 2))
    weights = weights[..., None] / (weights.sum() * image.shape[2])
    rows, columns = image.shape[:2]
    pairs = np.ndindex(rows, columns)
    return np.stack([(np.sqrt(weights) * padded[i : i + size, j : j + size]).ravel() for i, j in pairs])


def window_of(image: np.ndarray, distance: int) -> np.ndarray:
    """(pixels, pixels) bool, True in the search window."""
    places = np.stack(np.indices(image.shape[:2])).reshape(2, -1)
    return (abs(places[:, :, None] - places[:, None]) <= distance).all(axis=0)


@pytest.mark.parametrize("image", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_definition(image, settings):
    patches = patches_of(image, settings["patch_size"])
    squares = ((patches[:, None] - patches) ** 2).sum(axis=-1)
    kappa = np.exp(-np.maximum(squares - 2 * settings.get("sigma", 0.0) ** 2, 0.0) / settings["h"] ** 2)
    kappa *= window_of(image, settings["patch_distance"])
    expected = kappa @ image.reshape(len(kappa), -1) / kappa.sum(axis=1, keepdims=True)
    found = non_local_means(image, **settings)
    np.testing.assert_allclose(found, expected.reshape(image.shape), rtol=0, atol=1e-13)


@pytest.mark.parametrize("image", [GREY, COLOUR], ids=["grey", "colour"])
def test_kernel_attention_on_patches(image):
    """Patches are queries and keys, pixels values; the mask is the search window."""
    patches = torch.from_numpy(patches_of(image, 5))[None, None]
    pixels = torch.from_numpy(image.reshape(1, 1, patches.shape[2], -1))
    mask = torch.from_numpy(window_of(image, 4))
    expected = kernel_attention(patches, patches, pixels, content=Gaussian(0.2 / 2**0.5), attn_mask=mask)
    found = non_local_means(image, 0.2, patch_size=5, patch_distance=4)
    np.testing.assert_allclose(found, expected.detach().numpy().reshape(image.shape), rtol=0, atol=1e-7)


def schraudolph(exponents: torch.Tensor) -> torch.Tensor:
    """Scikit-image's exponential: linear between powers of two (Schraudolph 1999), over its value at 0."""
    upper = (exponents * (2**20 / np.log(2.0))).long() + (1023 * 2**20 - 60801)
    at_zero = torch.tensor((1023 * 2**20 - 60801) << 32)
    return (upper << 32).view(torch.float64) / at_zero.view(torch.float64)


@pytest.mark.parametrize("image", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_scikit_image(image, sigma, monkeypatch):
    """Equal with its exponential, and near it with the exact one; no weight here is below exp(−5)."""
    restoration = pytest.importorskip("skimage.restoration")
    settings = {"h": 0.4, "sigma": sigma, "patch_size": 5, "patch_distance": 4}
    channels = -1 if image.ndim == 3 else None
    expected = restoration.denoise_nl_means(image, fast_mode=False, channel_axis=channels, **settings)
    np.testing.assert_allclose(non_local_means(image, **settings), expected, rtol=0, atol=0.005)
    monkeypatch.setattr(torch, "exp", schraudolph)
    np.testing.assert_allclose(non_local_means(image, **settings), expected, rtol=0, atol=1e-6)


def test_limits_of_the_bandwidth():
    np.testing.assert_array_equal(non_local_means(GREY, 1e-200, sigma=1e-201, patch_size=5), GREY)
    window = window_of(GREY, 3).astype(float)
    mean = (window @ GREY.ravel() / window.sum(axis=1)).reshape(GREY.shape)
    np.testing.assert_allclose(non_local_means(GREY, 1e9, patch_distance=3), mean, rtol=0, atol=1e-13)


def test_a_window_of_one_pixel_is_the_image():
    np.testing.assert_array_equal(non_local_means(COLOUR, 0.1, patch_distance=0), COLOUR)


def test_units_and_symmetries():
    def denoised(image, unit=1.0):
        return non_local_means(image, 0.2 * unit, sigma=0.1 * unit, patch_size=5, patch_distance=4)

    expected = denoised(GREY)
    np.testing.assert_allclose(denoised(255 * GREY - 40, 255), 255 * expected - 40, rtol=0, atol=1e-10)
    for turn in (np.flipud, np.fliplr, np.transpose):
        np.testing.assert_allclose(denoised(turn(GREY)), turn(expected), rtol=0, atol=1e-13)


def test_types_and_shapes():
    whole = (255 * GREY).astype(np.uint8)
    assert non_local_means(whole, 20.0).dtype == np.float64
    np.testing.assert_array_equal(non_local_means(whole, 20.0), non_local_means(whole.astype(float), 20.0))
    single = non_local_means(COLOUR.astype(np.float32), 0.2)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, non_local_means(COLOUR, 0.2), rtol=0, atol=1e-6)
    assert non_local_means(np.ones((1, 2)), 0.1).tolist() == [[1.0, 1.0]]  # smaller than a patch
    assert non_local_means(GREY[..., None], 0.1).shape == (*GREY.shape, 1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"image": GREY[0]}, r"shape of image must be \(height, width\) or .* got \(17,\)"),
        ({"image": GREY[:0]}, r"shape of image must be .* got \(0, 17\)"),
        ({"image": np.where(GREY > 0.9, np.nan, GREY)}, "image must be finite, got .*nan"),
        ({"image": "noise.png"}, "image must be numbers, got 'noise.png'"),
        ({"h": 0.0}, r"h must be positive and finite, got 0\.0"),
        ({"h": -0.1}, r"h must be positive and finite, got -0\.1"),
        ({"sigma": -1.0}, r"sigma must be a finite number of at least 0, got -1\.0"),
        ({"patch_size": 4}, "patch_size must be odd, got 4"),
        ({"patch_size": -3}, "patch_size must be a whole number of at least 1, got -3"),
        ({"patch_distance": 2.5}, r"patch_distance must be a whole number of at least 0, got 2\.5"),
    ],
)
def test_errors_are_one_line(changes, match):
    with pytest.raises(InputError, match=rf"^[^\n]*{match}[^\n]*$"):
        non_local_means(**{"image": GREY, "h": 0.1, **changes})
