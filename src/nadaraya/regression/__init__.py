"""Kernel regression as scikit-learn estimators; needs the extra `regression`."""

from nadaraya.regression.classifier import NadarayaWatsonClassifier
from nadaraya.regression.conditional import NadarayaWatsonConditionalDensity
from nadaraya.regression.density import NadarayaWatsonDensity
from nadaraya.regression.masked import MaskedTraining, masked_training
from nadaraya.regression.multi_head import MultiHeadKernelRegression
from nadaraya.regression.nadaraya_watson import NadarayaWatson
from nadaraya.regression.quantile import KernelQuantileRegressor
from nadaraya.regression.selection import Selection
from nadaraya.regression.sums import warm_up

__all__ = [
    "KernelQuantileRegressor",
    "MaskedTraining",
    "MultiHeadKernelRegression",
    "NadarayaWatson",
    "NadarayaWatsonClassifier",
    "NadarayaWatsonConditionalDensity",
    "NadarayaWatsonDensity",
    "Selection",
    "masked_training",
    "warm_up",
]
