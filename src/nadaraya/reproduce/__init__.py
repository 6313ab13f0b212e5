"""The figures of the papers on banks of kernels: trained at a scale of your choice, drawn, compared.

figure = load_figure("gpa-losses"); `nadaraya reproduce gpa-losses --scale cpu` trains, draws and compares it.
Figures that rest on the same runs share a study, and its folder.
"""

from nadaraya.reproduce.catalogue import costs, figure_names, load_figure

__all__ = [
    "costs",
    "figure_names",
    "load_figure",
]
