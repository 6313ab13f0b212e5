"""Tables of docs/results/trained-models.md."""

from statistics import mean
from typing import Any

from pages_format import RESULTS, Tables, code, read, sign, spread, table

STUDENTS = RESULTS / "distillation" / "distillation.json"
ENCODER = RESULTS / "encoder" / "encoder.json"
CONTEXT = RESULTS / "context" / "context.json"
LENGTHS, DISTANCES = ("256", "1024", "4096"), ("64", "192", "448", "960", "3968")
WAYS = {
    "rotary": "as trained", "window 256": "window of 256", "window 128": "window of 128",
    "interpolate": "interpolation", "ntk": "NTK", "yarn": "YaRN",
    "rotary, 256": "as trained, tuned", "drop, 256": "no rotations (DroPE), tuned",
    "bank in place, 256": "**bank in place**, tuned", "bank beside, 256": "**bank beside**, alone tuned",
    "rotary, 1024": "as trained, tuned at 1,024",
    "yarn, 1024": "YaRN, tuned at 1,024", "drop, 1024": "no rotations (DroPE), tuned at 1,024",
    "bank in place, 1024": "**bank in place**, tuned at 1,024",
    "bank beside, 1024": "**bank beside**, alone tuned at 1,024",
}  # fmt: skip


def students() -> str:
    """Losses of students by what is replaced and how it is trained, the mean over seeds."""
    runs = read(STUDENTS)["runs"]
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for run in runs:
        for row in run["students"]:
            case = found.setdefault((row["variant"], len(row["layers"])), {})
            case.setdefault(row["way"], []).append(row["loss"])
            if "fresh" not in row["way"] and "layers" not in row["way"] and "KL" not in row["way"]:
                case.setdefault("not trained", []).append(row["start"])
    ways = ["not trained", *(way for way in next(iter(found.values())) if way != "not trained")]
    rows = [[way, *(spread(case[way]) for case in found.values())] for way in ways]
    for name in ("teacher", "teacher, tuned"):
        rows.append([name, spread([run[name] for run in runs]), *[""] * (len(found) - 1)])
    return table(["training", *(f"{code(name)}, {layers} of 4" for name, layers in found)], rows)


def longer() -> str:
    """Loss by length and recall by distance of every way to extend the context."""
    rows, runs = [], read(CONTEXT)["runs"]
    recalls = [run["untuned"]["rotary"]["recall"]["64"] > 0.5 for run in runs]
    for way, label in WAYS.items():
        each = [(run["untuned"] | run["tuned"])[way] for run in runs]
        losses = [spread([found["loss"][length] for found in each]) for length in LENGTHS]
        able = [found["recall"] for found, learned in zip(each, recalls, strict=True) if learned]
        recall = [spread([found[distance] for found in able], 2) for distance in DISTANCES]
        rows.append([label, *losses, *recall])
    header = [f"loss at {int(length):,}" for length in LENGTHS]
    return table(["way", *header, *(f"recall at {int(distance):,}" for distance in DISTANCES)], rows)


def surgery() -> str:
    """Loss after each step of `convert_model` at the context of training."""
    rows = []
    for way in ("bank in place", "drop", "rotary"):
        steps = [run["steps"][f"{way}, 256"] for run in read(CONTEXT)["runs"]]
        named = {name: spread([each[name] for each in steps]) for name in steps[0]}
        tuned = next(value for name, value in named.items() if name.startswith("after"))
        cells = [named.get(name, "") for name in ("as it is", "rotations dropped", "bank in their place")]
        label = {"bank in place": "bank", "drop": "none (DroPE)", "rotary": "rotary"}[way]
        rows.append([label, *cells, tuned])
    return table(["positions", "as it is", "rotations dropped", "bank in their place", "tuned"], rows)


def encoder() -> str:
    """Loss and accuracy of the encoder by what was tuned, seed by seed."""
    found = read(ENCODER)
    by_way: dict[str, list[dict[str, Any]]] = {"nothing": [{"parameters": 0, **found["untuned"]}]}
    for row in found["runs"]:
        by_way.setdefault(row["way"], []).append(row)
    rows = [
        [
            way,
            f"{each[0]['parameters']:,}",
            spread([row["loss"] for row in each]),
            spread([100 * row["top1"] for row in each], 1),
        ]
        for way, each in by_way.items()
    ]
    return table(["tuned", "parameters", "loss", "top-1, %"], rows)


def heads() -> str:
    """Share of the logits that the lag explains, and what heads are worth, by layer."""
    found = read(ENCODER)["heads"]
    rows = []
    for layer in sorted({row["layer"] for row in found}):
        each = [row for row in found if row["layer"] == layer]
        r2, worth = [row["r2"] for row in each], [row["loss_increase"] for row in each]
        over = sum(value > 0.5 for value in r2)
        rows.append(
            [
                str(layer),
                f"{mean(r2):.2f}",
                f"{max(r2):.2f}",
                str(over),
                sign(mean(worth)),
                sign(max(worth)),
            ]
        )
    return table(["layer", "R², mean", "R², highest", "above 0.5", "loss +, mean", "loss +, highest"], rows)


TABLES: Tables = {
    "trained-longer": longer,
    "trained-surgery": surgery,
    "trained-students": students,
    "trained-encoder": encoder,
    "trained-heads": heads,
}
