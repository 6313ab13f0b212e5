"""Reports on runs: figures for documents, one self-contained HTML report, maps of attention.

It needs matplotlib, jinja2 and scipy (the extra `report`), neither transformers nor timm: what it shows of a
run comes as `RunData`, attention comes as `AttentionMaps` of `nadaraya.interpret`.
"""

from nadaraya.report.by_lag import bank_curves
from nadaraya.report.figures import loss_curves, write_figure
from nadaraya.report.html import write_report
from nadaraya.report.maps import write_maps
from nadaraya.report.runs import read_run

__all__ = [
    "bank_curves",
    "loss_curves",
    "read_run",
    "write_figure",
    "write_maps",
    "write_report",
]
