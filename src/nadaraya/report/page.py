"""The common parts of HTML pages: templates, style sheet, versions, figures as inline SVG, small pictures."""

import base64
import html
import io
import platform
import re
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from PIL import Image

from nadaraya.report.palette import COLOURS, head_style
from nadaraya.report.style import OVER_IMAGE, WEIGHTS, number

# HTML may not have them: each is shown as its picture.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}


def render_page(template: str, **values: Any) -> str:
    """A self-contained HTML page from a template of this package; text is escaped, `Markup` is not."""
    # CSS variables of the palette: light, and dark where the reader prefers it.
    light, dark = (
        "".join(f"--{name}: {shades[mode]}; " for name, shades in COLOURS.items()) for mode in (0, 1)
    )
    style = (
        f":root {{ {light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
        + (files("nadaraya.report") / "report.css").read_text("utf-8")
    )
    versions = [("Python", platform.python_version())]
    for package in ("nadaraya", "torch", "transformers", "accelerate", "tokenizers", "matplotlib"):
        with suppress(PackageNotFoundError):
            versions.append((package, version(package)))
    return _environment().get_template(template).render(style=Markup(style), versions=versions, **values)


def render_part(template: str, **values: Any) -> Markup:
    """A part of a page from a template of this package; text is escaped, `Markup` is not."""
    return Markup(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nadaraya.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value.translate(_CONTROLS) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    given = {"digits": number, "head_style": head_style, "over": over, "photograph": photograph}
    environment.globals.update(given)
    return environment


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
    body = body.replace("xlink:href=", "href=")
    # Only ids that are referred to stay, as the figure's own.
    used = set(re.findall(r"url\(#([^)]+)\)", body)) | set(re.findall(r'href="#([^"]+)"', body))
    body = re.sub(
        r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body
    )
    body = body.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
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


def photograph(image: np.ndarray, largest: int = 448) -> Markup:
    """A (height, width, 3) picture of values 0 … 1 as a data URL; shrunk where a side is above `largest`."""
    picture = _picture(np.clip(image, 0, 1))
    picture.thumbnail((largest, largest))
    if max(picture.size) < 128:  # so that a browser does not blur the pixels that the model saw
        times = -(-128 // max(picture.size))
        picture = picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)
    return data_url(picture, quality=85)


def over(weights: np.ndarray, ends: Normalize, side: int = 112) -> Markup:
    """Weights to lie over a photograph, clear at the lower end, enlarged bilinearly between the patches."""
    picture = _picture(OVER_IMAGE(ends(weights)))
    times = max(1, side // max(picture.size))
    size = (picture.width * times, picture.height * times)
    return data_url(picture.resize(size, Image.Resampling.BILINEAR), quality=60)


def pixels(weights: np.ndarray, ends: Normalize) -> Markup:
    """Weights on the colours of inferno, one pixel per weight; what is NaN is clear."""
    colours = matplotlib.colormaps[WEIGHTS](ends(weights))
    colours[np.isnan(weights), 3] = 0
    return data_url(_picture(colours))


def data_url(picture: Image.Image, quality: int | None = None) -> Markup:
    """A picture as a `data:` URL in WebP; lossless without a quality (1 to 100)."""
    copy = io.BytesIO()
    options = {"lossless": True} if quality is None else {"quality": quality}
    picture.save(copy, format="WEBP", method=4, **options)
    return Markup("data:image/webp;base64," + base64.b64encode(copy.getvalue()).decode("ascii"))


def _picture(colours: np.ndarray) -> Image.Image:
    return Image.fromarray((255 * colours).round().astype(np.uint8))
