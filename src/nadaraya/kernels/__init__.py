"""Stationary kernels on lags and distances, their algebra, banks of them, and the field's position biases."""

from nadaraya.kernels.bank import KernelBank
from nadaraya.kernels.base import Exp, Kernel, Product, Scaled, Sum
from nadaraya.kernels.compact import Boxcar, Epanechnikov, Tricube
from nadaraya.kernels.composed import ComposedKernel, Constant
from nadaraya.kernels.fitting import fit_bank
from nadaraya.kernels.grid import GridKernel
from nadaraya.kernels.parameters import Positive
from nadaraya.kernels.relative import KERPLE, ALiBi, FreeTable, GeneralizedGaussian, Sandwich, T5Buckets
from nadaraya.kernels.stationary import (
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Matern,
    Periodic,
    RationalQuadratic,
)

__all__ = [
    "KERPLE",
    "ALiBi",
    "Boxcar",
    "ComposedKernel",
    "Constant",
    "Epanechnikov",
    "Exp",
    "ExponentialDecay",
    "FreeTable",
    "Gaussian",
    "GaussianWithoutHalf",
    "GeneralizedGaussian",
    "GridKernel",
    "Kernel",
    "KernelBank",
    "Matern",
    "Periodic",
    "Positive",
    "Product",
    "RationalQuadratic",
    "Sandwich",
    "Scaled",
    "Sum",
    "T5Buckets",
    "Tricube",
    "fit_bank",
]
