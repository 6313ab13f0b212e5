"""Tables of docs/results/speed.md."""

import statistics
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from pages_format import EPYC, XEON, ZEN3, Tables, code, read, table

from nadaraya.attention import dense
from nadaraya.attention.kinds import arguments, drawn
from nadaraya.checking.grid import FEATURES, Check, kind_of
from nadaraya.checking.ways import PLAIN
from nadaraya.cli.check import verdict
from nadaraya.stored import read_stored

STOCK, LLAMA = "stock SDPA, no bias", "Llama, sdpa"
SHAPES = ("B 1, H 6, N 2048, d 64", "B 16, H 4, N 256, d 32", "B 16, H 4, N 256, d 128")
OPERATORS = {
    STOCK: "PyTorch's fused attention, no bias",
    "gpa, with the gradient of the bank": "**nadaraya**: added bank of 64 terms, with its gradient",
    "gpa, SDPA with an N×N bias": "PyTorch's fused attention, given the N × N bias",
    "gpa, N×N by hand": "the bank by hand, N × N",
    "gka": "**nadaraya**: Gaussian kernel attention",
    "gka, N×N by hand": "the Gaussian by hand, N × N",
}
STEPS = [
    ("128, bf16", "step-spread.json", "dickens, width 128, batch 16, context 256, bfloat16"),
    ("128", "step-hybrid.json", "dickens, width 128, batch 16, context 256"),
    ("512", "step-hybrid.json", "dickens, width 512, batch 16, context 256"),
]
GRID_TOKENS = (64, 256)
OURS, SIZES = ("dense", "sdpa"), ("batch", "heads", "keys")
GRIDS = (
    ("EPYC, float32", EPYC / "grid.json"),
    ("EPYC, bfloat16", EPYC / "grid.json"),
    ("EPYC, bfloat16, exact logits", EPYC / "grid.json"),
    ("Zen 3, float32", ZEN3 / "grid.json"),
    ("Zen 3, float32, compiled, too", ZEN3 / "grid-compiled.json"),
    ("Xeon, float32, older", XEON / "grid.json"),
)
CONVOLUTION = "gpa-spread:short_convolution=4:intermediate_size=448"
STEP_VARIANTS = {
    "gpa-rope": ("gpa-rope",),
    "gpa-mul-loo": ("gpa-mul-loo",),
    "gpa-hybrid": ("gpa-hybrid",),
    "gpa-rope-gate": ("gpa-rope-gate", "gpa-rope-gate:intermediate_size=450"),
    "gpa-spread": ("gpa-spread:intermediate_size=450",),
    "gpa-spread, convolution": (CONVOLUTION,),
    "fox-loo-gate, convolution": ("fox-loo-gate:short_convolution=4:intermediate_size=449",),
}


def median(row: dict[str, Any]) -> float:
    """The median of a timing, in its unit."""
    return float(row["median"])


def operator() -> str:
    """Forward and backward of the operator against PyTorch's fused attention."""
    times = read(EPYC / "attention.json")["time_ms"]
    rows = []
    for name, label in OPERATORS.items():
        if "by hand" in name:
            continue
        cells = [(median(times[shape][name]), median(times[shape][STOCK])) for shape in SHAPES]
        rows.append([label, *(f"{ours:.0f} ({ours / stock:.2f}×)" for ours, stock in cells)])
    return table(["forward + backward, ms", *SHAPES], rows)


def readme_speed() -> str:
    """The first shape of `operator`."""
    times = read(EPYC / "attention.json")["time_ms"][SHAPES[0]]
    stock = median(times[STOCK])
    rows = [
        [label, f"{median(times[name]):.0f}", f"{median(times[name]) / stock:.2f}×"]
        for name, label in OPERATORS.items()
    ]
    return table([f"causal, float32, {SHAPES[0]}; forward + backward", "ms", "relative"], rows)


def step_times() -> list[dict[str, Any]]:
    """The timings of a training step, by variant, of each of `STEPS`."""
    return [read(EPYC / name)["step_ms"][case] for _, name, case in STEPS]


def steps() -> str:
    """A training step against that of RoPE, by width and precision."""
    timed = step_times()
    bases = [median(times["rope"]) for times in timed]
    rows = [["`rope`, ms", *(f"{base:,.0f}" for base in bases)]]
    for label, names in STEP_VARIANTS.items():
        found = [next((times[name] for name in names if name in times), None) for times in timed]
        cells = [f"{median(row) / base:.2f}×" if row else "" for row, base in zip(found, bases, strict=True)]
        name, *rest = label.split(", ")
        rows.append([", ".join([code(name), *rest]), *cells])
    return table(["width", *(label for label, _, _ in STEPS)], rows)


def decoding() -> str:
    """Tokens/s of generation, and its share of that of transformers' Llama."""
    found = read(ZEN3 / "decoding.json")["rows"]
    rates = {(row["batch"], row["prompt"], row["model"]): row["tokens_per_second"] for row in found}
    cases = list(dict.fromkeys(key[:2] for key in rates))
    rows = []
    for model in dict.fromkeys(key[2] for key in rates):
        cells = [
            f"{rates[*case, model]:,.0f} ({rates[*case, model] / rates[*case, LLAMA]:.2f}×)" for case in cases
        ]
        rows.append([model if model == LLAMA else code(model), *cells])
    return table(["tokens/s", *(f"{batch} × {prompt:,}" for batch, prompt in cases)], rows)


