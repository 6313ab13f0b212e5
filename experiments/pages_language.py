"""Tables of docs/results/language-models.md."""

from functools import cache
from statistics import mean

from pages_format import RESULTS, STUDIES, Tables, code, difference, read, share, sign, spread, table

from nadaraya.study import Findings, summarise
from nadaraya.study.results import Row
from nadaraya.study.statistics import mean_with_interval
from nadaraya.study.summary import Summary

COMPUTE = (
    "gpa-spread-conv", "gpa-rope-gate", "gpa-mul-loo-conv", "projected", "gpa-mul-loo", "gpa-mul-gate",
    "gpa-rope", "rope-gate-conv", "hybrid-4", "rope-conv", "gka-loo-bank", "rope-gate", "gpa-mul", "gka",
)  # fmt: skip
CONTROLS = (
    "rope", "gpa-rope", "rope-conv", "gpa-rope-conv", "rope-norm", "gpa-rope-norm", "gpa-mul",
    "matern32", "inkling", "fox", "fox-loo",
)  # fmt: skip
BEYOND = {
    "mul-loo-spread-gate-conv": "`gpa-spread` with a convolution",
    "fox-loo-gate-conv": "forget gates, gates on the output, convolution",
    "rope-gate-conv": "`rope` with gates and convolution: the control",
    "mul-loo-spread-gate": "`gpa-spread`",
    "fox-loo-gate": "forget gates, gates on the output",
    "gate": "`gpa-rope` with gates",
    "mul-loo-hybrid": "`gpa-hybrid`",
    "mul-loo-gate-conv": "the first, but heads start alike",
    "gpa-rope": "`gpa-rope`",
    "rope": "`rope`",
}
LENGTHS = ("rope", "learned-rope", "decay", "gpa-mul", "gpa", "gpa-rope")
STARTS = {
    "rope": "RoPE, no bank",
    "mul-8": "multiplied in: every head alike, geometric",
    "mul-spread": "multiplied in: terms spread over the heads",
    "mul-1": "multiplied in: one term",
    "added-8": "added, G(0) = 1",
    "rope-64": "added beside RoPE, G(0) = 1: `gpa-rope`",
}
SEARCHED = (
    "matern32", "rq", "exponential", "periodic", "constant", "gaussian + matern32", "matern32*periodic",
)  # fmt: skip


@cache
def found(folder: str) -> Findings:
    """The runs of a study."""
    return Findings.read(STUDIES / folder if (STUDIES / folder).is_dir() else RESULTS / folder)


@cache
def summary(folder: str) -> Summary:
    """What a study at equal compute says."""
    return summarise(found(folder).study, found(folder).results)


def compute(folder: str, variant: str, size: str = "") -> str:
    """The share of the baseline's FLOPs for the same loss, at a size or over all."""
    compared = summary(folder).comparisons.get(variant)
    if compared is None:
        return ""
    if not size:
        return share(compared.mean_share)
    each = dict(zip(summary(folder).shared(variant), compared.share or (), strict=False))
    return share(each.get(size))


def losses(folder: str, variant: str, size: str) -> list[float]:
    """Losses of a variant, seed by seed."""
    return [row["loss"] for row in found(folder).rows.get((variant, size), [])]


def gap(folder: str, variant: str, size: str, than: str) -> str:
    """The loss minus that of another variant, run by run of the same seed."""
    gaps = found(folder).gaps(variant, than)
    return next((difference(each.gap) for each in gaps.sizes if each.size == size), "") if gaps else ""


def change(row: Row, length: int) -> float:
    """The loss with so many tokens minus the loss with the length of training."""
    lengths = row["probes"]["lengths"]["lengths"]
    return next(float(each["change"]) for each in lengths if each["length"] == length)


def changes(folder: str, variant: str, size: str, length: int) -> str:
    """That change, its mean over seeds."""
    rows = found(folder).sizes(variant, "lengths").get(size, [])
    return sign(mean(change(row, length) for row in rows)) if rows else ""


def equal_compute() -> str:
    """Shares of RoPE's training FLOPs, byte pairs and characters."""
    pairs, characters = "gka-bytepairs", "gka-characters"
    rows = []
    for variant in COMPUTE:
        cells = [compute(folder, variant, size) for folder in (pairs, characters) for size in ("", "w64")]
        rows.append([code(variant), *cells])
    header = [f"{text}, {size}" for text in ("byte pairs", "characters") for size in ("all sizes", "largest")]
    return table(["variant", *header], rows)


def controls() -> str:
    """Changes of attention beside a bank and without it, at two horizons."""
    rows = [
        [
            code(variant),
            spread(losses("controls", variant, "u1000")),
            gap("controls", variant, "u1000", "rope") if variant != "rope" else "",
            gap("controls", variant, "u3000", "rope") if variant != "rope" else "",
            changes("controls", variant, "u3000", 4096),
        ]
        for variant in CONTROLS
    ]
    header = ["variant", "1,000 updates", "− `rope`", "3,000 updates, − `rope`", "at 4,096 characters"]
    return table(header, rows)


def beyond() -> str:
    """Ideas to gain over gpa-rope, after 3,000 and 10,000 updates."""
    rows = []
    for variant, label in BEYOND.items():
        own = losses("beyond", variant, "u3000")
        gaps = [gap("beyond", variant, size, "gpa-rope") for size in ("u3000", "u10000")]
        far = changes("beyond", variant, "u3000", 4096)
        rows.append([label, str(len(own)), spread(own), *(gaps if variant != "gpa-rope" else ("", "")), far])
    header = ["variant", "seeds", "3,000 updates", "− `gpa-rope`", "10,000 updates, − `gpa-rope`"]
    return table([*header, "at 4,096 characters"], rows)


def lengths() -> str:
    """What texts cost that are longer than those of training."""
    rows = []
    for variant in LENGTHS:
        runs = found("papers").sizes(variant, "lengths")["u3000"]
        cells = [
            difference(mean_with_interval([change(row, at) for row in runs]), 2) for at in (512, 1024, 4096)
        ]
        rows.append([code(variant), *cells, changes("papers", variant, "u10000", 4096)])
    return table(["trained on 256 characters", "512", "1,024", "4,096", "4,096, 10,000 updates"], rows)


def starts() -> str:
    """How banks start, by the loss of one seed after 1,000 updates."""
    rows = []
    for variant, label in STARTS.items():
        (row,) = found("banks").rows[variant, "u1000"]
        rows.append([label, code(variant), f"{row['kernel_parameters']:,}", f"{row['loss']:.3f}"])
    return table(["bank", "name in the study", "its parameters", "nats/token"], rows, left=2)


def search() -> str:
    """Kernels of the lag found by the search."""
    rows = {row["expression"]: row for row in read(RESULTS / "search" / "results.json")["candidates"]}
    shown = []
    for name in SEARCHED:
        first, *others = rows[name]["losses"].values()
        number = str(rows[name]["parameters_per_head"])
        shown.append([code(name), number, f"{first:.3f}", spread(others) if others else ""])
    return table(["kernel", "parameters per head", "first seed, which chooses", "two others"], shown)


TABLES: Tables = {
    "equal-compute": equal_compute,
    "controls": controls,
    "beyond": beyond,
    "lengths": lengths,
    "starts": starts,
    "search": search,
}
