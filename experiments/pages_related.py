"""Tables of docs/results/related.md."""

from statistics import mean
from typing import Any

from pages_format import EPYC, RESULTS, Tables, code, read, spread, table
from pages_language import losses

TIMES = EPYC / "related.json"
VISION = RESULTS / "related" / "vision.json"
MISSING = "–"


def cell(kind: str, tokens: int, system: str) -> dict[str, Any]:
    """What was measured of a system; nothing where it was not run."""
    return dict(read(TIMES)[kind].get(str(tokens), {}).get(system, {}))


def _ms(kind: str, tokens: int, system: str, per: int = 1) -> str:
    found = cell(kind, tokens, system)
    if "median" not in found:
        return MISSING
    value = found["median"] / per
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _mib(kind: str, tokens: int, system: str, key: str = "peak_mib") -> str:
    found = cell(kind, tokens, system)
    if key not in found:
        return MISSING
    value = found[key] / (2**20 if key == "cache_bytes" else 1)
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _counts(kind: str, system: str) -> list[str]:
    found = read(TIMES)[kind][system]
    return [f"{found['parameters'] / 1e3:,.0f}", f"{found['flops'] / 1024 / 1e6:.1f}"]


def text_losses(folder: str = "related") -> dict[str, list[float]]:
    """Losses of the study by system, seed by seed, in its order; "related-3000" is the longer one."""
    study = read(RESULTS / "studies" / folder / "results.json")["study"]
    return {name: losses(folder, name, "only") for name in study["variants"]}


def top1() -> dict[str, list[float]]:
    """Top-1 in per cent by system, seed by seed."""
    found: dict[str, list[float]] = {}
    for row in read(VISION)["runs"]:
        found.setdefault(row["system"], []).append(100 * row["top1"])
    return found


def text() -> str:
    """Losses, time and memory of causal layers, lowest loss first."""
    found, longer = text_losses(), text_losses("related-3000")
    rows = [
        [
            code(name),
            spread(found[name]),
            spread(longer[name]) if longer[name] else "",
            _counts("text-counts", name)[0],
            *(_ms("text-training", tokens, name) for tokens in (1024, 4096, 16_384, 65_536)),
            _mib("text-training", 4096, name),
            _ms("text-decoding", 16_384, name, per=4),
            _mib("text-decoding", 16_384, name, "cache_bytes"),
        ]
        for name in sorted(found, key=lambda name: mean(longer[name] or found[name]))
    ]
    header = ["system", "400 updates", "3,000", "params, 10³", "1,024", "4,096", "16,384", "65,536", "MiB"]
    return table([*header, "decode, ms", "cache, MiB"], rows)


def images() -> str:
    """Accuracy, time and memory of layers that are not causal, highest accuracy first."""
    found = top1()
    rows = [
        [
            code(name),
            spread(found[name], 1),
            *_counts("vision-counts", name),
            *(_ms("vision-training", tokens, name) for tokens in (196, 1024, 4096)),
            *(_ms("vision-inference", tokens, name) for tokens in (196, 4096)),
            _mib("vision-training", 4096, name),
        ]
        for name in sorted(found, key=lambda name: -mean(found[name]))
    ]
    header = ["system", "top-1, %", "params, 10³", "MFLOP", "196", "1,024", "4,096"]
    return table([*header, "196, inference", "4,096, inference", "MiB"], rows)


def chunks() -> str:
    """The chunked form against transformers' Lightning attention, and the growth of `linear-bank`."""
    rows = []
    for name in ("nadaraya, chunks", "transformers, Lightning attention"):
        found = [_ms("lightning", tokens, name) for tokens in (4096, 16_384)]
        rows.append([name, found[0], MISSING, found[1], MISSING, MISSING])
    sizes = {
        4096: "text-training",
        8192: "growth",
        16_384: "text-training",
        32_768: "growth",
        65_536: "text-training",
    }
    rows.append([code("linear-bank"), *(_ms(kind, tokens, "linear-bank") for tokens, kind in sizes.items())])
    rows.append(
        [code("gpa-mul"), *(_ms("text-training", tokens, "gpa-mul") for tokens in sizes)],
    )
    return table(["forward + backward, ms", *(f"{tokens:,}" for tokens in sizes)], rows)


TABLES: Tables = {
    "related-text": text,
    "related-images": images,
    "related-chunks": chunks,
}