def pruning() -> str:
    """Attention with negligible keys left out against causal attention without a bias."""
    rows = []
    for name, clock in {"decay-16384.json": "clock", "decay-processor-time.json": "processor"}.items():
        found = read(XEON / name)
        for tokens in dict.fromkeys(row["tokens"] for row in found["rows"]):
            passes = [row["time_ms"] for row in found["rows"] if row["tokens"] == tokens]
            cells = [_ratio(times, "bank, negligible keys left out") for times in passes]
            rows.append([f"{tokens:,}", str(found["heads"]), clock, *cells])
    return table(["tokens", "heads", "time", "forward", "forward + backward"], rows)


def _ratio(times: dict[str, Any], name: str) -> str:
    return f"{median(times[name]) / median(times[STOCK]):.2f}×" if name in times else ""


def other_models() -> str:
    """A training step of layers of other models with the library's attention and with their own."""
    found = read(XEON / "other_models.json")["models"]
    rows = []
    for model, lengths in found.items():
        for tokens, ways in lengths.items():
            if int(tokens) >= 8192:
                cells = [_cost(ways[way]) for way in ("nadaraya", "eager", "sdpa")]
                rows.append([model, f"{int(tokens):,}", *cells])
    return table(["block", "tokens", "nadaraya", "eager", "sdpa"], rows)


def _cost(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    return f"{median(row) / 1000:.1f} s, {row['peak_mib']:,.0f} MiB"


def selection() -> str:
    """Bandwidth selection against statsmodels."""
    found = read(XEON / "regression_selection.json")
    times = {name: median(row) / 1000 for name, row in found["selection"]["time_ms"].items()}
    slowest = max(times.values())
    rows = [
        [label, f"{times[label]:.3f}", f"{slowest / times[label]:.0f}×"]
        for label in ("nadaraya, 7 starts", "statsmodels KernelReg, cv_ls")
    ]
    return table(["", "seconds", "speed"], rows)


def grid() -> str:
    """Median and worst ratio to the fastest known way, by kind and tokens."""
    cells = [cell for cell in read(EPYC / "grid.json")["cells"] if cell["dtype"] == "float32"]
    rows = []
    for kind, gradients in dict.fromkeys((cell["kind"], cell["gradients"]) for cell in cells):
        here = [cell for cell in cells if (cell["kind"], cell["gradients"]) == (kind, gradients)]
        found = [[_behind(cell) for cell in here if cell["keys"] == tokens] for tokens in GRID_TOKENS]
        ratios = [f"{statistics.median(each):.2f} ({max(each):.2f})" for each in found]
        rows.append([kind, "both" if gradients else "forward", *ratios])
    return table(["call", "pass", *(f"{tokens:,}" for tokens in GRID_TOKENS)], rows, left=2)


def grids() -> str:
    """How many calls are behind the fastest known way, by machine and dtype."""
    rows = []
    for name, path in GRIDS:
        cells = [cell for cell in read(path)["cells"] if cell["dtype"] in name]
        rules = [_rule(*(cell[key] for key in ("kind", "gradients", *SIZES))) for cell in cells]
        forms = ("", ", compiled") if "compiled" in name else ("",)
        if "exact" in name:  # the plain formula rounds logits to bfloat16
            cells = [
                cell | {"ms": {way: ms for way, ms in cell["ms"].items() if way != PLAIN}} for cell in cells
            ]
        shown = [name, f"{len(cells):,}"]
        for ways in ([("sdpa",)] * len(cells), rules, [OURS] * len(cells)):
            if ways is rules and "older" in name:  # the rule is today's
                shown.append("")
                continue
            ways = [tuple(way + form for way in each for form in forms) for each in ways]
            found = sorted(map(_behind, cells, ways))
            counts = [f"{sum(ratio > limit for ratio in found):,}" for limit in (1.05, 1.25)]
            shown.append(f"{', '.join(counts)} ({found[-1]:.2f})")
        rows.append(shown)
    return table(["", "calls", "row blocks", "`auto`", "`auto`, shape measured"], rows)


def _behind(cell: dict[str, Any], ways: tuple[str, ...] = OURS) -> float:
    """Time of the fastest of some ways over that of the fastest known way."""
    times: dict[str, float] = cell["ms"]
    return min(times[way] for way in ways if way in times) / min(times.values())


@cache
def _rule(name: str, gradients: bool, batch: int, heads: int, tokens: int) -> tuple[str, ...]:
    """The backend that `auto` takes where nobody has measured."""
    kinds = (kind_of(feature, torch.float32, 8, gradients) for feature in FEATURES)
    kind = next(kind for kind in kinds if kind.name == name)
    args = arguments(kind, drawn(kind, 1, 1, tokens))
    args = replace(args, query=args.query.expand(batch, heads, -1, -1))
    with torch.set_grad_enabled(gradients):
        slow = kind.queries == 1 or dense.why_not(args) or dense.why_slow(args)
        return ("sdpa",) if slow else ("dense",)


def check() -> str:
    """Times and verdict of `nadaraya check --quick`."""
    found = read_stored(EPYC / "check.json", Check, "a check")
    ways = list(dict.fromkeys(row.way for row in found.rows))
    cells: dict[str, dict[str, str]] = {}
    for row in found.rows:
        if row.gradients or row.kind == "decoding":
            kind = row.kind if row.gradients else f"{row.kind}, forward"
            cells.setdefault(kind, {})[row.way] = f"{row.ms:.3g}"
    rows = [[kind, *(times.get(way, "") for way in ways)] for kind, times in cells.items()]
    shown = table(["forward + backward, ms", *ways], rows)
    return "\n".join([shown, "", "```text", *verdict(found), "```"])


TABLES: Tables = {
    "check": check,
    "grid": grid,
    "grids": grids,
    "decoding": decoding,
    "operator": operator,
    "readme-speed": readme_speed,
    "steps": steps,
    "pruning": pruning,
    "other-models": other_models,
    "selection": selection,
}
