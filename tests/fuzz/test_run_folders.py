"""Damaged run folders: a command says what is wrong in one line, or gives what the sound folder gives."""

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.damage import remove_value, replace_value

from nadaraya.cli import main
from nadaraya.errors import InputError
from nadaraya.files import sha256
from nadaraya.training import Recipe, Run, load_recipe, train
from nadaraya.training import checkpoint as checkpoints
from nadaraya.training.metrics import digest_of

pytestmark = pytest.mark.slow
CASES = 160
# Commands whose output is a function of the run; {run} is its folder, {out} a folder that is empty.
COMMANDS = (
    ("evaluate", "{run}", "--json"),
    ("compare", "{run}", "--json"),
    ("generate", "{run}", "--greedy"),
    ("report", "{run}", "--out", "{out}/report.html"),
    ("train", "{recipe}", "--run", "{run}", "--json", "--quiet"),
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "text.txt").write_text(
        "".join(f"{'abcdefgh'[i % 8] * (i % 5 + 1)} the {i % 7} of\n" for i in range(99))
    )
    made = Recipe.from_mapping(
        {
            "name": "tiny",
            "model": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "variant": "gpa-mul"},
            "data": {"corpus": str(folder / "text.txt"), "context": 16},
            "training": {"steps": 6, "batch_size": 2, "warmup_steps": 1, "log_every": 2, "evaluate_every": 3,
                         "validation_batches": 1, "checkpoint_every": 2, "sample_characters": 20},
        }
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(made.to_yaml())
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def runs(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, and one that was killed after step 5."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    finished = train(load_recipe(recipe), folder / "finished", progress=False).path
    stopped = shutil.copytree(finished, folder / "stopped")
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 5]
    (stopped / "metrics.jsonl").write_text("".join(kept))
    shutil.rmtree(stopped / "training_state" / "step-00000006")
    for name in ("model.safetensors", "config.json", "generation_config.json", "sample.txt"):
        (stopped / name).unlink()
    return {"finished": finished, "stopped": stopped}


def _truncate(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))] if data else b"")


def _flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 8) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _make_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _replace(path: Path, draw: random.Random) -> None:
    path.write_bytes(
        draw.choice(
            [b"", b"\0" * 99, b"[1, 2]", b"{}", b"null\n", b"- a\n- b\n", b"{" * 5000, b"\xff\xfe\xfa",
             b"nan\n", b'{"kind": "final", "step": 6}\n', b"!!python/object/apply:os.getcwd []\n",
             draw.randbytes(500)]
        )
    )  # fmt: skip


def _change_a_number(path: Path, draw: random.Random) -> None:
    text = path.read_bytes()
    digits = [place for place, byte in enumerate(text) if chr(byte).isdigit()]
    if digits:
        place = draw.choice(digits)
        path.write_bytes(text[:place] + str(draw.choice([0, 9, -1, 10**30])).encode() + text[place + 1 :])


