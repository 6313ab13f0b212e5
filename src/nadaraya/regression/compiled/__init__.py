"""Sums over all pairs of points, compiled for the processor by numba: float32 and float64, O(n + m) memory."""
