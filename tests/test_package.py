"""The public names are a contract, the core needs torch and numpy only, and packages hold what is needed."""

import ast
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packages import build, install

import nadaraya
import nadaraya.kernels

ROOT = Path(__file__).parents[1]


def test_public_names() -> None:
    assert set(nadaraya.__all__) == {
        "InputError",
        "KernelSelfAttention",
        "__version__",
        "kernel_attention",
        "variants",
    }
    assert {"Gaussian", "ExponentialDecay", "Periodic", "KernelBank", "ALiBi", "T5Buckets", "KERPLE"} <= set(
        nadaraya.kernels.__all__
    )
    for name in nadaraya.__all__:
        assert hasattr(nadaraya, name)


def test_importing_the_core_needs_no_extra() -> None:
    extras = [
        "transformers",
        "accelerate",
        "timm",
        "sklearn",
        "matplotlib",
        "typer",
        "rich",
        "yaml",
        "safetensors",
    ]
    program = f"""
import sys
for name in {extras!r}:
    sys.modules[name] = None  # importing it now raises
import nadaraya, nadaraya.kernels
layer = nadaraya.KernelSelfAttention(16, 2, causal=True, **nadaraya.variants.get("gpa-rope"))
import torch
layer(torch.randn(1, 5, 16)).sum().backward()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    return build(tmp_path_factory.mktemp("packages"))


@pytest.mark.slow
def test_the_packages_have_every_file_of_the_library_and_nothing_else(packages: Path) -> None:
    (wheel,), (sdist,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "nadaraya").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {"nadaraya/py.typed", "nadaraya/training/recipes/demo.yaml"} < sources
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        information = f"nadaraya-{nadaraya.__version__}.dist-info/"
        assert {name for name in names if not name.startswith(information)} == sources
        assert f"{information}licenses/LICENSE" in names
        assert b"nadaraya = nadaraya.cli:main" in archive.read(f"{information}entry_points.txt")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources} | {"LICENSE", "README.md", "pyproject.toml"} <= names
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.slow
def test_the_installed_wheel_works_away_from_the_checkout(packages: Path, tmp_path: Path) -> None:
    pytest.importorskip("pip")
    environment = install(packages, tmp_path / "site")

    def nadaraya_of_the_wheel(*arguments: str) -> str:
        command = [sys.executable, "-m", "nadaraya.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert nadaraya_of_the_wheel("--version").strip() == nadaraya.__version__
    small = ["model.num_hidden_layers=1", "training.validation_batches=1", "training.sample_characters=20"]
    steps = ["training.steps=2", "training.warmup_steps=0", "training.batch_size=2"]
    nadaraya_of_the_wheel("train", "demo", "--quiet", "--run", "run", *small, *steps)
    assert "report: report.html" in nadaraya_of_the_wheel("report", "run")
    assert "gka_tiny_patch16_224" in nadaraya_of_the_wheel("train", "cifar-cpu", "--print-config")


@pytest.mark.parametrize("package", ["data", "evaluation"])
def test_data_and_evaluation_import_nothing_that_builds_on_them(package: str) -> None:
    above = {"training", "interpret", "report", "study", "reproduce", "cli"}
    for path in (ROOT / "src" / "nadaraya" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nadaraya."):
                assert node.module.split(".")[1] not in above, f"{path} imports {node.module}"
