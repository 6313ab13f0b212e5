"""The figures of the papers on banks of kernels: trained at a scale of your choice, drawn, compared.

figure = load_figure("gpa-losses"); `nadaraya reproduce gpa-losses --scale cpu` trains, draws and compares it.
Figures that rest on the same runs share a study, and its folder.
"""

from nadaraya.reproduce.catalogue import (
    DEVICES,
    SCALES,
    Cost,
    Figure,
    costs,
    figure_names,
    load_experiment,
    load_figure,
)
from nadaraya.reproduce.claims import Checked
from nadaraya.reproduce.comparison import write_comparison

__all__ = [
    "DEVICES",
    "SCALES",
    "Checked",
    "Cost",
    "Figure",
    "costs",
    "figure_names",
    "load_experiment",
    "load_figure",
    "write_comparison",
]