def _drop_a_line(path: Path, draw: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    if lines:
        del lines[draw.randrange(len(lines))]
    path.write_bytes(b"".join(lines))


DAMAGE: tuple[Callable[[Path, random.Random], None], ...] = (
    _truncate,
    _flip,
    _make_folder,
    _replace,
    _change_a_number,
    _drop_a_line,
    lambda path, draw: path.unlink(),
    lambda path, draw: path.chmod(0),
)


def _call(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["nadaraya", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def _figures(out: str, run: Path) -> Any:
    """What a command printed, without times and paths."""
    try:
        printed = json.loads(out)
    except ValueError:
        return out
    rows = printed if isinstance(printed, list) else [printed]
    apart = {"run", "step_seconds", "seconds", "sha256"}
    return [{key: value for key, value in row.items() if key not in apart} for row in rows]


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_a_damaged_folder_is_one_line_or_harmless(
    state: str,
    runs: dict[str, Path],
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    draw = random.Random(state)
    commands = COMMANDS if state == "finished" else (COMMANDS[1], COMMANDS[3], COMMANDS[4])
    sound, outcomes = {}, Counter()
    # Every damage meets every command equally often, in a file drawn at random.
    pairs = cycle(product(commands, DAMAGE))
    for number, (command, damage) in zip(range(CASES // 2), pairs, strict=False):
        folder = tmp_path / str(number)
        run, out = shutil.copytree(runs[state], folder / "run"), folder / "out"
        out.mkdir()
        filled = tuple(part.format(run=run, out=out, recipe=recipe) for part in command)
        if command not in sound:
            assert _call(filled, monkeypatch) == 0
            sound[command] = _figures(capfd.readouterr().out, run)
            shutil.rmtree(run)
            shutil.copytree(runs[state], run)
            shutil.rmtree(out)
            out.mkdir()
        path = draw.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock"))
        damage(path, draw)
        status = _call(filled, monkeypatch)
        printed = capfd.readouterr()
        case = f"{number}: {command[0]} with {path.relative_to(run)} after {damage.__name__}\n{printed.err}"
        assert status in (0, 2), case
        if status == 2:
            errors = [line for line in printed.err.splitlines() if not line.startswith("Warning")]
            assert errors, case
            assert errors[-1].startswith("error: "), case
            assert printed.out == "", case
        elif command[0] == "train" or (state == "finished" and command[0] != "report"):
            figures = _figures(printed.out, run)
            # Without its last record a finished run is one that has not finished yet, and is shown as such.
            cut = path.name == "metrics.jsonl" and command[0] == "compare" and not figures[0]["finished"]
            assert cut or figures == sound[command], case
        outcomes[status] += 1
        if path.exists():
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert outcomes[2] > CASES // 20
    print(f"{sum(outcomes.values())} damaged folders: {outcomes[2]} refused, {outcomes[0]} harmless")
    assert Run(runs["finished"]).final is not None


def _seal(run: Path) -> None:
    """Give a finished run the digests of its files as they are, as whoever edits them can."""
    *records, final = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    digests = {name: sha256(run / name) for name in final.pop("sha256") if (run / name).is_file()}
    digests["metrics.jsonl"] = digest_of([*records, final])
    lines = [json.dumps(record) + "\n" for record in [*records, {**final, "sha256": digests}]]
    (run / "metrics.jsonl").write_text("".join(lines))


def _seal_state(file: Path) -> None:
    """Give an edited state.json its checksum, where it has any."""
    content = json.loads(file.read_text())
    if isinstance(content, dict) and isinstance(content.get("sha256"), dict):
        digests = content.pop("sha256")
        digests["state.json"] = checkpoints._digest(content)
        file.write_text(json.dumps({**content, "sha256": digests}))


def _refused(act: Callable[[], object], case: str) -> bool:
    """Whether an act is refused, in one line; anything else that it raises fails."""
    try:
        act()
    except InputError as refused:
        line = str(refused)
    except Exception as fault:
        raise AssertionError(f"{case}: {type(fault).__name__}: {fault}"[:3000]) from fault
    else:
        return False
    assert line, case
    assert "\n" not in line, case
    assert len(line) < 1200, line
    return True


@pytest.mark.parametrize("name", ["config.json", "text.json", "metrics.jsonl", "generation_config.json"])
def test_values_of_others_in_a_file_with_the_right_digest(
    name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    """A finished run that somebody wrote: it is read, or refused in one line."""
    draw, refused, run = random.Random(name), 0, tmp_path / "run"

    def read() -> None:
        read = Run(run)
        assert read._repr_html_()
        read.table("validation")
        read.measured_on  # noqa: B018
        read.lag_kernels()
        read.load_model(initial=True)

    for number in range(40):
        shutil.copytree(runs["finished"], run)
        draw.choice([replace_value, replace_value, remove_value])(run / name, draw)
        with suppress(KeyError, TypeError, AttributeError):  # records that have no digests any more
            _seal(run)
        refused += _refused(read, f"{name} {number}: {(run / name).read_text()[:2000]}")
        shutil.rmtree(run)
    print(f"{name}: {refused} of 40 refused")


def test_values_of_others_in_a_state_with_the_right_checksum(
    runs: dict[str, Path], recipe: Path, tmp_path: Path
) -> None:
    """A checkpoint that somebody wrote: training goes on from it, or refuses it in one line."""
    draw, refused, made = random.Random(0), 0, load_recipe(recipe)
    for number in range(30):
        run = shutil.copytree(runs["stopped"], tmp_path / str(number))
        file = max((run / "training_state").glob("step-*")) / "state.json"
        draw.choice([replace_value, replace_value, remove_value])(file, draw)
        _seal_state(file)
        refused += _refused(lambda run=run: train(made, run, progress=False), f"{number}: {file.read_text()}")
    print(f"{refused} of 30 refused")
