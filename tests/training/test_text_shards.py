"""Training on token shards: exact resumption, documents kept apart, damage named, whole validation."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import killing, side_by_side
from safetensors.torch import load_file

from nadaraya.data import TokenShards, tokenize_corpus
from nadaraya.data.windows import document_positions, num_windows, read_windows
from nadaraya.errors import InputError
from nadaraya.evaluation import bits_per_byte, evaluate_text
from nadaraya.evaluation.language import evaluate_shards, token_bytes, total_nats
from nadaraya.files import sha256
from nadaraya.training import Recipe, Run, train
from nadaraya.training.processes import Processes
from nadaraya.training.text import TextTask

Make = Callable[..., Recipe]
AtUpdate = Callable[[int, Callable[[], object]], None]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 1,500 training tokens in several files."""
    folder = tmp_path_factory.mktemp("shards")
    texts = [f"{'abcdefgh'[i % 8] * (i % 5 + 1)} the {i % 7} of it.\n" * (1 + i % 3) for i in range(60)]
    (folder / "texts.txt").write_text("<|endoftext|>".join(texts))
    options = {"vocabulary": 280, "shard_tokens": 300, "validation_documents": 8}
    return tokenize_corpus(folder / "texts.txt", folder / "shards", **options).folder  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def finished(
    one_thread: None, shards: Path, tiny_recipe: Make, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    recipe = tiny_recipe(data__corpus=str(shards))
    return train(recipe, tmp_path_factory.mktemp("sharded") / "run", progress=False).path


def _losses(folder: Path) -> list[tuple[str, int, float]]:
    return [(record["kind"], record["step"], record["loss"]) for record in Run(folder).metrics]


def _across_a_border(part: TokenShards) -> tuple[torch.Tensor, torch.Tensor]:
    """A window in which a document ends and one begins: inputs and targets, (1, 16)."""
    border = int((part.tokens([1], 200)[0] == part.document_token).nonzero()[0]) + 1
    window = part.tokens([border - 7], 17)
    return window[:, :-1], window[:, 1:].clone()


class Rank(Processes):
    """One of several processes, as far as data are concerned."""

    def __init__(self, rank: int, count: int) -> None:
        super().__init__()
        self.rank, self.count = rank, count


def test_the_stream_of_a_run_has_every_target_of_an_epoch_once_over_processes_and_a_stop(
    tiny_recipe: Make, shards: Path
) -> None:
    part, context, batch_size = TokenShards(shards), 16, 6
    count = num_windows(len(part), context)
    steps = 3 * -(-count // batch_size)
    changes = {"training__batch_size": batch_size, "training__steps": steps, "data__context": context}
    recipe = tiny_recipe(data__corpus=str(shards), **changes)
    trained = []
    for done, until, processes in ((0, 5, 1), (5, 11, 3), (11, steps, 2)):  # resumed by other numbers of them
        streams = [iter(TextTask(recipe, Rank(rank, processes)).batches(done)) for rank in range(processes)]
        for _ in range(done, until):
            parts = [next(stream) for stream in streams]
            trained += torch.cat([torch.stack(part, 1) for part in parts]).tolist()
    every = torch.stack(read_windows(part, np.arange(count), context), 1).tolist()
    assert sorted(trained[:count]) == sorted(every)
    assert sorted(trained[count : 2 * count]) == sorted(every)
    assert trained[:count] != trained[count : 2 * count]


def test_a_stopped_run_resumes_bit_for_bit(
    finished: Path, shards: Path, tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate
) -> None:
    recipe, folder = tiny_recipe(data__corpus=str(shards)), tmp_path / "stopped"
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder, progress=False)
    train(recipe, folder, progress=False)
    assert _losses(folder) == _losses(finished)
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, finished))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_record_of_a_stopped_run_has_every_window_of_an_epoch_once(
    shards: Path, tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate
) -> None:
    count = num_windows(len(TokenShards(shards)), 16)
    batch_size = -(-count // 6)  # an epoch ends within the sixth of eight updates
    recipe = tiny_recipe(data__corpus=str(shards), data__record=True, training__batch_size=batch_size)
    folder = tmp_path / "run"

    def fail() -> None:
        raise KeyError("a fault after the checkpoint of update 3")

    at_update(5, fail)
    with pytest.raises(KeyError):
        train(recipe, folder, progress=False)
    record = folder / "windows.jsonl"
    assert record.read_text().count("\n") == 5
    with record.open("a") as stream:
        stream.write('{"update": 6, "wind')  # a line that a kill cut off
    train(recipe, folder, progress=False)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["update"] for line in lines] == list(range(1, 9))
    windows = [number for line in lines for number in line["windows"]]
    assert sorted(windows[:count]) == list(range(count))
    assert len(set(windows[count:])) == len(windows[count:])


