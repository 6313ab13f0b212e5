"""Kernel regression as scikit-learn estimators, on the operator that attention is (needs the extra `regression`)."""

from nadaraya.regression.masked import MaskedTraining, masked_training
from nadaraya.regression.multi_head import MultiHeadKernelRegression
from nadaraya.regression.nadaraya_watson import NadarayaWatson

__all__ = [
    "MaskedTraining",
    "MultiHeadKernelRegression",
    "NadarayaWatson",
    "masked_training",
]
