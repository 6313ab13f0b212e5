"""Verdicts on claims, from made-up results that agree, disagree or cannot tell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nadaraya import InputError
from nadaraya.files import write_file
from nadaraya.reproduce import figure_names, load_figure
from nadaraya.reproduce.catalogue import SCALES, load_experiment
from nadaraya.reproduce.claims import (
    BankBump,
    BanksAlike,
    KernelParameters,
    Level,
    Lower,
    NewlinePeak,
    ZeroBank,
)
from nadaraya.reproduce.comparison import draw_figure, write_comparison
from nadaraya.study import Findings

SAID = {"says": "a claim", "paper": "a figure", "variant": "gpa-rope"}
LAGS = np.arange(120)


def findings(gap: float = 0.0, noise: float = 0.001, **rows: Any) -> Findings:
    """Runs of two variants with three seeds, of which gpa-rope has this gap to rope."""
    study = load_experiment("papers", "smoke").study.model_copy(update={"seeds": [0, 1, 2]})
    cells = [{"size": "u8", "variant": name, "learning_rate": 0.01} for name in ("rope", "gpa-rope")]
    runs = []
    for seed in range(3):
        common = {"size": "u8", "seed": seed, "learning_rate": 0.01, "steps": 8, "validation": [[8, 2.0]]}
        runs.append({**common, "variant": "rope", "loss": 2.0 + 0.1 * seed, "kernel_parameters": 0})
        loss = 2.0 + 0.1 * seed + gap + noise * (seed - 1)
        own = {key: values[seed] for key, values in rows.items()}
        runs.append({**common, "variant": "gpa-rope", "loss": loss, "kernel_parameters": 4096, **own})
    return Findings(study, {"cells": cells, "runs": runs})


def probed(*layers: np.ndarray) -> dict[str, Any]:
    tables = [
        {"layer": layer, "added": True, "initial": None, "trained": table.tolist()}
        for layer, table in enumerate(layers)
    ]
    return {"banks": {"layers": tables}}


def bumps(lag: int, heads: int = 2) -> np.ndarray:
    """(H, L) banks that decay, with a bump at a lag, each a little stronger than the one before."""
    curve = np.exp(-LAGS / 30) + np.exp(-(((LAGS - lag) / 4) ** 2))
    return np.array([(1 + 0.1 * head) * curve for head in range(heads)])


def test_an_order_of_losses_rests_on_the_interval_of_the_gap() -> None:
    claim = Lower(kind="lower", **SAID, other="rope")
    assert claim.check(findings(-0.05)).agrees == "yes"
    assert claim.check(findings(+0.05)).agrees == "no"
    assert claim.check(findings(-0.001)).agrees == "not significant"
    one = findings(-0.05)
    one.results["runs"][:] = [row for row in one.results["runs"] if row["seed"] == 0]
    assert claim.check(one).agrees == "not significant"
    none = Findings(one.study, {"cells": [], "runs": []})
    assert claim.check(none).agrees == "not measured"
    assert (
        "-0.0500 (-0.0525 to -0.0475) nats/token after 8 updates, 3 seeds"
        in claim.check(findings(-0.05)).ours
    )


def test_to_be_level_is_more_than_not_to_be_told_apart() -> None:
    claim = Level(kind="level", **SAID, other="rope", within=0.01)
    assert claim.check(findings(0.002)).agrees == "yes"
    assert claim.check(findings(0.002, noise=0.02)).agrees == "not significant"
    assert claim.check(findings(0.009)).agrees == "not significant"
    assert claim.check(findings(0.05)).agrees == claim.check(findings(-0.05)).agrees == "no"


def test_parameters_are_counted_exactly() -> None:
    for count, agrees in ((4096, "yes"), (4095, "no")):
        checked = KernelParameters(kind="kernel-parameters", **SAID, count=count).check(findings())
        assert (checked.ours, checked.agrees) == ("4,096", agrees)


@pytest.mark.parametrize(
    ("lags", "agrees", "words"),
    [
        ((70, 72, 66), "yes", "in 3 of 3 runs"),
        ((70, 90, 40), "in some runs", "in 1 of 3 runs"),
        ((90, 90, 40), "no", "bump at lag 90, strongest bump at lag 40; so in 0 of 3"),
    ],
)
def test_the_strongest_bump_of_a_layer_is_near_a_lag(lags: tuple[int, ...], agrees: str, words: str) -> None:
    claim = BankBump(kind="bank-bump", **SAID, layer=1, lag=70, within=5)
    found = findings(probes=[probed(bumps(20), bumps(lag)) for lag in lags])
    checked = claim.check(found)
    assert checked.agrees == agrees
    assert words in checked.ours
    assert claim.check(findings()).agrees == "not measured"
    decays = findings(probes=[probed(bumps(70), np.exp(-LAGS / 30)[None])] * 3)
    assert claim.check(decays).ours.startswith("no bump")
    kept = probed(bumps(20), bumps(70))
    kept["banks"]["layers"][1]["initial"] = bumps(70).tolist()
    checked = claim.check(findings(probes=[kept] * 3))
    assert checked.ours.startswith("strongest bump at lag 70, as at the start; so in 0 of 3")
    absent = claim.model_copy(update={"there": False})
    opposite = {"yes": "no", "no": "yes"}
    assert absent.check(found).agrees == opposite.get(agrees, agrees)
    assert absent.check(decays).agrees == "yes"
    beyond = BankBump(kind="bank-bump", **SAID, layer=1, lag=200, within=5)
    assert beyond.check(found).agrees == "not measured"


def test_any_bump_of_a_layer_may_be_the_one_near_a_lag() -> None:
    claim = BankBump(kind="bank-bump", **SAID, layer=0, lag=70, within=5, strongest=False)
    twice = bumps(30) + 0.5 * bumps(70)
    found = findings(probes=[probed(twice)] * 3)
    assert claim.check(found).agrees == "yes"
    assert claim.check(found).ours.startswith("nearest bump at lag 70;")
    assert claim.model_copy(update={"strongest": True}).check(found).agrees == "no"
    assert claim.model_copy(update={"lag": 50, "there": False}).check(found).agrees == "yes"
    assert claim.model_copy(update={"there": False}).check(found).agrees == "no"


def test_heads_are_more_alike_in_some_layers_than_in_others() -> None:
    alike = bumps(70)
    different = np.stack([bumps(30)[0], bumps(90)[0]])
    claim = BanksAlike(kind="banks-alike", **SAID, layers=[0], more_than=[1])
    noise = np.random.default_rng(0).normal(0, 1e-3, (3, 2, len(LAGS)))
    there = [probed(alike + each, different + each) for each in noise]
    back = [probed(different + each, alike + each) for each in noise]
    same = [probed(alike + each, alike - each) for each in noise]
    assert claim.check(findings(probes=there)).agrees == "yes"
    assert claim.check(findings(probes=back)).agrees == "no"
    assert claim.check(findings(probes=same)).agrees == "not significant"
    assert "1.00 against" in claim.check(findings(probes=there)).ours
    # Heads of a bank that is flat, as it is where it has become zero, are like no others.
    flat = np.zeros((1, len(LAGS)))
    with_flat = [probed(np.concatenate([alike + each, flat]), different + each) for each in noise]
    assert claim.check(findings(probes=with_flat)) == claim.check(findings(probes=there))
    nothing = [probed(alike, np.concatenate([flat, flat]))] * 3
    assert claim.check(findings(probes=nothing)).agrees == "not measured"


def test_a_bank_that_is_nearly_zero_is_found_in_its_layer() -> None:
    dead = bumps(70) * np.array([[1.0], [0.01]])
    claim = ZeroBank(kind="zero-bank", **SAID, layer=1, below=0.05)
    assert claim.check(findings(probes=[probed(bumps(70), dead)] * 3)).agrees == "yes"
    assert claim.check(findings(probes=[probed(dead, bumps(70))] * 3)).agrees == "no"


def test_newlines_have_a_peak_at_a_lag() -> None:
    counts = [0] * 256
    counts[0], counts[69] = 400, 300
    probes = {"newlines": {"generated": {"counts": counts, "overflow": 0}}}
    found = findings(probes=[probes] * 3)

    def agrees(lag: int, within: int) -> str:
        claim = NewlinePeak(kind="newline-peak", **SAID, text="generated", lag=lag, within=within)
        return claim.check(found).agrees

    assert (agrees(69, 1), agrees(69, 0), agrees(1, 0)) == ("yes", "no", "yes")


def test_a_probe_that_failed_is_not_measured() -> None:
    claim = ZeroBank(kind="zero-bank", **SAID, layer=0, below=0.05)
    assert claim.check(findings(probes=[{"banks": {"error": "no space"}}] * 3)).agrees == "not measured"


@pytest.mark.parametrize("name", figure_names())
@pytest.mark.parametrize("scale", SCALES)
def test_every_figure_takes_variants_that_its_study_has_at_every_scale(name: str, scale: str) -> None:
    figure = load_figure(name)
    study = load_experiment(figure.study, scale).study
    assert set(figure.trained) <= set(study.variants)
    needed = {"losses": set(), "banks": {"banks"}, "newlines": {"banks", "newlines"}}[figure.drawing]
    assert needed <= set(study.probes_of(list(study.sizes)[-1]))


def test_results_that_lack_what_figures_take_are_one_line(tmp_path: Path) -> None:
    found = findings()
    results: Any = {**found.results, "recipe": {}}
    for row in results["runs"]:
        del row["validation"]
    write_file(tmp_path / "results.json", json.dumps(results))
    with pytest.raises(InputError, match=r"results\.json cannot be read as the results of a study"):
        write_comparison("papers", found.study, tmp_path)


def test_losses_are_drawn_at_the_updates_that_all_seeds_have() -> None:
    found = findings(validation=[[[4, 2.5], [8, 2.0]], [[8, 2.1]], [[8, 2.2]]])
    (drawing,) = draw_figure(load_figure("gpa-losses"), found).values()
    (axes,) = drawing.axes
    assert axes.get_title(loc="left") == "validation loss, nats/token: mean and range of 3 seeds"
    lines = [line for line in axes.get_lines() if line.get_label().startswith("gpa-rope")]
    assert [list(line.get_xdata()) for line in lines] == [[8]]
    assert lines[0].get_ydata()[0] == pytest.approx(2.1)
