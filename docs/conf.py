"""The site: Sphinx with MyST notebooks, which every build runs: sphinx-build docs docs/_build/html."""

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

import nadaraya

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

# Tables of chapter 5, where they lie beside the checkout; the environment variable names another folder.
if (tables := DOCS.parents[1] / "shared" / "data" / "regression").is_dir():
    os.environ.setdefault("NADARAYA_DATA", str(tables))

project = "nadaraya"
author = "the nadaraya authors"
copyright = author
version = release = nadaraya.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "mathml",
    "plain_docstrings",
    "plain_types",
    "generated",
]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]

html_theme = "furo"
html_title = f"nadaraya {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# A page that no longer runs is a broken build. Nothing is cached: the figures are those of this code.
nb_execution_mode = "force"
nb_execution_timeout = 600  # seconds a cell
nb_execution_raise_on_error = True
nb_execution_show_tb = True

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "py:obj"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


def offer_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Markdown outside of these pages, as tables of results are, is a file to download and no page."""
    source[0] = re.sub(r"\]\(((?:\.\./)+experiments/[\w./-]+\.md)", r"](path:\1", source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", offer_files)
