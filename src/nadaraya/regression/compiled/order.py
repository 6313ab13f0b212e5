"""An order of points in which neighbours in space are neighbours in memory, and tiles are small in space."""

import numpy as np
from numpy.typing import NDArray

TILE = 256  # points of a tile: its buffers stay in the first-level cache
BLOCK = 32  # queries that share one list of tiles


def spatial_order(x: NDArray[np.floating], run: int) -> NDArray[np.int64]:
    """Splits the points again and again at the middle of their widest feature, down to runs.

    Args:
        x: (d, n) points, in units in which the features compare.
        run: greatest number of points in a run.

    Returns:
        (n,) the points in their new order; any order is correct, this one makes boxes small.
    """
    n = x.shape[1]
    permutation = np.arange(n)
    pieces = [(0, n)]
    while pieces:
        first, last = pieces.pop()
        count = last - first
        if count <= run:
            continue
        members = permutation[first:last]
        part = x[:, members]
        widest = part[np.argmax(part.max(axis=1) - part.min(axis=1))]
        if count <= 8 * run:
            permutation[first:last] = members[np.argsort(widest)]
            if count <= 2 * run:
                continue
            half = (count // run + 1) // 2 * run
        else:
            half = count // run // 2 * run
            permutation[first:last] = members[np.argpartition(widest, half)]
        pieces += [(first, first + half), (first + half, last)]
    return permutation
