"""One self-contained HTML file that shows what runs did: nothing in it is loaded from anywhere else."""

from collections.abc import Sequence
from pathlib import Path

from nadaraya.errors import must_be
from nadaraya.files import check_new_file, write_file
from nadaraya.report.images import ImageRunData, image_part
from nadaraya.report.page import render_page
from nadaraya.report.runs import RunData, labelled
from nadaraya.report.text_report import text_part


def write_report(runs: Sequence[RunData], out: str | Path, force: bool = False) -> Path:
    """Write the report on some runs as one HTML file.

    Args:
        runs: from `read_run` and `read_image_run`, at least one.
        out: the file to write.
        force: whether a file that is already there may be replaced (default False).

    Returns:
        The path of the file.

    Raises:
        InputError: no runs were given, the file exists and force is False, or its folder does not exist.

    >>> from nadaraya.report import write_report
    >>> from nadaraya.report.runs import RunData
    >>> run = RunData("demo", "demo", "rope", [{"kind": "final", "step": 600, "loss": 1.25}])
    >>> write_report([run], "report.html").read_text(encoding="utf-8")[:15]
    '<!doctype html>'
    """
    path = Path(out)
    check_new_file(path, force, "out")
    write_file(path, render(runs))
    return path


def render(runs: Sequence[RunData]) -> str:
    """The report on some runs as an HTML page, those on text first; what comes from a run is escaped."""
    if not runs:
        raise must_be("runs", "a list of at least one run", runs)
    images = [run for run in runs if isinstance(run, ImageRunData)]
    texts = [run for run in runs if not isinstance(run, ImageRunData)]
    parts = [text_part(texts)] if texts else []
    parts += [image_part(images)] if images else []
    title = ", ".join(run.label for run in (*labelled(texts), *labelled(images)))
    return render_page("report.html.jinja", title=title, parts=parts)
