"""What numba compiles for several packages; imported where numba is installed."""