@pytest.mark.slow
def test_after_one_of_two_processes_is_killed_one_goes_on_and_no_window_comes_twice(
    shards: Path, tiny_recipe: Make, tmp_path: Path
) -> None:
    count = num_windows(len(TokenShards(shards)), 16)
    changes = {"data__record": True, "training__batch_size": 2 * -(-count // 12), "model__dropout": 0.0}
    recipe = tiny_recipe(data__corpus=str(shards), **changes)
    folder = tmp_path / "run"
    survivor, killed = side_by_side(recipe, folder, killing(rank=1))
    assert (survivor.status, killed.status) == (2, -signal.SIGKILL)
    run = Run(folder)
    assert run.final is None
    assert [path.name for path in (folder / "training_state").glob("step-*")] == ["step-00000003"]
    train(recipe, folder, progress=False)
    windows = [
        number
        for line in (folder / "windows.jsonl").read_text().splitlines()
        for number in json.loads(line)["windows"]
    ]
    assert sorted(windows[:count]) == list(range(count))
    one = train(recipe, tmp_path / "one", progress=False)
    for ours, theirs in zip(_losses(folder), _losses(one.path), strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2] == pytest.approx(theirs[2], rel=1e-4)


def test_final_figures_are_those_of_the_whole_validation_part(finished: Path, shards: Path) -> None:
    run, part = Run(finished), TokenShards(shards, "validation")
    model, context = run.load_model(), run.recipe.data.context
    texts = part.tokenizer.decode(part.tokens([0], len(part))[0], skip_special_tokens=True)
    result = evaluate_shards(model, part, context=context)
    assert run.final is not None
    assert run.final["loss"] == pytest.approx(result.cross_entropy, rel=1e-6)
    assert result.tokens == len(part) - 1
    assert result.bytes == len(texts.encode())
    assert run.final["bits_per_byte"] == pytest.approx(result.bits_per_byte, rel=1e-6)
    joined = evaluate_shards(model, part, context=context, documents="joined")
    windows = [read_windows(part, np.arange(num_windows(len(part), context)), context)]
    expected = bits_per_byte(model, windows, token_bytes(part.tokenizer))
    assert joined.bits_per_byte == pytest.approx(expected, rel=1e-6)
    assert joined.cross_entropy != result.cross_entropy
    # Windows of 1 more than divide the text are those of evaluate_text.
    even = next(c for c in range(2, len(part)) if (len(part) - 1) % c == 0)
    tokens = part.tokens([0], len(part))[0]
    expected = evaluate_text(model, tokens, context=even, num_bytes=result.bytes)
    ours = evaluate_shards(model, part, context=even, documents="joined")
    assert ours.cross_entropy == pytest.approx(expected.cross_entropy, rel=1e-6)


def test_packed_documents_are_predicted_as_if_each_were_alone(finished: Path, shards: Path) -> None:
    model, part = Run(finished).load_model(), TokenShards(shards)
    inputs, targets = _across_a_border(part)
    positions = document_positions(inputs, part.document_token)
    begins = (positions[0] == 0).nonzero().flatten().tolist()
    assert len(begins) > 1
    alone = 0.0
    for begin, end in zip(begins, [*begins[1:], 16], strict=True):
        alone += total_nats(model, inputs[:, begin:end], targets[:, begin:end])
    assert total_nats(model, inputs, targets, positions) == pytest.approx(alone, rel=1e-5)
    assert total_nats(model, inputs, targets) != pytest.approx(alone, rel=1e-5)


def test_the_loss_of_an_update_does_not_depend_on_how_a_short_window_is_shared_out(
    tiny_recipe: Make, shards: Path
) -> None:
    count = num_windows(len(TokenShards(shards)), 16)
    recipe = tiny_recipe(data__corpus=str(shards), model__dropout=0.0, training__batch_size=count)
    task = TextTask(recipe, Processes())
    inputs, targets = next(iter(task.batches(0)))
    assert (targets == -100).any()
    whole = task.loss(task.model, inputs, targets)
    pieces = [task.loss(task.model, *part) for part in zip(inputs.split(1), targets.split(1), strict=True)]
    torch.testing.assert_close(torch.stack(pieces).mean(), whole)


@pytest.mark.parametrize("documents", ["packed", "joined"])
def test_attention_stays_inside_documents_where_the_recipe_says_so(
    tiny_recipe: Make, shards: Path, documents: str
) -> None:
    recipe = tiny_recipe(data__corpus=str(shards), data__documents=documents, model__dropout=0.0)
    task = TextTask(recipe, Processes())
    inputs, targets = _across_a_border(TokenShards(shards))
    targets[:, : int((inputs == 0).nonzero()[0, 1])] = -100  # those of the first document
    changed = inputs.clone()
    changed[0, 1] += 1
    losses = [task.loss(task.model, x, targets).item() for x in (inputs, changed)]
    assert (losses[0] == losses[1]) == (documents == "packed")


def test_a_launcher_that_compiles_models_does_not_join_documents(
    tiny_recipe: Make, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(data__corpus=str(shards), training__steps=4)
    runs = [train(recipe, tmp_path / "alone", progress=False)]
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    runs.append(train(recipe, tmp_path / "compiled", progress=False))
    losses = [[record["loss"] for record in run.series("train")] for run in runs]
    assert losses[0] == losses[1]


def test_a_run_on_shards_says_what_it_is_and_has_no_text(finished: Path, shards: Path) -> None:
    run = Run(finished)
    described = json.loads((finished / "text.json").read_text())
    assert described["training_tokens"] == len(TokenShards(shards))
    assert described["validation_documents"] == 8
    assert run.on_shards
    assert run.shards("train").num_documents == described["training_documents"]
    assert run.tokenizer().get_vocab() == TokenShards(shards).tokenizer.get_vocab()
    assert run.load_model().config.vocab_size == 280
    with pytest.raises(InputError, match=r"was trained on token shards, .*, which are no text"):
        run.corpus()


def test_a_run_on_text_has_no_shards(finished_text_run: Path) -> None:
    assert not Run(finished_text_run).on_shards
    with pytest.raises(InputError, match=r"was trained on the text .*, not on token shards"):
        Run(finished_text_run).shards()


def test_damaged_shards_are_named_and_not_trained_on(shards: Path, tiny_recipe: Make, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(shards, tmp_path / "shards"))
    recipe = tiny_recipe(data__corpus=str(copy))
    file = copy / "train-00001.bin"
    whole = file.read_bytes()
    for harmed, problem in ((whole[:-2], "bytes, not"), (b"\1\1" + whole[2:], "edited"), (None, "missing")):
        file.unlink()
        if harmed is not None:
            file.write_bytes(harmed)
        with pytest.raises(InputError, match=rf"train-00001.bin is damaged \(.*{problem}"):
            train(recipe, tmp_path / "run", progress=False)
        file.write_bytes(whole)
    assert not (tmp_path / "run").exists()


def test_tokens_beyond_the_vocabulary_are_one_line(shards: Path, tiny_recipe: Make, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(shards, tmp_path / "shards"))
    manifest = json.loads((copy / "shards.json").read_text())
    for shard in manifest["shards"]:
        for part, described in shard["files"].items():
            (file,) = [path for path in copy.glob(f"{part}-*.bin") if sha256(path) == described["sha256"]]
            file.write_bytes(b"\xff\xff" * described["tokens"])
            described["sha256"] = sha256(file)
    (copy / "shards.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="has the token 65535: its tokenizer has"):
        train(tiny_recipe(data__corpus=str(copy)), tmp_path / "run", progress=False)


def test_other_shards_under_a_run_are_noticed(
    shards: Path, finished: Path, tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate
) -> None:
    copy = Path(shutil.copytree(shards, tmp_path / "shards"))
    recipe = tiny_recipe(data__corpus=str(copy))
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", progress=False)
    shutil.rmtree(copy)
    (tmp_path / "texts.txt").write_text("<|endoftext|>".join(f"another text {i}" for i in range(99)))
    tokenize_corpus(tmp_path / "texts.txt", copy, vocabulary=280, validation_documents=8)
    with pytest.raises(InputError, match=r"the token shards are not those that .*run was started on"):
        train(recipe, tmp_path / "run", progress=False)
    with pytest.raises(InputError, match=r"token shards .* are not those that .*run was trained on"):
        Run(tmp_path / "run").shards()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__corpus": "embedded", "data__record": True}, "data.record must be false"),
        ({"data__limit": 100}, "data.limit must be None, as it is where left out: data.corpus has token"),
        (
            {"data__tokenizer": "bpe"},
            "data.tokenizer must be left out: data.corpus has token shards, with one",
        ),
        ({"data__validation_fraction": 0.2}, "data.validation_fraction must be 0.1, as it is"),
        ({"training__compile": True}, "training.compile must be false where documents are packed"),
        ({"data__context": 5000}, r"the training text has [\d,]+ tokens"),
    ],
)
def test_what_shards_cannot_do_is_refused_before_a_folder_is_made(
    shards: Path, tiny_recipe: Make, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(tiny_recipe(**{"data__corpus": str(shards), **changes}), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
