"""Masked training (Czyż 2024): bandwidths that predict held-out points from the others, by Adam."""

from collections import deque
from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_X_y
from torch import Tensor

from nadaraya.errors import InputError, must_be
from nadaraya.kernels import GaussianWithoutHalf, Kernel
from nadaraya.regression.checks import (
    fixed_kernel,
    generator_of,
    is_number,
    numbers,
    positive_numbers,
    real_number,
    refuse_other_than_numbers,
    torch_device,
    verbosity,
    weights_of,
    whole_number,
)
from nadaraya.regression.sample import power_of_two
from nadaraya.regression.torch_sums import distances, relative_weights


class MaskedTraining(NamedTuple):
    """Result of `masked_training`.

    Attributes:
        bandwidths: (H,), or (H, d) when a bandwidth per feature was given; float64, in units of the features.
        combination: (H,) factors u_h of the heads' predictions, float64.
        losses: (n_steps,) mean squared error of each step's held-out points, before the step; NaN where a
            step had no held-out point with a neighbour, inf where it exceeds float64.

    See Also:
        masked_training: makes it.

    >>> from nadaraya.regression import masked_training
    >>> found = masked_training(1.0, [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0], n_steps=5)
    >>> found.bandwidths.shape, found.combination.tolist(), len(found.losses)
    ((1,), [1.0], 5)
    """

    bandwidths: NDArray[np.float64]
    combination: NDArray[np.float64]
    losses: NDArray[np.float64]


