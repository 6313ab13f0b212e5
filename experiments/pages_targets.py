"""Tables of docs/development/targets.md: targets that were set, what was measured, whether it is met."""

from itertools import pairwise
from typing import Any

from pages_format import EPYC, RESULTS, XEON, Tables, read, sign, table
from pages_speed import SHAPES, STOCK, median, step_times

LIGHTNING = "transformers, Lightning attention"
Row = tuple[str, str, bool]  # target, measured, whether it is met


def _operator() -> list[Row]:
    found = read(EPYC / "attention.json")
    times = {name: median(row) for name, row in found["time_ms"][SHAPES[0]].items()}
    bank, gka = (times[name] / times[STOCK] for name in ("gpa, with the gradient of the bank", "gka"))
    dense = times["gka, N×N by hand"] / times["gka"]
    peak = max(found["peak_memory_mib"].values())
    mixed = read(XEON / "mixed_positions.json")["time_ms"]
    logits, kernels, every = (
        [median(each[name]) / median(each[STOCK]) for each in mixed.values()]
        for name in ("mixed logits, 2048 lags", "mixed kernels, 2048 lags", "a logit for every key")
    )
    pruned = [
        median(row["time_ms"]["bank, negligible keys left out"]) / median(row["time_ms"][STOCK])
        for row in read(XEON / "decay-16384.json")["rows"]
    ]
    dense_form = [
        median(each[f"{name}, dense"]) / median(each[name])
        for each in mixed.values()
        for name in ("mixed logits, 2048 lags", "mixed kernels, 2048 lags")
    ]
    faster = f"{min(dense_form):.1f}–{max(dense_form):.1f}×"
    return [
        ("`gpa`, N 2048: ≤ 1.25× stock SDPA", f"{bank:.2f}×", bank <= 1.25),
        ("`gka`: ≤ 1.1×", f"{gka:.2f}×", gka <= 1.1),
        ("`gka`: ≥ 8× faster than N × N", f"{dense:.1f}×", dense >= 8),
        ("memory, N 16,384: far below 1,024 MiB", f"{peak:.0f} MiB", peak < 256),
        ("`prune_tol`, N 16,384: < 1× causal SDPA", _times(pruned), max(pruned) < 1),
        ("mixed logits, N 2048: ≤ 1.6×", _times(logits), max(logits) <= 1.6),
        ("mixed kernels: ≤ 1.6×", _times(kernels), max(kernels) <= 1.6),
        ("both: ≥ 4× faster than dense", faster, min(dense_form) >= 4),
        ("a logit for every key: ≤ 1.15×", _times(every), max(every) <= 1.15),
    ]


def _times(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.2f}×" for ratio in ratios)


def _linear() -> list[Row]:
    found = read(EPYC / "related.json")
    training, decoding = found["text-training"], found["text-decoding"]
    ratio = median(training["16384"]["gpa-mul"]) / median(training["16384"]["linear-bank"])
    cells = {int(tokens): row for tokens, row in (training | found["growth"]).items()}
    seconds = [median(cells[tokens]["linear-bank"]) for tokens in sorted(cells) if tokens >= 4096]
    growth = [after / before for before, after in pairwise(seconds)]
    lightning = [
        median(row["nadaraya, chunks"]) / median(row[LIGHTNING]) for row in found["lightning"].values()
    ]
    caches = {row["linear-bank"]["cache_bytes"] for row in decoding.values()}
    return [
        ("`linear-bank`, N 16,384: ≥ 5× faster than `gpa-mul`", f"{ratio:.1f}×", ratio >= 5),
        ("its time, N doubled, 4k to 64k: ≤ 2.2×", _times(growth), max(growth) <= 2.2),
        ("its chunks: ≤ 1× transformers' Lightning attention", _times(lightning), max(lightning) <= 1),
        ("its cache, 1k to 64k tokens: one size", f"{max(caches) / 2**20:.1f} MiB", len(caches) == 1),
    ]


