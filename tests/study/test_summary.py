"""Tables, verdicts and the figure, from results alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from nadaraya.errors import InputError
from nadaraya.study import Study, summarise
from nadaraya.study.draw import draw, write_summary

SIZES = {"small": 1e12, "medium": 1e13, "large": 1e14}
NOISE = (-0.002, 0.0, 0.002)


def study(**keys: Any) -> Study:
    given: dict[str, Any] = {"recipe": "demo", "baseline": "rope", "learning_rates": [1e-3, 2e-3]}
    given |= {"variants": {name: {} for name in ("rope", "gka", "same", "poor", "absent")}}
    return Study(**{**given, "sizes": {size: {} for size in SIZES}, **keys})


def results(shares: dict[str, float], seeds: int = 3, sizes: int = 3) -> dict[str, Any]:
    """What a study has found whose variants need these shares of the baseline's compute."""
    planned, runs = [], []
    for size, flops in list(SIZES.items())[:sizes]:
        for variant, share in shares.items():
            where = {"size": size, "variant": variant}
            planned.append({**where, "seconds": flops / 1e10, "learning_rate": 2e-3})
            loss = 30 * (flops / share) ** -0.08
            common = {"steps": 10, "parameters": 5, "flops": int(flops), "bits_per_byte": loss / 3}
            for seed in range(seeds):
                runs.append(
                    {**where, **common, "seed": seed, "learning_rate": 2e-3, "loss": loss + NOISE[seed]}
                )
            runs.append({**where, **common, "seed": 0, "learning_rate": 1e-3, "loss": loss + 1})
    runs.append({"size": "small", "variant": "rope", "seed": 0, "learning_rate": 4e-3, "diverged": "nan"})
    return {"recipe": {}, "cells": planned, "runs": runs}


def test_verdicts_say_which_share_of_the_compute_is_enough() -> None:
    summary = summarise(study(), results({"rope": 1.0, "gka": 0.7, "same": 1.0, "poor": 1.5}))
    assert list(summary.cells) == ["rope", "gka", "same", "poor"]
    gka, same, poor = (summary.verdict(name) for name in ("gka", "same", "poor"))
    assert gka.startswith(
        "`gka` is better than `rope` (3 sizes, 3 seeds): it reaches the same loss with 0.70× ("
    )
    assert "of the training FLOPs over all sizes, with 0.70× (" in gka
    assert " at large. That share shows no trend: 1.00× (" in gka
    assert same.startswith("`same` does not differ significantly from `rope` (3 sizes, 3 seeds)")
    assert poor.startswith("`poor` is worse than `rope`")
    assert summary.exponents["gka"].value == pytest.approx(0.08, abs=1e-4)


def test_a_gain_that_ends_at_the_largest_size_is_no_gain() -> None:
    found = results({"rope": 1.0, "gka": 0.7})
    for row in found["runs"]:
        if (row["size"], row["variant"], row["learning_rate"]) == ("large", "gka", 2e-3):
            row["loss"] += 30 * (1e14) ** -0.08 - 30 * (1e14 / 0.7) ** -0.08
    verdict = summarise(study(), found).verdict("gka")
    assert verdict.startswith("`gka` does not differ significantly from `rope` at large (3 sizes, 3 seeds): ")
    assert "with 0.79× (" in verdict
    assert "over all sizes, with 1.00× (" in verdict
    assert "That share rises, which favours the baseline" in verdict


def test_cells_are_those_of_the_chosen_rate_and_a_search_that_goes_on_decides_nothing() -> None:
    found = results({"rope": 1.0, "gka": 0.7, "poor": 1.5})
    for cell in found["cells"]:
        if cell["variant"] == "poor":
            cell["learning_rate"] = None
    summary = summarise(study(), found)
    assert list(summary.cells) == ["rope", "gka"]
    cell = summary.cells["gka"][0]
    assert (cell.learning_rate, len(cell.losses)) == (2e-3, 3)
    lines = summary.markdown().splitlines()
    line = next(line for line in lines if line.startswith("| small | gka |"))
    assert "| 0.002 |" in line
    assert f"{cell.loss:.4f} ± 0.0020" in line
    line = next(line for line in lines if line.startswith("| `gka` |"))
    assert f"| 0.002 | {cell.loss:.4f} ± 0.0020<br>0.70 (" in line


