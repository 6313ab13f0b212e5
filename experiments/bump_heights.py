"""Whether trained banks of the first layer are higher at the length of the lines of their text than beside.

    python experiments/bump_heights.py

A claim that some bump stands at a lag is weak where banks have a dozen bumps. Here every text has the
same two lags, one the length of its lines as they are, one that of the lines wrapped at 50 columns: how
much higher, in nats, a head's bank is within 2 lags of it than 6 to 10 lags to either side. If lines put
it there, it is higher at the one on the text as it is, at the other on the text that was wrapped, and at
neither on words in random order. Needs what `nadaraya reproduce` found for gpa-losses, bump-control and
bump-null in experiments/results; writes heights.json and heights.md beside that of bump-control.
"""

import json
from pathlib import Path

import numpy as np

from nadaraya.files import write_file
from nadaraya.study import Findings
from nadaraya.study.probes import stored_shapes
from nadaraya.study.statistics import mean_with_interval, signed

RESULTS = Path(__file__).parent / "results"
TEXTS = {"papers": "as it is", "wrapped": "wrapped at 50 columns", "shuffled": "words in random order"}
LAGS = (71, 51)
SIZE = "u3000"


def height(bank: np.ndarray, lag: int) -> list[float]:
    """How much higher a bank, (heads, lags) in nats, is at a lag than beside it, head by head."""
    beside = np.concatenate([bank[:, lag - 10 : lag - 5], bank[:, lag + 6 : lag + 11]], axis=1)
    return [float(value) for value in bank[:, lag - 2 : lag + 3].mean(axis=1) - beside.mean(axis=1)]


def heights(study: str, variant: str) -> dict[int, list[list[float]]]:
    """By lag, the heights of the first layer: run by run, head by head, at the rate that was chosen."""
    rows = Findings.read(RESULTS / study).sizes(variant, "banks")[SIZE]
    first = [stored_shapes(row["probes"]["banks"])[0].trained for row in rows]
    return {lag: [height(bank, lag) for bank in first] for lag in LAGS}


def main() -> None:
    """Write heights.json and heights.md."""
    found = {
        variant: {text: heights(study, variant) for study, text in TEXTS.items()}
        for variant in ("gpa", "gpa-rope")
    }
    columns = [f"{which}, lag {lag}" for lag in LAGS for which in ("mean of heads", "highest head")]
    lines = [f"| bank | text | {' | '.join(columns)} |", "|---|---|" + "---:|" * len(columns)]
    for variant, texts in found.items():
        for text, at in texts.items():
            values = [[float(of(heads)) for heads in at[lag]] for lag in LAGS for of in (np.mean, np.max)]
            shown = " | ".join(signed(mean_with_interval(each)) for each in values)
            lines.append(f"| `{variant}` | {text} | {shown} |")
    folder = RESULTS / "wrapped"
    write_file(folder / "heights.json", json.dumps(found, indent=1) + "\n")
    write_file(folder / "heights.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
