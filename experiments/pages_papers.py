"""Tables of docs/results/papers.md."""

from collections.abc import Sequence

import torch
from bump_heights import TEXTS
from pages_format import RESULTS, Tables, code, difference, read, spread, table
from pages_language import found, losses

from nadaraya.evaluation.efficiency import ModelCost, model_cost
from nadaraya.interpret.banks import Bump
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
from nadaraya.reproduce import load_figure
from nadaraya.study.probes import stored_shapes
from nadaraya.study.statistics import mean_with_interval
from nadaraya.training.recipe import load_recipe

HORIZONS = {"u300": "300 updates", "u1000": "1,000", "u3000": "3,000", "u10000": "10,000, one seed"}
VARIANTS = {
    "rope": "–",
    "learned-rope": "–",
    "decay": "geometric",
    "gpa-mul": "geometric",
    "gpa-paper": "G(0) = 64, GPA's",
    "gpa-rope-paper": "G(0) = 64, GPA's",
    "gpa": "G(0) = 1",
    "gpa-rope": "G(0) = 1",
}
FIGURES = {"kernel-bank-losses": "Bunks", "gpa-losses": "GPA"}
AGREES = {"yes": "as claimed", "no": "against it"}


def budgets() -> str:
    """How long the papers train, and how long the runs here do."""
    paper = load_recipe("dickens")
    config = KernelGPTConfig.preset("dickens")
    with torch.device("meta"):
        whole = model_cost(KernelGPTForCausalLM(config)).parameters
    recipe = found("papers").results["recipe"]
    characters = recipe["data"]["limit"] * (1 - recipe["data"]["validation_fraction"])
    tokens = paper.training.steps * paper.training.batch_size * paper.data.context
    rows = [
        ["the papers", f"{whole / 1e6:.1f} M", f"{paper.training.steps:,}", f"{tokens / characters:,.0f}"]
    ]
    (run, *_) = found("papers").rows["rope", "u10000"]
    passes = f"{run['tokens'] / characters:.1f}"
    rows.append(["here, the same text", f"{run['parameters'] / 1e6:.1f} M", f"{run['steps']:,}", passes])
    return table(["", "parameters", "updates", "passes over the text"], rows)


def dickens() -> str:
    """Losses of the papers' variants by horizon."""
    rows = []
    for variant, start in VARIANTS.items():
        cells = [losses("papers", variant, size) for size in HORIZONS]
        rows.append([code(variant), start, *(spread(each) if each else "" for each in cells)])
    return table(["variant", "start of the bank", *HORIZONS.values()], rows, left=2)


def claims() -> str:
    """What the papers say of losses, and how it stands here at two horizons."""
    rows = []
    for name, where in FIGURES.items():
        for claim in load_figure(name).on_losses:
            gaps = found("papers").gaps(claim.variant, claim.other)
            by_size = {each.size: each.gap for each in gaps.sizes} if gaps else {}
            agree = [claim.agreement(by_size[size]) for size in ("u300", "u3000")]
            rows.append([f"{where}: {claim.says}", *(AGREES.get(each, "–") for each in agree)])
    return table(["claim", "300 updates", "3,000"], rows, left=3)


def bumps() -> str:
    """The bump at the length of the lines, on the text and on two controls."""
    heights = read(RESULTS / "wrapped" / "heights.json")["gpa"]
    rows = []
    for study, text in TEXTS.items():
        runs = found(study).sizes("gpa", "banks")["u3000"]
        lags = [_nearest(stored_shapes(row["probes"]["banks"])[0].shared_bumps()) for row in runs]
        highest = [max(heads) for heads in heights[text]["71"]]
        rows.append([text, ", ".join(lags), difference(mean_with_interval(highest), 2)])
    return table(["text", "bump nearest to lag 71, by run", "height at 71, highest head, nats"], rows)


def _nearest(bumps: Sequence[Bump]) -> str:
    trained = [bump for bump in bumps if not bump.at_start]
    return str(min(trained, key=lambda bump: abs(bump.lag - 71)).lag) if trained else "none"


def table8() -> str:
    """Table 8 of Kundu et al. (2026), counted."""
    base, ours = _cost("nano-d20"), _cost("nano-d20-gka")
    rest = base.parameters - base.value_embedding_parameters
    rows = [
        _ratio("parameters", base.parameters, ours.parameters, "{:,.0f}"),
        _ratio("the same without value embeddings", rest, ours.parameters, "{:,.0f}"),
        _ratio(
            "FLOPs per training token, 10⁹",
            base.training_flops_per_token / 1e9,
            ours.training_flops_per_token / 1e9,
            "{:.4f}",
        ),
    ]
    return table(["", "`nano-d20`", "`nano-d20-gka`", "ratio"], rows)


def table6() -> str:
    """Table 6 of Kundu et al. (2026), and losses of training and validation text here."""
    header = ["", "training", "validation", "gap"]
    rows = [
        ["paper's baseline, bits/byte", "0.7800", "0.7884", "+0.0084"],
        ["paper's GKA", "0.8183", "0.8191", "+0.0008"],
    ]
    for variant in ("rope", "gka"):
        parts = [row["probes"]["parts"] for row in found("parts").rows[variant, "w48"]]
        both = [[part[name] for part in parts] for name in ("train", "validation")]
        gaps = [after - before for before, after in zip(*both, strict=True)]
        unit = ", nats/token" if variant == "rope" else ""
        rows.append([code(variant) + unit, *map(spread, both), difference(mean_with_interval(gaps))])
    return table(header, rows)


def _cost(name: str) -> ModelCost:
    with torch.device("meta"):
        return model_cost(KernelGPTForCausalLM(KernelGPTConfig.preset(name)))


def _ratio(label: str, base: float, ours: float, form: str) -> list[str]:
    return [label, form.format(base), form.format(ours), f"{ours / base:.2f}"]


TABLES: Tables = {
    "budgets": budgets,
    "dickens": dickens,
    "claims": claims,
    "bumps": bumps,
    "table-6": table6,
    "table-8": table8,
}
