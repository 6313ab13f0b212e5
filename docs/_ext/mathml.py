"""Formulas as MathML, which browsers draw themselves: the site needs no script and no network."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import pick_math_environment
from latex2mathml.converter import convert
from sphinx.application import Sphinx

_NAME, _SPACE = r"<m[io]>(?:log|exp|tr)</m[io]>", '<mspace width="0.17em"/>'


def mathml(formula: str, display: str = "inline") -> str:
    """LaTeX as MathML, "inline" or a "block"; refuses a command that it would spell out."""
    if display == "block" and (environment := pick_math_environment(formula)) != "equation*":
        formula = f"\\begin{{{environment}}}{formula}\\end{{{environment}}}"
    converted = convert(formula, display=display)
    if "\\" in converted:
        raise ValueError(f"a command of this formula is not known: {formula}")
    # The converter writes n log n as nlogn.
    converted = re.sub(rf"({_NAME})(?=<m(?!o))", rf"\1{_SPACE}", converted)
    return re.sub(rf"(?<=</mi>)(?={_NAME})", _SPACE, converted)


def _inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.Element) -> None:
    writer.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
