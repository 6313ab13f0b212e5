"""Kernel regression as scikit-learn estimators; needs the extra `regression`."""

from nadaraya.regression.chunked import ChunkedNadarayaWatson
from nadaraya.regression.classifier import NadarayaWatsonClassifier
from nadaraya.regression.conditional import NadarayaWatsonConditionalDensity
from nadaraya.regression.density import NadarayaWatsonDensity
from nadaraya.regression.displays import RegressionDisplay
from nadaraya.regression.grid_displays import ClassifierDisplay, DensityDisplay
from nadaraya.regression.grid_means import GridMeans
from nadaraya.regression.masked import MaskedTraining, masked_training
from nadaraya.regression.multi_head import MultiHeadKernelRegression
from nadaraya.regression.nadaraya_watson import NadarayaWatson
from nadaraya.regression.non_local import non_local_means
from nadaraya.regression.quantile import KernelQuantileRegressor
from nadaraya.regression.summary import Summary
from nadaraya.regression.sums import warm_up

__all__ = [
    "ChunkedNadarayaWatson",
    "ClassifierDisplay",
    "DensityDisplay",
    "GridMeans",
    "KernelQuantileRegressor",
    "MaskedTraining",
    "MultiHeadKernelRegression",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "NadarayaWatsonConditionalDensity",
    "NadarayaWatsonDensity",
    "RegressionDisplay",
    "Summary",
    "masked_training",
    "non_local_means",
    "warm_up",
]
