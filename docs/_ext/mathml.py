"""Formulas as MathML, which browsers draw themselves: the site needs no script and no network."""

from typing import Any

from docutils import nodes
from docutils.utils.math import pick_math_environment
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def _inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.Element) -> None:
    formula = node.astext()
    environment = pick_math_environment(formula)
    if environment != "equation*":
        formula = f"\\begin{{{environment}}}{formula}\\end{{{environment}}}"
    writer.body.append(f'<div class="math">{tex2mathml(formula, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
