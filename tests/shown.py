"""What the pages for users show: their Python, their YAML and their commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
PAGES = [README, ROOT / "CONTRIBUTING.md", *DOCS]


def blocks(page: Path, language: str = "python") -> list[str]:
    """The blocks of one language, in the order of the page."""
    fences = re.findall(r"^```(.*?)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for name, text in fences if name == language]


def commands(page: Path) -> Iterator[list[str]]:
    """Every command of the library that a page shows, without `nadaraya` itself, or its launcher."""
    for line in "".join(blocks(page, "")).splitlines():
        words = shlex.split(line, comments=True)
        if "nadaraya.cli" in words:
            words = ["nadaraya", *words[words.index("nadaraya.cli") + 1 :]]
            words = [word for word in words if word != "--"]  # where torchrun's own options end
        if words[:1] == ["nadaraya"]:
            yield words[1:]
