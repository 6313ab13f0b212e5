"""Results of `vit.py` as Markdown tables."""

from typing import Any

from tables import markdown


def vit_text(size: str, results: dict[str, Any]) -> str:
    """One size: a table a mode, a row a model and batch size; then what failed.

    Args:
        size: as `vit.py` calls it.
        results: what `nadaraya.evaluation.throughput.measure` gathers.

    Returns:
        Markdown.
    """
    settings = results["settings"]
    kind = f"{settings['device']}, {settings['precision']}, {'compiled' if settings['compiled'] else 'eager'}"
    parts = [f"### images, {size}: {kind}"]
    for mode in ("training", "inference"):
        rows, failures = [], []
        cells = dict(results[mode])
        if mode == "inference":
            cells["peak"] = results.get("peak", {})
        for batch, cell in cells.items():
            for name, row in cell.items():
                at = f"{batch} ({row['batch']})" if "batch" in row else batch
                if "failed" in row:
                    failures.append(f"- {mode} at {at}, {name}: {row['failed']}")
                    continue
                ratio = results["ratios"][mode].get(batch, {}).get(name, {})
                rows.append([name, at, *_cells(row, ratio)])
                if "memory_failed" in row:
                    failures.append(f"- memory of {mode} at {at}, {name}: {row['memory_failed']}")
        header = [mode, "batch", "images/s", "quartiles", "host ms", "speed", "MiB", "memory"]
        parts += [markdown(header, rows)] if rows else []
        parts += ["\n".join(dict.fromkeys(failures))] if failures else []
    return "\n\n".join(parts)


def _cells(row: dict[str, Any], ratio: dict[str, Any]) -> list[str]:
    return [
        f"{row['images_per_second']:.1f}",
        f"{row['low']:.1f}–{row['high']:.1f}",
        f"{row['host_ms']:.2f}",
        f"{ratio['speed']:.2f}×" if "speed" in ratio else "",
        f"{row['memory_mib']:.0f}" if "memory_mib" in row else "",
        f"{ratio['memory']:.2f}×" if "memory" in ratio else "",
    ]
