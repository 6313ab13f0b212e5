"""What a corpus and a trained model show: separator lags, bank shapes, implied kernels, attention maps."""

from nadaraya.interpret.attention_maps import AttentionMaps, capture_attention
from nadaraya.interpret.bandwidths import GridShape, bandwidth_matrix, grid_shapes
from nadaraya.interpret.bank_fits import BankFit, fit_banks
from nadaraya.interpret.banks import BankShape, bank_shapes
from nadaraya.interpret.implied import ImpliedKernel, fit_implied, implied_kernels, implied_summary
from nadaraya.interpret.lags import (
    LagHistogram,
    LagPeak,
    autocorrelation,
    lag_histogram,
    separator_lags,
    token_lag_histogram,
)
from nadaraya.interpret.loading import ImageModel, TextModel
from nadaraya.interpret.storage import load_maps, save_maps

__all__ = [
    "AttentionMaps",
    "BankFit",
    "BankShape",
    "GridShape",
    "ImageModel",
    "ImpliedKernel",
    "LagHistogram",
    "LagPeak",
    "TextModel",
    "autocorrelation",
    "bandwidth_matrix",
    "bank_shapes",
    "capture_attention",
    "fit_banks",
    "fit_implied",
    "grid_shapes",
    "implied_kernels",
    "implied_summary",
    "lag_histogram",
    "load_maps",
    "save_maps",
    "separator_lags",
    "token_lag_histogram",
]
