"""What a corpus and a trained model show: separator lags, bank shapes, attention maps."""

from nadaraya.interpret.attention_maps import AttentionMaps, capture_attention
from nadaraya.interpret.bandwidths import GridShape, bandwidth_matrix, grid_shapes
from nadaraya.interpret.banks import BankShape, bank_shapes
from nadaraya.interpret.lags import (
    LagHistogram,
    LagPeak,
    autocorrelation,
    lag_histogram,
    separator_lags,
    token_lag_histogram,
)
from nadaraya.interpret.loading import ImageModel, TextModel
from nadaraya.interpret.separators import SEPARATORS, compile_separator
from nadaraya.interpret.storage import load_maps, save_maps

__all__ = [
    "SEPARATORS",
    "AttentionMaps",
    "BankShape",
    "GridShape",
    "ImageModel",
    "LagHistogram",
    "LagPeak",
    "TextModel",
    "autocorrelation",
    "bandwidth_matrix",
    "bank_shapes",
    "capture_attention",
    "compile_separator",
    "grid_shapes",
    "lag_histogram",
    "load_maps",
    "save_maps",
    "separator_lags",
    "token_lag_histogram",
]
