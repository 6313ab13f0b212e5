"""What is left of a bank's gain beside other changes of attention, and of theirs beside a bank.

    python experiments/controls.py

Needs what `nadaraya study experiments/studies/controls.yaml` found in experiments/results/studies/controls;
writes remains.md there. Losses are compared run by run of the same seed, each variant at its own best rate.
"""

from collections.abc import Iterator
from pathlib import Path

from nadaraya.files import write_file
from nadaraya.study import Findings
from nadaraya.study.statistics import signed

FOLDER = Path(__file__).parent / "results" / "studies" / "controls"
BANK = ("rope", "gpa-rope")
# Without and with the bank.
CHANGES = {
    "normalised queries and keys": ("rope-norm", "gpa-rope-norm"),
    "convolution of 4 tokens": ("rope-conv", "gpa-rope-conv"),
    "exclusive self-attention": ("rope-xsa", "gpa-rope-xsa"),
    "own value dropped": ("rope-drop", "gpa-rope-drop"),
    "own token excluded": ("rope-loo", "gpa-rope-loo"),
    "exclusive self-attention, convolution": ("rope-xsa-conv", "gpa-rope-xsa-conv"),
}


def main() -> None:
    """Write remains.md."""
    found = Findings.read(FOLDER)
    text = "\n".join(_lines(found)) + "\n"
    write_file(FOLDER / "remains.md", text)
    print(text, end="")


def _lines(found: Findings) -> Iterator[str]:
    yield (
        "Gain of each change, and of the bank beside it: loss minus the loss without it, nats/token, run by "
        "run of the same seed, with intervals of 95 % by Student's t over seeds, none for one seed."
    )
    yield ""
    columns = [
        "change",
        "updates",
        "change, without a bank",
        "change, with the bank",
        "the bank beside the change",
    ]
    yield f"| {' | '.join(columns)} |"
    yield "|---|---:|---:|---:|---:|"
    for size, settings in found.study.sizes.items():
        updates = f"{settings['training.steps']:,}"
        rows = {"none": ["–", "–", _gap(found, size, BANK[1], BANK[0])]}
        for name, (without, having) in CHANGES.items():
            pairs = [(without, BANK[0]), (having, BANK[1]), (having, without)]
            rows[name] = [_gap(found, size, *pair) for pair in pairs]
        rows["own token excluded, forget gates"] = [_gap(found, size, "fox-loo", "fox"), "–", "–"]
        rows["exclusive self-attention, bank multiplied in"] = [
            "–", _gap(found, size, "gpa-mul-xsa", "gpa-mul"), "–"
        ]  # fmt: skip
        for name, gaps in rows.items():
            if any(gap.strip("–") for gap in gaps):
                yield f"| {' | '.join([name, updates, *gaps])} |"


def _gap(found: Findings, size: str, variant: str, than: str) -> str:
    gaps = found.gaps(variant, than)
    return next((signed(each.gap) for each in gaps.sizes if each.size == size), "") if gaps else ""


if __name__ == "__main__":
    main()
