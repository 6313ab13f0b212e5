"""The gallery has every kernel, in a table and in a picture; the guide for newcomers runs its own checks."""

import re
from typing import Any

import pytest
from shown import ROOT, blocks

import nadaraya.kernels
from nadaraya.kernels import GridKernel, Kernel

GUIDES = ROOT / "docs" / "guides"
GALLERY = GUIDES / "gallery.md"
KERNELS = {
    name
    for name in nadaraya.kernels.__all__
    if isinstance(kind := getattr(nadaraya.kernels, name), type)
    and issubclass(kind, Kernel | GridKernel)
    and kind is not Kernel
}


def test_the_gallery_has_a_row_for_every_kernel() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", GALLERY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(rows) == sorted(KERNELS)


def test_the_gallery_has_a_picture_of_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.chdir(GUIDES)
    drawn: set[str] = set()
    plot = Kernel.plot

    def recorded(kernel: Kernel, *given: Any) -> Any:
        drawn.add(type(kernel).__name__)
        return plot(kernel, *given)

    monkeypatch.setattr(Kernel, "plot", recorded)
    names: dict[str, Any] = {}
    try:
        with pyplot.rc_context():
            for code in blocks(GALLERY, "{code-cell} python3"):
                exec(code, names)
    finally:
        pyplot.close("all")
    assert drawn == KERNELS - {"GridKernel"}  # of two dimensions, drawn as an image
    assert isinstance(names["grid"], GridKernel)


def test_calls_of_other_libraries_give_what_ours_give() -> None:
    pytest.importorskip("transformers")
    code = blocks(GUIDES / "coming-from.md")
    checks = [block for block in code if "theirs = " in block]
    assert len(checks) == 4
    assert all(block.rstrip().endswith("same(ours, theirs)") for block in checks)
    names: dict[str, Any] = {}
    for block in code:
        exec(compile(block, "coming-from.md", "exec"), names)
