"""Corpora and models seen from inside: lags, banks and their terms, implied kernels, attention maps."""

from nadaraya.interpret.attention_maps import capture_attention, load_maps, save_maps
from nadaraya.interpret.bandwidths import bandwidth_matrix
from nadaraya.interpret.banks import bank_shapes, bump_figures
from nadaraya.interpret.implied import fit_implied, implied_kernels
from nadaraya.interpret.lags import lag_histogram
from nadaraya.interpret.loading import ImageModel, TextModel
from nadaraya.interpret.mutual_information import corpus_start, mutual_information
from nadaraya.interpret.terms import term_report

__all__ = [
    "ImageModel",
    "TextModel",
    "bandwidth_matrix",
    "bank_shapes",
    "bump_figures",
    "capture_attention",
    "corpus_start",
    "fit_implied",
    "implied_kernels",
    "lag_histogram",
    "load_maps",
    "mutual_information",
    "save_maps",
    "term_report",
]