def test_variants_are_ranked_below_the_baseline_by_their_share_of_compute() -> None:
    found = results({"poor": 1.5, "rope": 1.0, "same": 0.9, "gka": 0.7})
    found["cells"] = [cell for cell in found["cells"] if (cell["size"], cell["variant"]) != ("large", "same")]
    lines = summarise(study(), found).markdown().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| `")]
    assert [row[0] for row in rows] == ["| `rope`", "| `gka`", "| `same`", "| `poor`"]
    assert [row[-1][:4] for row in rows] == ["1 |", "0.70", "0.90", "1.50"]
    assert rows[2][4] == "–"


def test_one_seed_gives_no_interval_and_one_size_no_share() -> None:
    one_seed = summarise(study(), results({"rope": 1.0, "gka": 0.7}, seeds=1))
    assert one_seed.verdict("gka") == (
        "`gka` does not differ significantly from `rope` (3 sizes, 1 seed; an interval needs two seeds): it "
        "reaches the same loss with 0.70× of the training FLOPs over all sizes, with 0.70× at large. "
        "That share changes: 1.00× per tenfold training FLOPs."
    )
    one_size = summarise(study(), results({"rope": 1.0, "gka": 0.7}, sizes=1))
    assert one_size.verdict("gka").startswith(
        "`gka` is better than `rope` (1 size, 3 seeds): its loss differs by -0.09"
    )


def test_the_axis_is_what_was_matched() -> None:
    summary = summarise(study(match="seconds"), results({"rope": 1.0, "gka": 0.7}))
    assert "with 0.70× (" in summary.verdict("gka")
    assert "of the seconds of training" in summary.verdict("gka")
    assert summary.cells["rope"][0].compute == 100.0


def test_all_is_made_from_the_results_without_the_runs(tmp_path: Path) -> None:
    found = {**results({"rope": 1.0, "gka": 0.7}), "warnings": ["gka: the highest rate"]}
    (tmp_path / "results.json").write_text(json.dumps(found))
    summary = write_summary(study(), tmp_path)
    text = (tmp_path / "summary.md").read_text()
    assert text.endswith("\nWarnings:\n\n- gka: the highest rate\n")
    assert summary.verdict("gka") in text
    assert text.count("\n| small |") == 2
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(json.dumps(summary.plain()))["verdicts"] == {"gka": summary.verdict("gka")}
    with pytest.raises(InputError, match=r"has no results of a study: it has no results.json"):
        write_summary(study(), tmp_path / "absent")
    (tmp_path / "results.json").write_text('{"cells": [{}], "runs": []}')
    with pytest.raises(InputError, match="cannot be read as the results of a study"):
        write_summary(study(), tmp_path)


def test_the_figure_shows_the_excess_of_the_best_and_the_shares_of_all_in_their_order() -> None:
    factors = {"rope": 1.0, **{f"v{k}": 1.2 - 0.05 * k for k in range(9)}}
    summary = summarise(study(variants={name: {} for name in factors}), results(factors))
    losses, shares = draw(summary).axes
    ranked = [f"v{k}" for k in reversed(range(9))]
    assert [label.get_text() for label in shares.get_yticklabels()] == ranked
    assert [text.get_text() for text in losses.get_legend().get_texts()] == ranked[:8]
    lines = {line.get_label(): line.get_ydata() for line in losses.lines}
    for name in ranked[:8]:
        excess = [a.loss - b.loss for a, b in zip(summary.cells[name], summary.cells["rope"], strict=True)]
        assert list(lines[name]) == pytest.approx(excess)
    base = [line for line in losses.lines if line.get_marker() == "o"][:3]
    assert sum(len(line.get_xdata()) for line in base) == 9  # three seeds at three sizes


def test_a_study_of_the_baseline_alone_is_drawn() -> None:
    losses, shares = draw(summarise(study(), results({"rope": 1.0}))).axes
    assert losses.get_legend() is None
    assert not shares.get_yticklabels()
