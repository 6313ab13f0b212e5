"""What runs show: figures for documents, one self-contained HTML report, maps of attention.

It needs matplotlib, jinja2 and scipy (the extra `report`), neither transformers nor timm: what it shows of a
run comes as `RunData`, attention comes as `nadaraya.interpret.AttentionMaps`.
"""

from nadaraya.report.by_lag import implied_curves, length_curves
from nadaraya.report.figures import bank_curves, lag_histograms, loss_curves, write_figure
from nadaraya.report.html import render, write_report
from nadaraya.report.image_runs import ExampleMaps, ImageRunData, read_image_run
from nadaraya.report.maps import Subject, write_maps
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_text import TextFigures
from nadaraya.report.pruning import pruning_curves
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
