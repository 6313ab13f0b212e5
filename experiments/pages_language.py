"""Tables of docs/results/language-models.md."""

from functools import cache
from statistics import mean

from pages_format import RESULTS, ROOT, STUDIES, Tables, code, difference, share, sign, spread, table

from nadaraya.study import Findings, load_study, summarise
from nadaraya.study.plan import Measurements, plan_cells
from nadaraya.study.results import MEASURED_FILE, Row
from nadaraya.study.statistics import Estimate
from nadaraya.study.summary import Summary

COMPUTE = (
    "gpa-spread-conv", "gpa-rope-gate", "projected", "gpa-mul-loo", "gpa-mul-gate", "gpa-rope",
    "rope-gate-conv", "hybrid-4", "gpa", "decay", "rope-conv", "gka-loo-bank", "gpa-mul", "alibi", "gka",
)  # fmt: skip
CONTROLS = (
    "gpa-rope", "rope-conv", "gpa-rope-conv", "rope-norm", "gpa-rope-norm", "gpa-mul", "matern32", "alibi",
    "fox-loo",
)  # fmt: skip
BEYOND = {
    "mul-loo-spread-gate-conv": "`gpa-spread` with a convolution",
    "mul-loo-gate-conv": "the same, but heads start alike",
    "rope-loo-gate-conv": "`rope` with all that is beside the bank: the control",
    "rope-gate-conv": "`rope` with gates and convolution",
    "fox-loo-gate": "forget gates, gates on the output",
    "gate": "`gpa-rope` with gates",
    "mul-loo-hybrid": "`gpa-hybrid`",
    "gpa-rope": "`gpa-rope`",
    "rope": "`rope`",
}


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
    if size:
        return share(_at(summary(folder), variant, size))
    compared = summary(folder).comparisons.get(variant)
    return "" if compared is None else share(compared.mean_share)


def _at(of: Summary, variant: str, size: str) -> Estimate | None:
    """The share at a size, if it was measured."""
    compared = of.comparisons.get(variant)
    if compared is None:
        return None
    return dict(zip(of.shared(variant), compared.share or (), strict=False)).get(size)


@cache
def _other_seeds() -> Summary:
    """What byte pairs say without the runs of the largest size with the seed that chose the rates."""
    pairs = found("gka-bytepairs")
    kept = [
        run for run in pairs.results["runs"] if (run["size"], run["seed"]) != ("w64", pairs.study.seeds[0])
    ]
    return summarise(pairs.study, {**pairs.results, "runs": kept})


@cache
def _speeds() -> dict[str, float]:
    """Seconds per training FLOP at the largest size of byte pairs, by variant, over those of `rope`."""
    times = Measurements(STUDIES / "gka-bytepairs" / MEASURED_FILE, vocabulary=1024)
    study = load_study(ROOT / "experiments" / "studies" / "gka.yaml")
    cells = plan_cells(study, ["data.corpus=wiki-shards"], times, ("rope", *COMPUTE), timed=True)
    per_flop = {
        cell.variant: (cell.step_seconds or 0.0) / cell.flops_per_token
        for cell in cells
        if cell.size == "w64"
    }
    return {variant: each / per_flop["rope"] for variant, each in per_flop.items()}


def largest(variant: str) -> list[str]:
    """The share at the largest size of byte pairs, with the other seeds alone, and of seconds."""
    here, others = (_at(each, variant, "w64") for each in (summary("gka-bytepairs"), _other_seeds()))
    if here is None or others is None:
        return [""] * 3
    return [share(here), f"{others.value:.2f}", f"{here.value * _speeds()[variant]:.2f}"]


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
    rows = [
        [
            code(variant),
            compute(pairs, variant),
            *largest(variant),
            *(compute(characters, variant, size) for size in ("", "w64")),
        ]
        for variant in COMPUTE
    ]
    header = [
        "byte pairs, all sizes",
        "largest",
        "other seeds",
        "in seconds",
        "characters, all sizes",
        "largest",
    ]
    return table(["variant", *header], rows)


def controls() -> str:
    """Changes of attention beside a bank and without it, at two horizons."""
    rows = [
        [
            code(variant),
            gap("controls", variant, "u1000", "rope"),
            gap("controls", variant, "u3000", "rope"),
        ]
        for variant in CONTROLS
    ]
    return table(["− `rope`", "1,000 updates", "3,000"], rows)


def beyond() -> str:
    """Ideas to gain over gpa-rope, after 3,000 and 10,000 updates."""
    rows = []
    for variant, label in BEYOND.items():
        own = losses("beyond", variant, "u3000")
        gaps = [gap("beyond", variant, size, "gpa-rope") for size in ("u3000", "u10000")]
        far = changes("beyond", variant, "u3000", 4096)
        rows.append([label, str(len(own)), spread(own), *(gaps if variant != "gpa-rope" else ("", "")), far])
    header = ["variant", "seeds", "3,000 updates", "− `gpa-rope`", "after 10,000", "at 4,096 characters"]
    return table(header, rows)


TABLES: Tables = {
    "equal-compute": equal_compute,
    "controls": controls,
    "beyond": beyond,
}
