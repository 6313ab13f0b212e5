"""Sums over all pairs of points, compiled for the processor by numba; O(n + m) memory."""
