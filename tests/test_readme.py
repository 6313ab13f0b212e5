"""Python in pages for users runs as it stands: each block of the README, the guide's from first to last."""

import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).parent.parent
README, GUIDE = ROOT / "README.md", ROOT / "docs" / "guides" / "vision.md"


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", blocks(README))
def test_python_blocks_run(code: str) -> None:
    matplotlib.use("Agg")
    exec(compile(code, str(README), "exec"), {})


def test_the_guide_on_vision_runs() -> None:
    pytest.importorskip("timm")
    namespace: dict[str, Any] = {}
    for code in blocks(GUIDE):
        exec(compile(code, str(GUIDE), "exec"), namespace)