def _models() -> list[Row]:
    steps = [median(each["gpa-rope"]) / median(each["rope"]) for each in step_times()]
    ((_, speeds),) = read(XEON / "step-nano-d6.json")["tokens_per_s"].items()
    nano = {name: speeds[name] / speeds["rope"] for name in ("gka", "gpa-rope")}
    rows = read(XEON / "vit-best.json")["rows"]
    best = {row["mode"]: row["speed_ratio"] for row in rows if row["model"].startswith("gka_loo")}
    shares = [
        max(each["of_synthetic"] for name, each in read(EPYC / file)["speeds"].items() if "workers" in name)
        for file in ("image-loading-deit.json", "image-loading-cifar.json")
    ]
    core = read(RESULTS / "core" / "core.json")
    forms = read(RESULTS / "vision-cifar10" / "results.json")["summary"]
    gap = 100 * (forms["deit"]["ema_top1"] - forms["gka-loo-grid-channel-shift"]["ema_top1"])
    range_of = f"{min(steps):.2f}–{max(steps):.2f}×"
    return [
        ("`gpa-rope` step, every width: ≤ 1.15× `rope`", range_of, max(steps) <= 1.15),
        ("nanochat d6: GKA ≥ 1.1× tokens/s", f"{nano['gka']:.2f}×", nano["gka"] >= 1.1),
        ("nanochat d6: `gpa-rope` ≥ 0.93×", f"{nano['gpa-rope']:.2f}×", nano["gpa-rope"] >= 0.93),
        (
            "best vision form: ≤ 1.0×, ≤ 0.95× DeiT-Ti",
            f"{1 / best['inference']:.2f}×, {1 / best['training']:.2f}×",
            1 / best["inference"] <= 1.0 and 1 / best["training"] <= 0.95,
        ),
        ("images loaded, DeiT: ≥ 0.95× a fixed batch", f"{shares[0]:.2f}×", shares[0] >= 0.95),
        ("the same, small model", f"{shares[1]:.2f}×", shares[1] >= 0.95),
        ("CIFAR-10: ≤ 0.3 points behind DeiT", sign(gap, 1), gap <= 0.3),
        ("CORE end to end", f"{core['tasks_run']} of 22 tasks", True),
    ]


def _regression() -> list[Row]:
    selection = read(XEON / "regression_selection.json")
    times = selection["selection"]["time_ms"]
    ratio = median(times["statsmodels KernelReg, cv_ls"]) / median(times["nadaraya, 7 starts"])
    large = median(
        selection["large"]["large: n 16,000, d 3, float64, bandwidths by aic"]["time_ms"]["nadaraya"]
    )
    search = read(RESULTS / "regression" / "bandwidth_search.json")["criteria"]
    close = [100 * each["summary"]["all"]["NadarayaWatson"]["within 0.02"] for each in search.values()]
    first = read(XEON / "regression_first.json")["first"]
    usual = max(max(each) for name, each in first.items() if "4,000" not in name)
    line = read(EPYC / "regression.json")["line"]["time_ms"]
    slowest = max(median(row) for name, row in line.items() if "prediction" in name) / 1000
    memory = max(each["peak"] for each in read(EPYC / "regression_memory.json")["memory"].values()) / 1024
    cells: list[dict[str, Any]] = [
        cell["mean"]
        for name in ("band-coverage", "band-coverage-1000", "band-coverage-skewed")
        for cell in read(RESULTS / "regression" / f"{name}.json")["cells"]
    ]
    bands = [
        100 * each[f"curve {kind}"] for each in cells for kind in ("pointwise", "bootstrap", "simultaneous")
    ]
    rivals = [
        min(median(row) for name, row in case["time_ms"].items() if name != "nadaraya")
        / median(case["time_ms"]["nadaraya"])
        for case in read(EPYC / "regression_prediction.json")["prediction"].values()
    ]
    ahead = f"{min(rivals):.1f}–{max(rivals):.1f}×"
    return [
        ("selection, n 1,000, d 2: ≥ 100× statsmodels", f"{ratio:.0f}×", ratio >= 100),
        ("corrected AIC, n 16,000, d 3: < 8 s", f"{large / 1000:.1f} s", large < 8000),
        (
            "within 0.02 of 24 descents: ≥ 95 % of designs",
            ", ".join(f"{each:.1f} %" for each in close),
            min(close) >= 95,
        ),
        (
            "bands of 95 % cover 93–97 %",
            f"{min(bands):.1f}–{max(bands):.1f} %",
            min(bands) >= 93 and max(bands) <= 97,
        ),
        ("first fit, n ≤ 1,000: < 5 s", f"{usual:.1f} s", usual < 5),
        ("100,000 at 100,000, d 3: ahead of KeOps, PyTorch", ahead, min(rivals) > 1),
        ("a million at a million, d 1: < 2 s", f"{slowest:.2f} s", slowest < 2),
        ("peak memory: < 1 GiB", f"{memory:.2f} GiB", memory < 1),
    ]


def targets() -> str:
    """Every target with a committed measurement."""
    rows = [*_operator(), *_linear(), *_models(), *_regression()]
    shown = [[target, measured, "yes" if met else "**no**"] for target, measured, met in rows]
    return table(["target", "measured", "met"], shown, left=3)


TABLES: Tables = {"targets": targets}
