"""Commands that pages show: all are accepted; README's and the guides' run, in their order, in one folder."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import core_folders
import packages
import pytest
from shown import PAGES, README, ROOT, blocks, commands

pytest.importorskip("typer")

DOCS = ROOT / "docs"
GUIDES = DOCS / "guides"
# As the site has them.
READ = [
    README,
    DOCS / "start.md",
    *(
        DOCS / f"{name}.md"
        for name in re.findall(r"^guides/.*$", (DOCS / "index.md").read_text("utf-8"), re.M)
    ),
]
# What is not run, and why; each pattern is of a whole command.
NOT_RUN = {
    r".*(hf:|--lm-eval ).*": "it downloads a model or data sets",
    r"train cifar-cpu": "it downloads CIFAR-10; the guide on training runs it on other images",
    r"train deit .*": "it needs ImageNet and GPUs",
    r"maps .* --checkpoint .*": "it needs weights of others",
    r"--version": "it has a test of its own",
    r"demo.*": "it writes thousands of characters; a test of its own runs it",
    r"bench .*": "it takes minutes; tests of its own run it on small models",
    r".* --run runs/two-processes": "several processes have tests of their own",
}
# What makes a command quick; nothing else is changed. Folders keep their names.
TEXT = [
    "model.num_hidden_layers=2", "training.batch_size=2", "training.evaluate_every=2", "data.context=64",
    "training.warmup_steps=0", "training.validation_batches=1", "training.sample_characters=40",
]  # fmt: skip
IMAGE = [
    "model.options={patch_size: 16, embed_dim: 16, depth: 1, num_heads: 2}", "training.epochs=1",
    "training.warmup_epochs=0", "training.batch_size=8",
]  # fmt: skip
SMALL = {
    r"(--tokens|--characters) \d+": r"\1 100",
    r"--vocabulary \d+": "--vocabulary 400",
    r"--workers \d+": "--workers 1",
    r"--windows \d+": "--windows 2",
    r"--top \d+": "--top 1",
    r"--tune \d+": "--tune 1",
    r"training\.steps=(\d+)00": r"training.steps=\1",
    r"(study .*--hours) \d+": r"\1 0.002",  # stopped after seven seconds, everything saved
    r"--hours [1-9]\d*": "--hours 1e-9",  # all but the runs, whose processes are those of a study
    r"(reproduce gpa-banks .*--workers 1)$": r"\1 --hours 1e-9",
}
# Runs that a page takes for granted, made by the command.
GRANTED = {
    "models.md": ["train demo data.corpus=my.txt training.steps=4 --run runs/example"],  # by its Python
    "implied-kernels.md": ["train demo data.corpus=my.txt training.steps=4 --run runs/dickens-rope"],
}


def small(words: list[str]) -> list[str]:
    """A command with a hundredth of its updates, on fewer tokens; its names are unchanged."""
    for given, instead in SMALL.items():
        words = shlex.split(re.sub(given, instead, shlex.join(words)))
    verb, what = words[:2]
    if verb == "train" and not what.startswith(("-", "runs/")):
        given = " ".join(words)
        steps = [] if "training.steps=" in given else ["training.steps=4"]
        limit = [] if "data.corpus=" in given else ["data.limit=60000"]
        return [verb, what, *(IMAGE if what == "cifar-cpu" else [*steps, *limit, *TEXT]), *words[2:]]
    if verb in ("study", "search", "reproduce") and "--summarise" not in words:
        text = ["data.corpus=my.txt"] if verb != "study" and "paper" not in words else []
        return [*words, *TEXT, *text]
    return words


def write_what_pages_take_for_granted(folder: Path) -> None:
    """Texts, tasks, images in two classes, a picture, and the recipe and the study of the guides."""
    from PIL import Image

    from nadaraya.data import load_corpus

    text = load_corpus("embedded", limit=60_000).text
    (folder / "my.txt").write_text(text, encoding="utf-8")
    core_folders.bundle(folder / "eval_bundle")
    (folder / "other.txt").write_text(
        "It was the best of times, “it” was the worst.\n" * 20, encoding="utf-8"
    )
    (folder / "articles").mkdir()
    for number in range(60):
        article = text[number * 1000 : number * 1000 + 1000]
        (folder / "articles" / f"{number}.txt").write_text(article, encoding="utf-8")
    for part, count in (("train", 8), ("val", 4)):
        for label, colour in (("blue", (20, 20, 220)), ("red", (220, 20, 20))):
            place = folder / "photos" / part / label
            place.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (32, 32), colour).save(place / f"{number}.png")
    Image.linear_gradient("L").convert("RGB").save(folder / "cat.png")
    (module,) = blocks(DOCS / "start.md", "python my_kernels")
    (folder / "my_kernels.py").write_text(module, encoding="utf-8")
    for page, name in (("training.md", "mine.yaml"), ("studies.md", "my-study.yaml")):
        (file,) = (text for text in blocks(GUIDES / page, "yaml") if text.startswith(f"# {name}"))
        (folder / name).write_text(file, encoding="utf-8")


def to_run() -> list[tuple[str, list[str]]]:
    """The commands in their order, each with its page."""
    return [
        (page.name, words)
        for page in READ
        for words in (*map(shlex.split, GRANTED.get(page.name, ())), *commands(page))
        if not any(re.fullmatch(pattern, " ".join(words)) for pattern in NOT_RUN)
    ]


# One process runs them all: torch and transformers take seconds to import.
READER = """
import json, sys, time
from nadaraya.cli import main
for page, words in json.load(sys.stdin):
    sys.argv, begun, status = ["nadaraya", *words], time.perf_counter(), 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code or 0
    seconds = time.perf_counter() - begun
    print(f"{seconds:.1f} s, status {status}, {page}: {words}", file=sys.stderr, flush=True)
    if status:
        sys.exit(1)
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a reader with an installed wheel has run all commands."""
    pytest.importorskip("timm")
    environment = packages.install(
        packages.build(tmp_path_factory.mktemp("wheel")), tmp_path_factory.mktemp("site")
    )
    folder = tmp_path_factory.mktemp("reader")
    write_what_pages_take_for_granted(folder)
    asked = json.dumps([(page, small(words)) for page, words in to_run()])
    done = subprocess.run(
        [sys.executable, "-c", READER],
        cwd=folder,
        env=environment,
        input=asked,
        capture_output=True,
        text=True,
    )
    print(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_commands_of_readme_and_guides_run_in_their_order_from_a_wheel(reader: Path) -> None:
    assert {words[0] for _, words in to_run()} == {
        "banks", "compare", "count", "data", "evaluate", "generate", "heads", "implied", "lags", "maps",
        "prune", "report", "reproduce", "search", "study", "train",
    }  # fmt: skip
    assert (reader / "report.html").is_file()
    assert (reader / "maps-of-a-cat/index.html").is_file()


@pytest.mark.slow
def test_folders_of_runs_are_called_what_the_pages_say(reader: Path) -> None:
    said = {
        name
        for page in READ
        for text in blocks(page, "")
        for line in text.splitlines()
        for name in re.findall(r"^nadaraya train .*# .*makes (runs/[\w.-]+)", line)
        if not any(re.match(f"nadaraya {pattern} ", line) for pattern in NOT_RUN)
    }
    assert len(said) >= 5
    assert [name for name in sorted(said) if not (reader / name / "model.safetensors").is_file()] == []


def test_nothing_is_left_out_that_no_page_has() -> None:
    shown = [" ".join(words) for page in READ for words in commands(page)]
    unused = [pattern for pattern in NOT_RUN if not any(re.fullmatch(pattern, command) for command in shown)]
    unused += [pattern for pattern in SMALL if not any(re.search(pattern, command) for command in shown)]
    assert unused == [r"(reproduce gpa-banks .*--workers 1)$"]  # after another one


@pytest.mark.slow
def test_the_python_of_the_guide_on_training_runs_on_its_runs(
    reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(reader)
    names: dict[str, Any] = {}
    for code in blocks(GUIDES / "training.md"):
        exec(compile(code, "training.md", "exec"), names)
    assert names["run"].final["step"] == 6  # a hundredth of what the longer run has
    assert len(names["run"].table("validation")) == 3
    assert names["published"].num_parameters() == names["model"].num_parameters()


SHOWN = [(page, words) for page in PAGES for words in commands(page) if words != ["--version"]]


@pytest.mark.parametrize(("page", "words"), [pytest.param(*shown, id=" ".join(shown[1])) for shown in SHOWN])
def test_commands_are_accepted(
    page: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typer = pytest.importorskip("typer.main")
    from typer import Exit

    from nadaraya import variants
    from nadaraya.cli import _without_imports
    from nadaraya.cli.app import app
    from nadaraya.training import load_recipe

    words, modules = _without_imports(words)
    if modules:
        assert modules == ["my_kernels"], page.name
        (module,) = blocks(DOCS / "start.md", "python my_kernels")
        monkeypatch.setattr(variants, "_VARIANTS", dict(variants._VARIANTS))
        exec(compile(module, "my_kernels.py", "exec"), {})
    command: Any = typer.get_command(app)
    context = command.make_context("nadaraya", [], resilient_parsing=True)
    while hasattr(command, "list_commands"):
        assert words[0] in command.list_commands(context), page.name
        command, words = command.get_command(context, words[0]), words[1:]
        if not hasattr(command, "list_commands"):
            try:
                context = command.make_context("", list(words))
            except Exit:  # --keys and its like end there
                return
    if command.name == "vit":
        assert not [name for name in context.params["models"] or () if "." in name], (
            "a file taken for a model"
        )
    if command.name == "train" and not context.params["recipe"].startswith("runs/"):
        monkeypatch.chdir(tmp_path)
        Path("mine.yaml").write_text(blocks(GUIDES / "training.md", "yaml")[0], encoding="utf-8")
        load_recipe(context.params["recipe"], context.params["overrides"] or ())
