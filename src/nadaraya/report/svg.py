"""A matplotlib figure as inline SVG that follows the page: its colours, its font, light or dark."""

import html
import io
import re

import matplotlib
from matplotlib.figure import Figure

from nadaraya.report.palette import COLOURS


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """A figure in the palette's colours as one `<svg>` element for an HTML page.

    Colours become CSS variables (`var(--blue)`), text inherits the page's font, the size follows the
    container, and nothing refers outside the element. The `name`, [a-z0-9-], is unique on the page; the
    `description`, escaped here, is for those who cannot see the figure.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    body = svg[svg.index(">") + 1 :]
    body = body.replace("xlink:href=", "href=")
    body = _own_ids(body, name)
    body = re.sub(r"font-family: [^;\"]*;", "", body)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"\s*\n\s*", "\n", body)
    for colour, (on_white, _) in COLOURS.items():
        body = body.replace(on_white, f"var(--{colour})")
    label = html.escape(description)
    return f'<svg viewBox="{view_box[1] if view_box else ""}" role="img" aria-label="{label}">{body}'


def _own_ids(body: str, name: str) -> str:
    """Keeps only the ids that are referred to, and makes them the figure's own."""
    used = set(re.findall(r"url\(#([^)]+)\)", body)) | set(re.findall(r'href="#([^"]+)"', body))
    body = re.sub(
        r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body
    )
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    return re.sub(r'href="#', f'href="#{name}-', body)
