"""Wheels and source distributions of the library as it stands, built without a network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(folder: Path) -> Path:
    """A folder with the wheel and the sdist, built in `folder` from a copy of the checkout by its backend."""
    copy, built = folder / "checkout", folder / "dist"
    built.mkdir()
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    program = "from setuptools import build_meta as b; b.build_wheel('../dist'); b.build_sdist('../dist')"
    done = subprocess.run([sys.executable, "-c", program], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


def install(built: Path, target: Path) -> dict[str, str]:
    """Install the wheel of a folder, and the environment of a Python that imports it before the checkout."""
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--target", str(target), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    where = [sys.executable, "-c", "import nadaraya; print(nadaraya.__file__)"]
    found = subprocess.run(
        where, cwd=target, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert Path(found.strip()).is_relative_to(target)
    return environment
