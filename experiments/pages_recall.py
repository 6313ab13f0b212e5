"""Tables of recall, equal seconds and many passes: docs/results/language-models.md and docs/findings.md."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from pages_format import RESULTS, STUDIES, Tables, code, difference, read, spread, table

from nadaraya.study.statistics import mean_with_interval

CONTROL = "rope-loo-gate-conv"  # all of gpa-spread but its bank
HELD = ("validation", "test")
SEARCHED = 100  # the seed of the rates
WAYS = {
    "": "",
    "window": ", window of 128",
    "interpolate": ", interpolated",
    "ntk": ", NTK",
    "yarn": ", YaRN",
}
SHORT = (
    "rope-gate", "rope-gate, window of 128", "rope-gate, YaRN", "gpa-rope-gate", "nope-gate", "fox-loo-gate",
    "gpa-spread",
)  # fmt: skip
PASSES = {
    "p30": "30", "p100": "100", "p100-10000": "100, 10,000 updates", "p100-dropout": "100, dropout 0.2",
    "p300": "300", "p1000": "1,000",
}  # fmt: skip


def _recalled() -> dict[str, list[dict[str, Any]]]:
    """By name: of each seed the recall after 500 updates and at each length."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in read(RESULTS / "recall" / "recall.json")["runs"]:
        if run["seed"] != SEARCHED:
            for way, lengths in run["recall"].items():
                row = {"early": run["curve"]["500"], **lengths}
                found.setdefault(run["variant"] + WAYS[way], []).append(row)
    return found


def _table(names: Sequence[str], columns: dict[str, str]) -> str:
    recalled, rows = _recalled(), []
    for name in names:
        variant, *way = name.split(",", 1)
        cells = [spread([each[key] for each in recalled[name]], 2) for key in columns]
        rows.append([code(variant) + "".join(f",{each}" for each in way), *cells])
    return table(["recall", *columns.values()], rows)


def recall() -> str:
    """All that was measured."""
    columns = {"early": "128, after 500 updates"} | {key: f"{int(key):,}" for key in ("512", "2048")}
    names = [name for name in _recalled() if "," not in name or name.startswith("rope-gate,")]
    return _table(names, columns)


def recall_short() -> str:
    """What the finding names, at the longest."""
    return _table(SHORT, {"2048": "2,048 tokens"})


def _by_variant(study: str) -> dict[str, list[dict[str, Any]]]:
    """The runs of each variant of a study."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in read(STUDIES / study / "results.json")["runs"]:
        found.setdefault(run["variant"], []).append(run)
    return found


def seconds() -> str:
    """Losses after as many seconds as 3,000 updates of `rope`, and gaps to the control, seed by seed."""
    found = _by_variant("seconds")
    parts = {
        variant: {run["seed"]: run["probes"]["parts"] for run in runs} for variant, runs in found.items()
    }
    gaps = {
        variant: {
            part: [each[part] - parts[CONTROL][seed][part] for seed, each in seeds.items()] for part in HELD
        }
        for variant, seeds in parts.items()
    }
    rows = []
    for variant in sorted(parts, key=lambda name: mean(gaps[name]["test"])):
        losses = [f"{mean(each[part] for each in parts[variant].values()):.3f}" for part in HELD]
        beyond = [
            "" if variant == CONTROL else difference(mean_with_interval(gaps[variant][part])) for part in HELD
        ]
        rows.append([code(variant), f"{found[variant][0]['steps']:,}", *losses, *beyond])
    header = ["variant", "updates", "validation", "test", "− control, validation", "test"]
    return table(header, rows)


def controls() -> str:
    """The loss beyond the length of training, and with what explains it."""
    names = {"window": "window of 256", "shuffled": "far text shuffled", "yarn": "YaRN"}
    rows = []
    for variant, runs in _by_variant("seconds").items():
        probes = [run["probes"]["lengths"] for run in runs if "lengths" in run["probes"]]
        ends = [_mean([each["lengths"][at]["cross_entropy"] for each in probes]) for at in (0, -1)]
        others = [
            _mean([each["controls"][name][-1] for each in probes if name in each["controls"]])
            for name in names
        ]
        rows.append([code(variant), *ends, *others])
    return table(["loss at", "256", "4,096", *names.values()], rows)


def context() -> str:
    """Losses of models trained at 1,024, and of the same tokens with less text or with far text shuffled."""
    far, rows = read(STUDIES / "context-1024" / "far.json"), []
    for variant, runs in _by_variant("context-1024").items():
        held = [_mean([run["probes"]["parts"][part] for run in runs]) for part in HELD]
        found = [
            {row["length"]: f"{row['cross_entropy']:.4f}" for row in each["lengths"]}
            for each in (far[variant], far[variant]["far_context"])
        ]
        cells = [found[0][256], found[0][1024], found[1][1024], found[0][4096]]
        rows.append([code(variant), *held, *cells])
    header = ["variant", *HELD, "from 256", "1,024", "shuffled beyond 256", "4,096"]
    return table(header, sorted(rows, key=lambda row: row[1]))


def passes() -> str:
    """Losses on text that was read many times, and on the text behind it, the lowest and at the end."""
    variants, rows = ("rope", "gpa-mul", "gpa-rope"), []
    found = _by_variant("passes")
    for variant, runs in _by_variant("passes-10000").items():
        found[variant] += runs
    for size, name in PASSES.items():
        base, *others = [
            {run["seed"]: run for run in found[variant] if run["size"] == size} for variant in variants
        ]
        gaps = [[_lowest(run) - _lowest(base[seed]) for seed, run in runs.items()] for runs in others]
        trained = [
            _mean([run["probes"]["parts"]["train"] for run in runs.values() if "probes" in run])
            for runs in (base, *others)
        ]
        lowest, end = (_mean([of(run) for run in base.values()]) for of in (_lowest, lambda run: run["loss"]))
        beyond = [difference(mean_with_interval(each)) if each else "" for each in gaps]
        rows.append([name, lowest, *beyond, end, *trained])
    first, *names = map(code, variants)
    header = [f"lowest: {first}", *(f"{each} − it" for each in names), f"at the end: {first}"]
    return table(["passes", *header, f"training: {first}", *names], rows)


def _lowest(run: dict[str, Any]) -> float:
    return min(loss for _, loss in run["validation"])


def _mean(values: Sequence[float]) -> str:
    return f"{mean(values):.3f}" if values else ""


TABLES: Tables = {
    "recall": recall, "recall-short": recall_short, "seconds": seconds, "length-controls": controls,
    "passes": passes, "context": context,
}  # fmt: skip
