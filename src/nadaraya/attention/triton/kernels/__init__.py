"""The Triton kernels themselves; the operators beside this package launch them."""