def masked_training(
    bandwidth: ArrayLike,
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: str | Kernel | None = None,
    hold_out: int | float = 1,
    n_steps: int = 100,
    learning_rate: float = 0.2,
    n_splits: int | None = None,
    average: float = 0.5,
    combination: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    random_state: int | np.random.RandomState | None = None,
    device: str | torch.device | None = None,
    verbose: int = 0,
) -> MaskedTraining:
    r"""Fits bandwidths by predicting held-out points from all others (Czyż 2024, "Masked training").

        f(x) = Σ_h u_h Σ_i y_i κ(‖(x − x_i) / ℓ_h‖) / Σ_j κ(‖(x − x_j) / ℓ_h‖)

    Every step splits the points at random, predicts the k held-out ones from the other n − k, and moves
    log ℓ_h (and u_h) by Adam against the mean squared error. With k = 1 the loss is, in expectation, the
    leave-one-out score; `n_splits=n` then makes it that score exactly, at every step.

    Czyż's procedure to the letter is `n_splits=1, average=0`. With k = 1 its steps follow the error
    of a single point: the last bandwidth is then a draw with a wide spread, and some runs step below the
    distance between neighbours, where the loss is flat, and stay there. The defaults hold out ten points per
    step in splits of k, and average the last half of the iterates (Polyak and Juditsky 1992). With several
    heads a run may still end so, at a higher loss than another seed's; a lower learning rate helps.

    Weights are computed relative to the largest, so a point far from all others is predicted by its nearest
    neighbour and never by 0/0. A held-out point with no neighbour in the support of a compact kernel, for
    any head, takes no part in the loss.

    Args:
        bandwidth: where ℓ starts, in units of the features: a number (one head), (H,), or (H, d) for one
            bandwidth per feature. Positive.
        X: (n, d) points.
        y: (n,) or (n, p) targets.
        kernel: κ of the scaled distance, one for all heads, its own parameters held fixed; a
            kernel or a name, as for `NadarayaWatson`. Default `GaussianWithoutHalf(1.0)`, Czyż's
            convention exp(−(r/ℓ)²).
        hold_out: k, the points held out in a split, a whole number from 1 to n − 1; or a fraction of n
            between 0 and 1, rounded, at least one point. Default 1.
        n_steps: number of steps of Adam. Default 100.
        learning_rate: of Adam, on log ℓ and on u. Default 0.2, as in Czyż (2024).
        n_splits: splits whose errors a step averages; they hold out different points as long as there are
            enough. Default max(1, 10 // k).
        average: the fraction of the steps, counted from the last, over which log ℓ and u are averaged;
            0 takes the last. Default 0.5.
        combination: (H,) where u starts. Default: one head has u = 1 and is not trained (plain kernel
            regression); several heads start at 1/H and are.
        sample_weight: (n,) how much each point counts, both among the neighbours and in the loss; points of
            weight 0 are left out. Default 1 each.
        random_state: seed or generator of the splits. Default: a fresh one.
        device: where PyTorch computes, in float64. Default the CPU.
        verbose: above 0, prints the mean loss ten times during training.

    Returns:
        Bandwidths, combination and losses, as NumPy arrays.

    Raises:
        InputError: an argument is out of its range or has a shape that does not fit.
        ValueError: X or y is no finite numerical array, or their lengths differ (scikit-learn's checks).

    See Also:
        MultiHeadKernelRegression: an estimator that is fitted so.
        NadarayaWatson: bandwidths by leave-one-out or AIC_c, without random splits.

    >>> import numpy as np
    >>> from nadaraya.regression import masked_training
    >>> x = np.linspace(-3, 3, 60)
    >>> masked_training(1.0, x[:, None], np.sin(3 * x), random_state=0).bandwidths.round(1)
    array([0.1])
    """
    refuse_other_than_numbers("X", X)
    refuse_other_than_numbers("y", y)
    with np.errstate(all="ignore"):
        inputs, targets = check_X_y(X, y, dtype=np.float64, multi_output=True, y_numeric=True)
    weight = weights_of(sample_weight, len(inputs))
    inputs, targets, weight = inputs[weight > 0], targets[weight > 0], weight[weight > 0]
    n, dimension = inputs.shape
    k = _hold_out(hold_out, n)
    whole_number("n_steps", n_steps)
    verbose = verbosity(verbose)
    n_splits = whole_number("n_splits", max(1, 10 // k) if n_splits is None else n_splits)
    real_number("learning_rate", learning_rate, "a positive finite number", 0, np.inf)
    real_number("average", average, "a number from 0 to 1", -1e-300, np.nextafter(1, 2))
    start = bandwidths_of_heads("bandwidth", bandwidth, dimension)
    unit, unit_of_targets = _safe_unit(inputs), _safe_unit(targets)
    inputs, targets = inputs / unit, targets / unit_of_targets
    with np.errstate(over="ignore", under="ignore"):
        start = np.clip(start / unit, 1e-100, 1e100)
    heads = len(start)
    trains_combination = combination is not None or heads > 1
    factors = numbers("combination", np.full(heads, 1 / heads) if combination is None else combination)
    if factors.shape != (heads,) or not np.isfinite(factors).all():
        raise must_be("combination", f"{heads} finite numbers, one per head", factors.tolist())

    device = torch_device(device) or torch.device("cpu")
    fixed = kernel_or_default(kernel).to(device)
    points, values, counts, log_bandwidth, u = (
        torch.tensor(array, dtype=torch.float64, device=device)
        for array in (inputs, targets.reshape(n, -1), weight, np.log(start.reshape(heads, -1)), factors)
    )
    trained = [log_bandwidth, u] if trains_combination else [log_bandwidth]
    for parameter in trained:
        parameter.requires_grad_()
    adam = torch.optim.Adam(trained, lr=learning_rate)

    generator = generator_of(random_state)
    # Split s holds out the k points from place s·k of one permutation, so splits share as few as can be.
    places = (np.arange(n) + k * np.arange(n_splits)[:, None]) % n
    losses = np.full(n_steps, np.nan)
    report_every = max(1, n_steps // 10)
    tail: deque[tuple[Tensor, Tensor]] = deque(maxlen=max(1, round(average * n_steps)))
    for step in range(n_steps):
        order = torch.from_numpy(generator.permutation(n)[places]).to(device)  # (splits, n)
        held, seen = order[:, :k], order[:, k:]
        scales = log_bandwidth.exp()
        heads_of, no_support = smooth(fixed, scales, points[held], points[seen], values[seen], counts[seen])
        counted = counts[held] * ~no_support.any(dim=-2)  # (splits, k)
        if counted.any():
            error = torch.einsum("h,shkp->skp", u, heads_of) - values[held]
            loss = (counted[..., None] * error.square()).sum() / (counted.sum() * values.shape[1])
            for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                parameter.grad = gradient
            adam.step()
            losses[step] = loss.item()
        tail.append((log_bandwidth.detach().clone(), u.detach().clone()))
        if verbose and (step + 1) % report_every == 0:
            print(f"step {step + 1}: mean loss {losses[step + 1 - report_every : step + 1].mean():.4g}")

    log_bandwidths, combinations = (
        torch.stack(iterates).mean(0).cpu() for iterates in zip(*tail, strict=True)
    )
    bandwidths = log_bandwidths.exp()
    if not (bandwidths.log().isfinite().all() and combinations.isfinite().all()):
        raise must_be("learning_rate", "so small that bandwidths and factors stay finite", learning_rate)
    with np.errstate(over="ignore", under="ignore"):
        found = bandwidths.numpy().reshape(start.shape) * unit
        return MaskedTraining(found, combinations.numpy(), losses * unit_of_targets * unit_of_targets)


def smooth(
    kernel: Kernel, bandwidths: Tensor, queries: Tensor, points: Tensor, values: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Kernel regression by every head, differentiable, all pairs at once: (..., H, m, p).

    Of bandwidths (H, 1) or (H, d), queries (..., m, d), points (..., n, d), values (..., n, p), weight (...,
    n). Also (..., H, m), where a query has no point in the kernel's support and takes its nearest points'
    mean.
    """
    scales = bandwidths[:, None, :]
    r = distances(queries.unsqueeze(-3) / scales, points.unsqueeze(-3) / scales)  # (..., H, m, n)
    weights, top = relative_weights(kernel.log(r), r)
    weights = weights * weight[..., None, None, :]
    predictions = (weights @ values.unsqueeze(-3)) / weights.sum(dim=-1, keepdim=True)
    return predictions, torch.isneginf(top)


def kernel_or_default(kernel: str | Kernel | None) -> Kernel:
    """A float64 copy of the kernel; exp(−r²) as in Czyż (2024) for None."""
    return fixed_kernel(GaussianWithoutHalf(1.0) if kernel is None else kernel)


def bandwidths_of_heads(name: str, bandwidth: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """Positive bandwidths as (H,), or (H, d) if one per feature was given."""
    array = np.atleast_1d(positive_numbers(name, bandwidth))
    if array.ndim > 2 or array.size == 0 or (array.ndim == 2 and array.shape[1] != dimension):
        raise must_be(f"shape of {name}", f"(), (heads,) or (heads, {dimension})", array.shape)
    return array


def _safe_unit(values: NDArray[np.float64]) -> float:
    """1, or where squares would over- or underflow a power of two; Adam with its ε is not free of units."""
    unit = float(power_of_two(values.reshape(-1, 1))[0])
    return 1.0 if 1e-90 < unit < 1e90 else unit


def _hold_out(hold_out: int | float, n: int) -> int:
    if n < 2:
        raise InputError(f"X must have at least 2 points of positive weight, got n_samples = {n}")
    if is_number(hold_out) and 0 < hold_out < 1:
        return min(n - 1, max(1, round(float(hold_out) * n)))
    if not is_number(hold_out) or not isinstance(hold_out, Integral) or not 1 <= hold_out < n:
        raise must_be(
            "hold_out", f"a whole number from 1 to {n - 1}, or a fraction between 0 and 1", hold_out
        )
    return int(hold_out)
