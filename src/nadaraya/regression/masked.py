"""Masked training (document A): bandwidths that predict held-out points from the others, by Adam."""

from collections import deque
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state, check_X_y
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.kernels import GaussianWithoutHalf, Kernel
from nadaraya.regression.checks import fixed_kernel, number_array, weights_of, whole_number


class MaskedTraining(NamedTuple):
    """What `masked_training` found.

    Attributes:
        bandwidths: (H,), or (H, d) when a bandwidth a feature was given; float64, in units of the features.
        combination: (H,) factors u_h of the heads' predictions, float64.
        losses: (n_steps,) mean squared error of each step's held-out points, before the step; NaN where a
            step had no held-out point with a neighbour.
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
    r"""Fits bandwidths by predicting held-out points from all others (document A, "Masked training").

        f(x) = Σ_h u_h Σ_i y_i κ(‖(x − x_i) / ℓ_h‖) / Σ_j κ(‖(x − x_j) / ℓ_h‖)

    Every step splits the points at random, predicts the k held-out ones from the other n − k, and moves
    log ℓ_h (and u_h) by Adam against the mean squared error. With k = 1 the loss is, in expectation, the
    leave-one-out score; `n_splits=n` then makes it that score exactly, at every step.

    Document A's procedure to the letter is `n_splits=1, average=0`. With k = 1 its steps follow the error
    of a single point: the last bandwidth is then a draw with a wide spread, and some runs step below the
    distance between neighbours, where the loss is flat, and stay there. The defaults hold out ten points a
    step in splits of k, and average the last half of the iterates (Polyak and Juditsky 1992). With several
    heads a run may still end so, at a higher loss than another seed's; a lower learning rate helps.

    Weights are computed as a softmax of log κ, so a point far from all others is predicted by its nearest
    neighbour and never by 0/0. A held-out point with no neighbour in the support of a compact kernel, for
    any head, takes no part in the loss.

    Args:
        bandwidth: where ℓ starts, in units of the features: a number (one head), (H,), or (H, d) for one
            bandwidth a feature. Positive.
        X: (n, d) points.
        y: (n,) or (n, p) targets.
        kernel: κ of the scaled distance, one for all heads, its own parameters held fixed; a
            kernel or a name, as for `NadarayaWatson`. Default `GaussianWithoutHalf(1.0)`, document A's
            convention exp(−(r/ℓ)²).
        hold_out: k, the points held out in a split, a whole number from 1 to n − 1; or a fraction of n
            between 0 and 1, rounded, at least one point. Default 1.
        n_steps: number of steps of Adam. Default 100.
        learning_rate: of Adam, on log ℓ and on u. Default 0.2, document A's.
        n_splits: splits whose errors a step averages; they hold out different points as long as there are
            enough. Default max(1, 10 // k).
        average: the fraction of the steps, counted from the last, over which log ℓ and u are averaged;
            0 takes the last. Default 0.5.
        combination: (H,) where u starts. Default: one head has u = 1 and is not trained (plain kernel
            regression); several heads start at 1/H and are.
        sample_weight: (n,) how much each point counts, both among the neighbours and in the loss; points of
            weight 0 are left out. Default 1 each.
        random_state: seed or generator of the splits. Default: a fresh one.
        device: where torch computes, in float64. Default the CPU.
        verbose: above 0, prints the mean loss ten times during training.

    Returns:
        Bandwidths, combination and losses, as NumPy arrays.

    Raises:
        InputError: an argument is out of its range or has a shape that does not fit.
        ValueError: X or y is no finite numerical array, or their lengths differ (scikit-learn's checks).
    """
    inputs, targets = check_X_y(X, y, dtype=np.float64, multi_output=True, y_numeric=True)
    weight = weights_of(sample_weight, len(inputs))
    inputs, targets, weight = inputs[weight > 0], targets[weight > 0], weight[weight > 0]
    n, dimension = inputs.shape
    k = _hold_out(hold_out, n)
    whole_number("n_steps", n_steps)
    if n_splits is None:
        n_splits = max(1, 10 // k)
    whole_number("n_splits", n_splits)
    if not isinstance(learning_rate, Real) or not 0 < learning_rate < np.inf:
        raise InputError(f"learning_rate is {learning_rate!r}: accepted are positive finite numbers")
    if not isinstance(average, Real) or not 0 <= average <= 1:
        raise InputError(f"average is {average!r}: accepted are numbers from 0 to 1")
    start, shape = bandwidth_array("bandwidth", bandwidth, dimension)
    trains_combination = combination is not None or len(start) > 1
    factors = number_array(
        "combination", np.full(len(start), 1 / len(start)) if combination is None else combination
    )
    if factors.shape != (len(start),) or not np.isfinite(factors).all():
        raise InputError(
            f"combination is {factors.tolist()}: accepted are {len(start)} finite numbers, one a head"
        )

    device = torch.device("cpu" if device is None else device)
    fixed = kernel_or_default(kernel).to(device)
    points, values, counts, log_bandwidth, u = (
        torch.tensor(array, dtype=torch.float64, device=device)
        for array in (inputs, targets.reshape(n, -1), weight, np.log(start), factors)
    )
    log_counts = None if sample_weight is None else counts.log()
    trained = [log_bandwidth, u] if trains_combination else [log_bandwidth]
    for parameter in trained:
        parameter.requires_grad_()
    adam = torch.optim.Adam(trained, lr=learning_rate)

    generator = check_random_state(random_state)
    # Split s holds out the k points from place s·k of one permutation, so splits share as few as can be.
    places = (np.arange(n) + k * np.arange(n_splits)[:, None]) % n
    losses = np.full(n_steps, np.nan)
    tail: deque[tuple[Tensor, Tensor]] = deque(maxlen=max(1, round(average * n_steps)))
    for step in range(n_steps):
        order = torch.from_numpy(generator.permutation(n)[places]).to(device)  # (splits, n)
        held, seen = order[:, :k], order[:, k:]
        heads, isolated = smooth(
            fixed,
            log_bandwidth.exp(),
            points[held],
            points[seen],
            values[seen],
            None if log_counts is None else log_counts[seen],
        )
        counted = counts[held] * ~isolated.any(dim=-2)  # (splits, k)
        if counted.any():
            error = torch.einsum("h,shkp->skp", u, heads) - values[held]
            loss = (counted[..., None] * error.square()).sum() / (counted.sum() * values.shape[1])
            for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                parameter.grad = gradient
            adam.step()
            losses[step] = loss.item()
        tail.append((log_bandwidth.detach().clone(), u.detach().clone()))
        if verbose and (step + 1) % max(1, n_steps // 10) == 0:
            recent = losses[step + 1 - max(1, n_steps // 10) : step + 1]
            print(f"step {step + 1}: mean loss {recent.mean():.4g}")

    log_bandwidths, combinations = (
        torch.stack(iterates).mean(0).cpu() for iterates in zip(*tail, strict=True)
    )
    return MaskedTraining(log_bandwidths.exp().numpy().reshape(shape), combinations.numpy(), losses)


def smooth(
    kernel: Kernel,
    bandwidths: Tensor,
    queries: Tensor,
    points: Tensor,
    values: Tensor,
    log_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Kernel regression at the queries, once a head.

    Args:
        kernel: κ of the scaled distance, of one head.
        bandwidths: (H, 1), or (H, d) for one a feature.
        queries: (..., m, d).
        points: (..., n, d).
        values: (..., n, p).
        log_weights: (..., n) log of how much each point counts; default 0.

    Returns:
        (..., H, m, p) predictions, and (..., H, m) whether a query has no point in the kernel's support;
        such a query takes the mean of its nearest points, without a gradient.
    """
    scales = bandwidths[:, None, :]
    # Direct differences: nothing cancels where the bandwidth is small against the spread of the points.
    distances = torch.cdist(
        queries.unsqueeze(-3) / scales,
        points.unsqueeze(-3) / scales,
        compute_mode="donot_use_mm_for_euclid_dist",
    )  # (..., H, m, n)
    logits = kernel.log(distances)
    if log_weights is not None:
        logits = logits + log_weights[..., None, None, :]
    isolated = torch.isneginf(logits.amax(dim=-1))
    if isolated.any():
        farther = distances > distances.amin(dim=-1, keepdim=True)
        nearest = torch.zeros_like(logits).masked_fill(farther, -torch.inf)
        logits = torch.where(isolated[..., None], nearest, logits)
    return logits.softmax(dim=-1) @ values.unsqueeze(-3), isolated


def kernel_or_default(kernel: str | Kernel | None) -> Kernel:
    """A float64 copy of the kernel; document A's exp(−r²) for None."""
    return fixed_kernel(GaussianWithoutHalf(1.0) if kernel is None else kernel)


def bandwidth_array(
    name: str, bandwidth: ArrayLike, dimension: int
) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """Bandwidths as (H, 1), or (H, d) if one a feature was given, and the shape that was given, at least 1-D.

    Raises:
        InputError: they have another shape, or are not positive and finite.
    """
    array = np.atleast_1d(number_array(name, bandwidth))
    if array.ndim > 2 or array.size == 0 or (array.ndim == 2 and array.shape[1] != dimension):
        raise InputError(
            f"{name} has shape {array.shape}: accepted are a number, (heads,) or (heads, {dimension})"
        )
    if not ((array > 0) & np.isfinite(array)).all():
        raise InputError(f"{name} is {array.tolist()}: accepted are positive finite numbers")
    return array.reshape(len(array), -1), array.shape


def _hold_out(hold_out: int | float, n: int) -> int:
    if n < 2:
        raise InputError(f"n_samples = {n} points of positive weight: masked training needs at least 2")
    if isinstance(hold_out, Real) and not isinstance(hold_out, Integral) and 0 < hold_out < 1:
        return min(n - 1, max(1, round(float(hold_out) * n)))
    if isinstance(hold_out, bool) or not isinstance(hold_out, Integral) or not 1 <= hold_out < n:
        raise InputError(
            f"hold_out is {hold_out!r} with n_samples = {n}: accepted are whole numbers from 1 to {n - 1}, "
            "or a fraction between 0 and 1"
        )
    return int(hold_out)
