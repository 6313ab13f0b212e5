"""What the pages of this package share: jinja's environment, the style sheet, the versions that made them."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nadaraya.report.palette import COLOURS


def render_page(template: str, **values: Any) -> str:
    """A self-contained HTML page from a template of this package; text is escaped, `Markup` is not."""
    style = Markup(_colour_variables() + (files("nadaraya.report") / "report.css").read_text("utf-8"))
    return _environment().get_template(template).render(style=style, versions=_versions(), **values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("nadaraya.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _colour_variables() -> str:
    """CSS variables of the palette: light, and dark where the reader prefers it."""
    light, dark = (
        "".join(f"--{name}: {shades[mode]}; " for name, shades in COLOURS.items()) for mode in (0, 1)
    )
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


def _versions() -> list[tuple[str, str]]:
    """Python and the packages that runs and figures depend on, as far as they are installed."""
    found = [("Python", platform.python_version())]
    for package in ("nadaraya", "torch", "transformers", "accelerate", "tokenizers", "matplotlib"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return found
