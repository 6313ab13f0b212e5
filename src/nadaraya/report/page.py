"""What the HTML pages share: templates, style sheet, versions, and matplotlib figures as inline SVG."""

import html
import io
import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from nadaraya.report.palette import COLOURS


def render_page(template: str, **values: Any) -> str:
    """A self-contained HTML page from a template of this package; text is escaped, `Markup` is not."""
    style = Markup(_colour_variables() + (files("nadaraya.report") / "report.css").read_text("utf-8"))
    return _environment().get_template(template).render(style=style, versions=_versions(), **values)


def render_part(template: str, **values: Any) -> Markup:
    """A part of a page from a template of this package; text is escaped, `Markup` is not."""
    return Markup(_environment().get_template(template).render(**values))


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
    return f":root {{ {light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


def _versions() -> list[tuple[str, str]]:
    """Python and the packages that runs and figures depend on, as far as they are installed."""
    found = [("Python", platform.python_version())]
    for package in ("nadaraya", "torch", "transformers", "accelerate", "tokenizers", "matplotlib"):
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return found


def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """A figure in the palette's colours as one `<svg>` element for an HTML page.

    Colours become CSS variables (`var(--blue)`), text inherits the page's font, the size follows the
    container, and nothing refers outside the element. The `name`, [a-z0-9-], is unique on the page; the
    `description`, escaped here, is for those who cannot see the figure.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = _own_ids(body.replace("xlink:href=", "href="), name)
    for unwanted in (
        r"<metadata>.*?</metadata>",
        r"font-family: [^;\"]*;",
        r"<defs>\s*<style.*?</style>\s*</defs>",
    ):
        body = re.sub(unwanted, "", body, flags=re.DOTALL)
    body = re.sub(r"\s*\n\s*", "\n", body)
    for colour, (on_white, _) in COLOURS.items():
        body = body.replace(on_white, f"var(--{colour})")
    label = html.escape(description)
    return Markup(f'<svg viewBox="{view_box[1] if view_box else ""}" role="img" aria-label="{label}">{body}')


def _own_ids(body: str, name: str) -> str:
    """Keeps only the ids that are referred to, and makes them the figure's own."""
    used = set(re.findall(r"url\(#([^)]+)\)", body)) | set(re.findall(r'href="#([^"]+)"', body))
    body = re.sub(
        r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body
    )
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    return re.sub(r'href="#', f'href="#{name}-', body)
