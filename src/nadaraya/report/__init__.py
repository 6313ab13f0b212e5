"""Reports on runs: figures for documents, one self-contained HTML report, maps of attention.

It needs matplotlib, jinja2 and scipy (the extra `report`), neither transformers nor timm: what it shows of a
run comes as `RunData`, attention comes as `nadaraya.interpret.AttentionMaps`.
"""

from nadaraya.report.by_lag import bank_curves, implied_curves, lag_histograms
from nadaraya.report.figures import length_curves, loss_curves, pruning_curves, write_figure
from nadaraya.report.html import render, write_report
from nadaraya.report.images import ExampleMaps, ImageRunData, read_image_run
from nadaraya.report.maps import Subject, write_maps
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_text import TextFigures
from nadaraya.report.runs import RunData, read_run

__all__ = [
    "ExampleMaps",
    "ImageFigures",
    "ImageRunData",
    "RunData",
    "Subject",
    "TextFigures",
    "bank_curves",
    "implied_curves",
    "lag_histograms",
    "length_curves",
    "loss_curves",
    "pruning_curves",
    "read_image_run",
    "read_run",
    "render",
    "write_figure",
    "write_maps",
    "write_report",
]
