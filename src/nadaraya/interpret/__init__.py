"""Corpora and models seen from inside: lags, banks and their terms, implied kernels, attention maps."""

from nadaraya.interpret.attention_maps import AttentionMaps, capture_attention, load_maps, save_maps
from nadaraya.interpret.bandwidths import GridShape, bandwidth_matrix, grid_shapes
from nadaraya.interpret.bank_fits import BankFit, fit_banks
from nadaraya.interpret.banks import (
    BankShape,
    BumpTable,
    PeakMatch,
    bank_shapes,
    bump_figures,
    bump_table,
    match_peaks,
)
from nadaraya.interpret.implied import (
    ImpliedKernel,
    fit_implied,
    fitted_kernels,
    implied_kernels,
    implied_summary,
)
from nadaraya.interpret.lags import (
    SEPARATORS,
    LagHistogram,
    LagPeak,
    autocorrelation,
    compile_separator,
    lag_histogram,
    separator_lags,
    token_lag_histogram,
)
from nadaraya.interpret.loading import ImageModel, TextModel
from nadaraya.interpret.mutual_information import corpus_start, mutual_information
from nadaraya.interpret.terms import Term, TermReport, bank_terms, term_report

__all__ = [
    "SEPARATORS",
    "AttentionMaps",
    "BankFit",
    "BankShape",
    "BumpTable",
    "GridShape",
    "ImageModel",
    "ImpliedKernel",
    "LagHistogram",
    "LagPeak",
    "PeakMatch",
    "Term",
    "TermReport",
    "TextModel",
    "autocorrelation",
    "bandwidth_matrix",
    "bank_shapes",
    "bank_terms",
    "bump_figures",
    "bump_table",
    "capture_attention",
    "compile_separator",
    "corpus_start",
    "fit_banks",
    "fit_implied",
    "fitted_kernels",
    "grid_shapes",
    "implied_kernels",
    "implied_summary",
    "lag_histogram",
    "load_maps",
    "match_peaks",
    "mutual_information",
    "save_maps",
    "separator_lags",
    "term_report",
    "token_lag_histogram",
]
