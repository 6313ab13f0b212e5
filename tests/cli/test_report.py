"""`nadaraya report`: run folders in, one file out, nothing overwritten, one line for what cannot be done."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from nadaraya.cli import main
from nadaraya.report import read_run
from nadaraya.report.images import read_image_run
from nadaraya.training import Run
from nadaraya.training.lengths import write_length_file
from nadaraya.training.loop import train
from nadaraya.training.metrics import digest_of
from nadaraya.training.recipe import load_recipe

Command = Callable[..., tuple[int, str, str]]

TINY = (
    "model.hidden_size=16",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "data.context=16",
    "data.limit=6000",
    "training.steps=3",
    "training.batch_size=2",
    "training.warmup_steps=1",
    "training.log_every=1",
    "training.evaluate_every=1",
    "training.sample_characters=20",
)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nadaraya", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "gpa-mul"
    train(load_recipe("demo", [*TINY, "model.variant=gpa-mul"]), folder, progress=False)
    return folder


def test_json_is_one_document_about_the_file(report: Command, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    status, said, _ = report(run_folder, run_folder, "--out", out, "--json")
    assert status == 0
    runs = [str(run_folder)] * 2
    assert json.loads(said) == {"path": str(out), "bytes": out.stat().st_size, "runs": runs}


@pytest.mark.parametrize(
    ("options", "lag"),
    [(["characters"], 31), (["bytes"], 32), (["bpe", "data.vocabulary=300"], 8)],
    ids=["characters", "bytes", "bpe"],
)
def test_the_line_length_is_in_the_tokens_of_the_run(
    report: Command, tmp_path: Path, options: list[str], lag: int
) -> None:
    text, run, out = tmp_path / "text.txt", tmp_path / "run", tmp_path / "page.html"
    text.write_text("the café and the bar and house\n" * 300, encoding="utf-8")
    tokens = [f"data.corpus={text}", f"data.tokenizer={options[0]}", *options[1:], "data.context=40"]
    train(load_recipe("demo", [*TINY, "model.variant=gpa-mul", *tokens]), run, progress=False)
    assert report(run, "--out", out)[0] == 0
    page = " ".join(out.read_text(encoding="utf-8").split())
    assert f"line length of the corpus in the tokens of this run, lag {lag}." in page


def test_losses_in_different_tokens_are_not_compared(
    report: Command, run_folder: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "characters", tmp_path / "page.html"
    train(load_recipe("demo", [*TINY, "data.tokenizer=characters"]), run, progress=False)
    assert report(run_folder, run, "--out", out)[0] == 0
    page = out.read_text(encoding="utf-8")
    assert "different texts or tokens: their losses do not compare" in page
    assert "has the lowest validation loss" not in page


def test_a_trained_run_becomes_a_page(report: Command, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    status, said, _ = report(run_folder, "--out", out)
    assert status == 0
    assert said.startswith(f"report: {out}")
    page = out.read_text(encoding="utf-8")
    # Shares and reach, losses by step and time, kernels of two layers, the corpus's lags.
    assert page.count("<svg") == 2 + 2 + 2 + 1
    assert "generated characters hold" in page
    assert "variant: gpa-mul" in page


def test_what_a_page_shows_of_a_run_is_what_the_run_says(run_folder: Path) -> None:
    run = Run(run_folder)
    data = read_run(run)
    assert (data.name, data.folder, data.variant) == (run.name, "gpa-mul", "gpa-mul")
    assert (data.finished, data.step, data.loss) == (True, 3, run.final["loss"])
    assert data.train[:, :2].tolist() == [[r["step"], r["loss"]] for r in run.series("train")]
    assert data.validation[:, 1].tolist() == [r["loss"] for r in run.series("validation")]
    assert data.corpus == (run.corpus().name, run.corpus().text)
    assert (data.context, data.sample) == (16, run.sample)
    assert data.setup.startswith("2 layers, 2 heads, width 16, context 16; 3 steps of 2 windows; corpus: ")
    assert [shape.trained.shape for shape in data.banks] == [(2, 16)] * 2
    assert not np.array_equal(data.banks[0].initial, data.banks[0].trained)
    assert [layer.within.shape for layer in data.reads] == [(2, 16)] * 2
    assert data.lengths is None


def test_losses_by_length_beside_a_run_are_shown(report: Command, run_folder: Path, tmp_path: Path) -> None:
    run, out = Path(shutil.copytree(run_folder, tmp_path / "run")), tmp_path / "page.html"
    write_length_file(run, [{"length": 64, "full": 5.25, "window": 5.125}], context=16, window=16)
    assert report(run, "--out", out)[0] == 0
    assert "Loss beyond the training length" in out.read_text(encoding="utf-8")
    (run / "lengths.json").write_text('{"context": 16}')
    status, _, error = report(run, "--out", out, "--force")
    assert (status, error.count("\n")) == (2, 1)
    assert "lengths.json cannot be read as losses by length: window must be there" in error


def test_an_existing_file_needs_force(report: Command, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    status, said, error = report(run_folder, "--out", out)
    assert (status, said) == (2, "")
    assert error.count("\n") == 1
    assert "--force" in error
    assert out.read_text() == "mine"
    assert report(run_folder, "--out", out, "--force")[0] == 0
    assert out.read_text(encoding="utf-8") != "mine"


def test_a_folder_that_is_no_run_is_one_line(report: Command, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        status, _, error = report(folder, "--out", tmp_path / "page.html")
        assert status == 2
        assert error.count("\n") == 1
        assert str(folder) in error
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_model_is_one_line(report: Command, run_folder: Path, tmp_path: Path) -> None:
    model = run_folder / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    try:
        status, _, error = report(run_folder, "--out", tmp_path / "page.html")
    finally:
        model.write_bytes(whole)
    assert status == 2
    assert error.count("\n") == 1
    assert "model.safetensors" in error


IMAGE = (
    "model.image_size=16",
    "model.options={patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2,"
    " variant_options: {grid_kernel: bank}}",
    "training.epochs=2",
    "training.warmup_epochs=0",
    "training.batch_size=8",
    "training.log_every=1",
)


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on noise in four classes, the images beside it."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("image-runs")
    arrays = {}
    for part, count in (("train", 24), ("test", 10)):
        arrays[f"{part}_images"] = random.integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)
        arrays[f"{part}_labels"] = np.arange(count) % 4
    names = np.array(["ant", "bee", "cow", "<dog>"])
    np.savez(folder / "images.npz", **arrays, class_names=names)
    recipe = load_recipe("cifar-cpu", [f"data.source={folder / 'images.npz'}", *IMAGE])
    train(recipe, folder / "gka", progress=False)
    return folder / "gka"


@pytest.fixture
def copied(image_folder: Path, tmp_path: Path) -> Path:
    """A copy of the run on images, to be changed."""
    return Path(shutil.copytree(image_folder, tmp_path / "gka"))


def test_a_run_on_images_gets_its_own_report(report: Command, image_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    status, _, error = report(image_folder, "--out", out)
    assert status == 0, error
    page, final = out.read_text(encoding="utf-8"), Run(image_folder).final
    assert final is not None
    for heading in (
        "EMA top-1",
        "images/s",
        "Bandwidths, before",
        "Kernels of the patch grid",
        "What attention reads, by distance",
    ):
        assert heading in page
    assert f"<td>{100 * final['ema_top1']:.2f}</td>" in page
    assert f"<td>{final['parameters']:,}</td>" in page
    # Shares and reach, loss and top-1 against steps and seconds, bandwidths.
    assert page.count("<svg") == 2 + 4 + 1
    assert page.count('class="pixels"') == 4  # two layers, before and after
    assert page.count("background-image: url(data:") == 3  # each validation image once
    assert page.count('<div class="photo photo-0-1"') == 3  # the image, and two layers over it
    assert "&lt;dog&gt;" in page
    assert "<dog>" not in page
    assert "Samples" not in page


def test_what_an_image_report_shows_is_what_the_run_learned(image_folder: Path) -> None:
    run = Run(image_folder)
    data = read_image_run(run)
    trained, initial = run.load_model(), run.load_model(initial=True)
    for shown, model in ((data.sigma, trained), (data.sigma_start, initial)):
        layers = [block.attn.content.bandwidth.detach().log() for block in model.blocks]
        expected = torch.stack([layer.reshape(2, -1).mean(1).exp() for layer in layers], dim=1)
        np.testing.assert_allclose(shown, expected.numpy(), rtol=1e-6)
    assert [shape.trained.shape for shape in data.grids] == [(2, 15, 15)] * 2
    logits = trained.blocks[0].attn.grid_kernel.lag_logits(4, 4)  # of 1 row and 2 columns, and of none
    factors = data.grids[0].trained[:, 7, 7], data.grids[0].trained[:, 7 + 1, 7 + 2]
    expected = (logits[:, 3 + 1, 3 + 2] - logits[:, 3, 3]).detach()
    np.testing.assert_allclose(np.log(factors[1] / factors[0]), expected, atol=1e-5)
    assert len(data.examples) == 3
    assert data.examples[0].maps[1][1].shape == (4, 4)
    assert [layer.within.shape for layer in data.reads] == [(2, 4)] * 2  # patches are 0 to 3 apart
    assert data.accuracy == run.final["ema_top1"]


def test_two_runs_on_images_are_ranked_and_told_apart(
    report: Command, image_folder: Path, copied: Path, tmp_path: Path
) -> None:
    records = Run(copied).metrics
    digests = records[-1].pop("sha256")
    records[-1] |= {"top1": 0.9, "ema_top1": 0.95}
    records[-1]["sha256"] = {**digests, "metrics.jsonl": digest_of(records)}
    (copied / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    other = Path(shutil.copytree(copied, tmp_path / "better"))
    status, _, error = report(image_folder, image_folder, other, "--out", tmp_path / "page.html")
    assert status == 0, error
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "has the highest top-1, 95.00%" in page
    assert '<td class="least">95.00</td>' in page
    assert page.count("background-image: url(data:") == 9
    results = page[page.index('id="image-results"') : page.index('id="image-curves"')]
    assert results.index("· better") < results.index("· gka")


def test_runs_on_text_and_on_images_get_their_sections_in_one_file(
    report: Command, run_folder: Path, image_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    status, _, error = report(image_folder, run_folder, "--out", out)
    assert status == 0, error
    page = out.read_text(encoding="utf-8")
    assert page.index('id="results"') < page.index('id="image-results"')
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("kept", [[], ["train"], ["train", "validation"]])
def test_unfinished_runs_show_what_there_is(
    report: Command, copied: Path, run_folder: Path, tmp_path: Path, kept: list[str]
) -> None:
    text = Path(shutil.copytree(run_folder, tmp_path / "text"))
    for folder in (copied, text):
        records = [record for record in Run(folder).metrics if record["kind"] in kept]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "model.safetensors").unlink()
    status, _, error = report(copied, text, "--out", tmp_path / "page.html")
    assert status == 0, error
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("No run is finished yet") == 2
    assert "training is not finished" in page


def test_images_that_are_gone_are_said(report: Command, image_folder: Path, tmp_path: Path) -> None:
    source = image_folder.parent / "images.npz"
    source.rename(tmp_path / "elsewhere.npz")
    try:
        status, _, error = report(image_folder, "--out", tmp_path / "page.html")
    finally:
        (tmp_path / "elsewhere.npz").rename(source)
    assert status == 0, error
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No maps of" in page
    assert "images.npz" in page.split("No maps of")[1]


@pytest.mark.parametrize(
    "damage", [{"kind": "train", "step": 1}, {"step": 1}, {"kind": "final", "step": 1, "loss": "low"}]
)
def test_damaged_records_are_one_line(
    report: Command, copied: Path, tmp_path: Path, damage: dict[str, object]
) -> None:
    with (copied / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(damage) + "\n")
    status, _, error = report(copied, "--out", tmp_path / "page.html")
    assert status == 2
    assert error.count("\n") == 1
    assert "metrics.jsonl, line " in error


def test_a_sample_of_other_bytes_is_one_line(report: Command, run_folder: Path, tmp_path: Path) -> None:
    text = Path(shutil.copytree(run_folder, tmp_path / "text"))
    (text / "sample.txt").write_bytes(b"\xff\xfe\xfa")
    status, _, error = report(text, "--out", tmp_path / "page.html")
    assert (status, error.count("\n")) == (2, 1)
    assert "sample.txt" in error


def test_a_report_in_a_folder_that_refuses_is_one_line(report: Command, run_folder: Path) -> None:
    status, _, error = report(run_folder, "--out", "/proc/page.html")
    assert status != 0
    assert error.count("\n") == 1
    assert "/proc/page.html" in error
