"""Windows of a run: those of its evaluation, and two sets that predict no token twice."""

from pathlib import Path

import pytest
import torch

from nadaraya import InputError
from nadaraya.data import tokenize_corpus
from nadaraya.evaluation import evaluate_string
from nadaraya.evaluation.language import evaluate_shards
from nadaraya.interpret.windows import Windows, disjoint_windows, validation_windows
from nadaraya.training import Run, load_recipe, train

TINY = (
    "model.hidden_size=8", "model.num_hidden_layers=1", "model.num_attention_heads=2", "data.context=16",
    "training.steps=1", "training.batch_size=2", "training.warmup_steps=0", "training.sample_characters=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    texts = [f"The {i} of {i % 7} cats.\n" * (i % 4 + 1) for i in range(60)]
    (folder / "documents.txt").write_text("<|endoftext|>".join(texts))
    (folder / "text.txt").write_text("".join(texts))
    options = {"vocabulary": 280, "shard_tokens": 200, "validation_documents": 12}
    tokenize_corpus(folder / "documents.txt", folder / "shards", **options)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module", params=["packed", "joined"])
def on_shards(request: pytest.FixtureRequest, folder: Path) -> Run:
    recipe = load_recipe(
        "demo", [*TINY, f"data.corpus={folder / 'shards'}", f"data.documents={request.param}"]
    )
    return train(recipe, folder / request.param, progress=False)


@pytest.fixture(scope="module")
def on_text(folder: Path) -> Run:
    recipe = load_recipe("demo", [*TINY, f"data.corpus={folder / 'text.txt'}"])
    return train(recipe, folder / "run", progress=False)


def test_all_windows_of_shards_are_those_of_the_evaluation(on_shards: Run) -> None:
    model, documents = on_shards.load_model(), on_shards.text_recipe().data.documents
    windows = validation_windows(on_shards, 10_000)
    expected = evaluate_shards(model, on_shards.shards(), context=16, documents=documents)
    assert (windows.position_ids is not None) == (documents == "packed")
    assert windows.tokens == expected.tokens
    assert windows.loss(model) == pytest.approx(expected.cross_entropy, rel=1e-5)
    few = validation_windows(on_shards, 3)
    assert len(few.inputs) == 3
    assert all((windows.inputs == row).all(1).any() for row in few.inputs)


def halves(run: Run, count: int) -> tuple[Windows, Windows, torch.Tensor]:
    """Both sets, and the tokens of the validation part that are predicted at all."""
    choosing, measuring = disjoint_windows(run, count)
    if run.on_shards:
        tokens = run.shards().tokens([0], len(run.shards()))[0]
    else:
        text = run.corpus().split(run.text_recipe().data.validation_fraction)[1]
        tokens = torch.tensor(run.tokenizer()(text)["input_ids"])
    return choosing, measuring, tokens


@pytest.mark.parametrize("source", ["shards", "text"])
def test_both_sets_together_are_the_validation_part_and_share_nothing(
    source: str, on_shards: Run, on_text: Run
) -> None:
    run = on_shards if source == "shards" else on_text
    choosing, measuring, tokens = halves(run, 10_000)
    assert abs(len(choosing.inputs) - len(measuring.inputs)) <= 1
    rows = torch.stack(
        [
            (choosing if number % 2 == 0 else measuring).targets[number // 2]
            for number in range(len(choosing.inputs) + len(measuring.inputs))
        ]
    )
    predicted = rows[rows >= 0]
    assert torch.equal(predicted, tokens[1 : 1 + len(predicted)])
    assert len(tokens) - 1 - len(predicted) < 16
    few = disjoint_windows(run, 2)
    assert [len(part.inputs) for part in few] == [2, 2]
    assert not any(torch.equal(x, y) for x in few[0].targets for y in few[1].targets)


def test_both_sets_of_a_text_have_the_loss_of_its_whole_windows(on_text: Run) -> None:
    choosing, measuring, tokens = halves(on_text, 10_000)
    model = on_text.load_model()
    count = choosing.tokens + measuring.tokens
    text = on_text.tokenizer().decode(tokens[: count + 1])
    expected = evaluate_string(model, on_text.tokenizer(), text, context=16).cross_entropy
    both = (choosing.loss(model) * choosing.tokens + measuring.loss(model) * measuring.tokens) / count
    assert both == pytest.approx(expected, rel=1e-5)


def test_too_few_windows_are_refused(on_text: Run, folder: Path) -> None:
    for function in (validation_windows, disjoint_windows):
        with pytest.raises(InputError, match="windows must be 1 or more, got 0"):
            function(on_text, 0)
    (folder / "short.txt").write_text((folder / "text.txt").read_text()[:200])
    short = [*TINY, f"data.corpus={folder / 'short.txt'}", "data.validation_fraction=0.12"]
    run = train(load_recipe("demo", short), folder / "short", progress=False)
    assert len(validation_windows(run, 1).inputs) == 1
    with pytest.raises(InputError, match="must have two windows or more, got one"):
        disjoint_windows(run, 4)
