"""Commands that pages show: all are accepted; those of the guides run, in their order, in one folder."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import core_folders
import pytest
from shown import PAGES, README, ROOT, blocks, commands

pytest.importorskip("typer")

GUIDES = ROOT / "docs" / "guides"
# Read in this order: later pages look at runs of earlier ones.
READ = [README, *(GUIDES / f"{name}.md" for name in ("training", "language-models", "maps"))]
# They download, need weights of others, or take minutes; several processes have tests of their own.
NOT_RUN = re.compile(
    r"data |bench |train (deit|dickens)|demo$|.* --checkpoint |.* runs/two-processes$"
    r"|evaluate .*(hf:|--lm-eval )"
)
SMALL = {
    "text": [
        "model.num_hidden_layers=1", "training.batch_size=2", "training.evaluate_every=2",
        "training.warmup_steps=0", "training.validation_batches=1", "training.sample_characters=40",
    ],
    "image": [
        "model.options={patch_size: 16, embed_dim: 16, depth: 1, num_heads: 2}", "training.epochs=1",
        "training.warmup_epochs=0", "training.batch_size=8",
    ],
}  # fmt: skip


def small(words: list[str]) -> list[str]:
    """A command with a hundredth of its updates and fewer generated tokens; its names are unchanged."""
    count = re.compile(r"(?<=^training\.steps=)\d+00$")
    words = [count.sub(lambda steps: str(int(steps[0]) // 100), word) for word in words]
    if words[0] == "generate":
        return [
            "20" if before == "--tokens" else word for before, word in zip(["", *words], words, strict=False)
        ]
    if words[0] != "train" or words[1].startswith(("-", "runs/")):
        return words
    length = [] if any(word.startswith("training.steps=") for word in words) else ["training.steps=4"]
    return [
        *words[:2],
        *(SMALL["image"] if words[1] == "cifar-cpu" else [*length, *SMALL["text"]]),
        *words[2:],
    ]


def write_what_pages_take_for_granted() -> None:
    """Texts, token shards, tasks, images in two classes, a picture and the recipe of the guide, here."""
    from PIL import Image

    from nadaraya.data import load_corpus, tokenize_corpus

    Path("my.txt").write_text(load_corpus("embedded", limit=40_000).text, encoding="utf-8")
    core_folders.bundle(Path("eval_bundle"))
    Path("other.txt").write_text("It was the best of times.\n" * 20, encoding="utf-8")
    tokenize_corpus("my.txt", "shards", separator="\n\n", vocabulary=400, validation_fraction=0.2)
    for part, count in (("train", 8), ("val", 4)):
        for label, colour in (("blue", (20, 20, 220)), ("red", (220, 20, 20))):
            folder = Path("photos") / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (32, 32), colour).save(folder / f"{number}.png")
    Image.linear_gradient("L").convert("RGB").save("cat.png")
    (recipe,) = blocks(GUIDES / "training.md", "yaml")
    Path("mine.yaml").write_text(recipe, encoding="utf-8")


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The commands that ran, as pages show them; the working folder is the one that they ran in."""
    pytest.importorskip("timm")
    from nadaraya.cli import main
    from nadaraya.training import load_recipe, train

    ran = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("reader"))
        write_what_pages_take_for_granted()
        # The Python of the guide on language models makes it; a test of its own runs that.
        example = load_recipe("demo", [*SMALL["text"], "training.steps=4", "data.corpus=my.txt"])
        train(example, "runs/example", progress=False)
        for page in READ:
            for words in commands(page):
                if NOT_RUN.match(" ".join(words)):
                    continue
                patch.setattr(sys, "argv", ["nadaraya", *small(words)])
                with pytest.raises(SystemExit) as ended:
                    main()
                assert not ended.value.code, f"{page.name}: nadaraya {' '.join(words)}"
                ran.append(" ".join(words))
        yield ran


@pytest.mark.slow
def test_commands_of_the_guides_run_in_their_order(read: list[str]) -> None:
    assert len(read) > 20
    verbs = {"train", "compare", "count", "report", "generate", "evaluate", "maps"}
    assert {command.split()[0] for command in read} == verbs
    assert Path("report.html").is_file()
    assert Path("maps-of-a-cat/index.html").is_file()


@pytest.mark.slow
def test_folders_of_runs_are_called_what_the_pages_say(read: list[str]) -> None:
    said = {
        name
        for page in READ
        for text in blocks(page, "")
        for name in re.findall(r"^nadaraya train .*# .*makes (runs/[\w.-]+)", text, re.MULTILINE)
    }
    assert len(said) >= 5
    assert [name for name in sorted(said) if not (Path(name) / "model.safetensors").is_file()] == []


@pytest.mark.slow
def test_the_python_of_the_guide_on_training_runs_on_its_runs(read: list[str]) -> None:
    assert read
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

    from nadaraya.cli.app import app
    from nadaraya.training import load_recipe

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
