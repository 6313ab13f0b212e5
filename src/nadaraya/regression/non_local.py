"""Non-local means: kernel regression of an image's pixels on the patches around them."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nadaraya.errors import must_be
from nadaraya.regression.checks import numbers, real_number, whole_number


def non_local_means(
    image: ArrayLike,
    h: float,
    *,
    sigma: float = 0.0,
    patch_size: int = 7,
    patch_distance: int = 11,
) -> NDArray[np.floating]:
    """Denoise an image by non-local means (Buades, Coll and Morel 2005), without learning.

        out_i = Σ_j κ(i,j) v_j / Σ_j κ(i,j)
        κ(i,j) = exp(−max(‖P_i − P_j‖² − 2 sigma², 0) / h²)

    v are the pixels, P the patches around them, and j runs over the search window around i. The squared
    distance is a mean over channels and over the patch, weighted by a Gaussian of standard deviation
    (patch_size − 1) / 4 pixels about its centre. With `sigma=0` this is `kernel_attention` on the weighted
    patches with content `Gaussian(h / √2)` and the search window as mask. The weights are those of
    scikit-image's `denoise_nl_means(fast_mode=False)`, which approximates the exponential to a few per cent
    and drops weights below exp(−5). Time is O(pixels · window · patch_size), memory O(pixels).

    Args:
        image: (H, W) grey or (H, W, C) with C channels, real numbers in any range. Patches are reflected at
            the edge; the search window ends there.
        h: scale of the distances, in units of the image; larger values smooth more. Near the standard
            deviation of the noise, somewhat less where `sigma` is given.
        sigma: standard deviation of the noise, in units of the image, of which patches may differ without
            losing weight. Default 0.
        patch_size: edge of a patch in pixels, odd. Default 7.
        patch_distance: greatest row and column lag of the search window, in pixels. Default 11.

    Returns:
        The denoised image, of the shape of `image`; float32 for float32, else float64.

    Raises:
        InputError: an image of another shape or with numbers that are not finite, an even patch size, an h
            that is not positive, a negative sigma or distance.

    See Also:
        nadaraya.kernel_attention: the same sums for any queries, keys and values.

    >>> import numpy as np
    >>> from nadaraya.regression import non_local_means
    >>> stripes = np.tile([0.0, 0.0, 1.0, 1.0], (16, 4))
    >>> noisy = stripes + 0.1 * np.random.default_rng(0).normal(size=stripes.shape)
    >>> denoised = non_local_means(noisy, 0.1, sigma=0.1, patch_size=5, patch_distance=6)
    >>> bool(abs(denoised - stripes).mean() < 0.4 * abs(noisy - stripes).mean())
    True
    """
    array = _checked(image)
    h = real_number("h", h, "positive and finite", 0.0, np.inf)
    sigma = real_number("sigma", sigma, "a finite number of at least 0", -1e-300, np.inf)
    if whole_number("patch_size", patch_size) % 2 == 0:
        raise must_be("patch_size", "odd", patch_size)
    distance = whole_number("patch_distance", patch_distance, 0)

    reach = patch_size // 2
    # Numpy reflects more than once where an image is smaller than its patches; torch refuses to.
    padding = ((reach, reach), (reach, reach), (0, 0))
    pixels = torch.from_numpy(np.moveaxis(array, -1, 0).copy())  # (C, H, W)
    padded = torch.from_numpy(np.moveaxis(np.pad(array, padding, mode="reflect"), -1, 0).copy())
    profile = _profile(patch_size).to(padded)
    h = max(h, float(np.finfo(array.dtype).tiny))
    noise = 2 * min(sigma / h, 1e18) ** 2  # so far within float32

    total, weight = pixels.clone(), torch.ones_like(pixels[0])  # of the lag 0, where the patches are equal
    for rows, columns in _lags(distance, *pixels.shape[1:]):
        # A pair has one weight for both of its pixels: the lag and its opposite in one go.
        here, there = _overlap(rows, pixels.shape[1]), _overlap(columns, pixels.shape[2])
        first, second = ((slice(None), a, b) for a, b in zip(here, there, strict=True))
        wide = [tuple(slice(s.start, s.stop + 2 * reach) for s in part[1:]) for part in (first, second)]
        squares = (padded[:, *wide[0]] - padded[:, *wide[1]]).div_(h).square_().mean(dim=0)
        distances = _weighted(_weighted(squares, profile).mT, profile).mT
        kappa = torch.exp(-(distances - noise).clamp_(min=0.0))
        total[first] += kappa * pixels[second]
        total[second] += kappa * pixels[first]
        weight[first[1:]] += kappa
        weight[second[1:]] += kappa
    return np.moveaxis((total / weight).numpy(), 0, -1).reshape(np.shape(image))


def _checked(image: ArrayLike) -> NDArray[np.floating]:
    """An image as (H, W, C), float32 or float64."""
    array = numbers("image", image)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise must_be("shape of image", "(height, width) or (height, width, channels)", array.shape)
    if not np.isfinite(array).all():
        raise must_be("image", "finite", array[~np.isfinite(array)][0])
    if getattr(image, "dtype", None) == np.float32:
        array = array.astype(np.float32)
    return array if array.ndim == 3 else array[..., None]


def _profile(size: int) -> Tensor:
    """Weights of a patch along one of its axes, (size,), of sum 1."""
    lags = np.arange(size) - size // 2
    profile = np.exp(-8.0 * (lags / max(size - 1, 1)) ** 2)
    return torch.from_numpy(profile / profile.sum())


def _lags(distance: int, height: int, width: int) -> Iterator[tuple[int, int]]:
    """Half of the lags of the search window: of each and its opposite one, without 0."""
    most_rows, most_columns = min(distance, height - 1), min(distance, width - 1)
    yield from ((0, columns) for columns in range(1, most_columns + 1))
    for rows in range(1, most_rows + 1):
        yield from ((rows, columns) for columns in range(-most_columns, most_columns + 1))


def _overlap(lag: int, size: int) -> tuple[slice, slice]:
    """The places i along an axis for which i + lag is there, and those places i + lag."""
    return slice(max(0, -lag), size - max(0, lag)), slice(max(0, lag), size - max(0, -lag))


def _weighted(squares: Tensor, profile: Tensor) -> Tensor:
    """Sums along the rows' axis, weighted by the profile: (H + size − 1, W) to (H, W)."""
    height = len(squares) - len(profile) + 1
    out = squares[:height] * profile[0]
    for place in range(1, len(profile)):
        out.addcmul_(squares[place : place + height], profile[place])
    return out
