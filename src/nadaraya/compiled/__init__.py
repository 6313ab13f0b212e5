"""Code for numba that several packages share; imported where numba is installed."""
