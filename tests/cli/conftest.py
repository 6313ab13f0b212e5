"""The command line as its users meet it, and a tiny finished run."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nadaraya.cli import main
from nadaraya.training import load_recipe, train

TINY = (
    "model.hidden_size=32",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "data.tokenizer=characters",
    "data.context=16",
    "training.steps=6",
    "training.batch_size=4",
    "training.warmup_steps=1",
    "training.evaluate_every=3",
    "training.checkpoint_every=3",
    "training.validation_batches=2",
    "training.sample_characters=30",
)


@dataclass
class Outcome:
    """What a command left: its exit status and both streams."""

    status: int
    out: str
    err: str

    def refuses(self, *words: str) -> None:
        """Check that it ended as bad input must: status 2, one line that has the words, nothing printed."""
        assert self.status == 2, self.err
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        for word in words:
            assert word in lines[0]


Command = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def an_empty_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test depends on what lies where it is started."""
    monkeypatch.chdir(tmp_path_factory.mktemp("current"))


@pytest.fixture
def nadaraya(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `nadaraya ARGUMENT …` in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["nadaraya", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def shared_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 2,600 characters, to be read or copied."""
    path = tmp_path_factory.mktemp("cli-text") / "text.txt"
    path.write_text("".join(f"{'abcdefgh'[i % 8] * (i % 5 + 1)} the {i % 7} of\n" for i in range(200)))
    return path


@pytest.fixture
def tiny_text(shared_text: Path, tmp_path: Path) -> Path:
    """A text of 2,600 characters."""
    return Path(shutil.copy(shared_text, tmp_path))


@pytest.fixture(scope="session")
def tiny(shared_text: Path) -> tuple[str, ...]:
    """Arguments of `nadaraya train` for a run of a fraction of a second."""
    return ("demo", f"data.corpus={shared_text}", *TINY)


@pytest.fixture(scope="session")
def trained_run(tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the variant gpa-mul, to be read or copied."""
    source, *overrides = tiny
    recipe = load_recipe(source, [*overrides, "model.variant=gpa-mul"])
    return train(recipe, tmp_path_factory.mktemp("cli-run") / "finished", progress=False).path


@pytest.fixture
def finished_run(trained_run: Path, tmp_path: Path) -> Path:
    """A finished run of the variant gpa-mul."""
    return Path(shutil.copytree(trained_run, tmp_path / "finished"))
