"""Tables of docs/results/regression.md and docs/results/vision.md."""

from statistics import mean

from pages_format import EPYC, RESULTS, Tables, code, read, table

REGRESSION = RESULTS / "regression"
SETS = ("motorcycle", "co2", "housing-200", "housing-2000")
METHODS = {
    "NadarayaWatson, default settings": "default settings",
    "NadarayaWatson, loo": '`bandwidth="loo"`',
    "NadarayaWatson, local linear, loo": "and `degree=1`",
    "MultiHeadKernelRegression, a tenth held out": "`MultiHeadKernelRegression`, a tenth held out",
    "KNeighborsRegressor": "KNeighborsRegressor",
    "KernelRidge": "KernelRidge",
    "GaussianProcessRegressor": "GaussianProcessRegressor",
    "statsmodels, local constant": "statsmodels, local constant",
    "statsmodels, local linear": "statsmodels, local linear",
    "NadarayaWatson, local linear, periodic": "`degree=1`, kernel with the period",
    "GaussianProcessRegressor, periodic": "the same, GaussianProcessRegressor",
}
BANDS = {"curve pointwise": "pointwise", "curve bootstrap": "bootstrap", "curve simultaneous": "simultaneous"}
RATE = "images_per_second"
FORMS = (
    "softmax-grid", "gka-loo-grid-channel-shift", "vlt", "deit", "hybrid-loo-grid", "gka-loo-grid", "gka-loo",
    "gka",
)  # fmt: skip


def accuracy() -> str:
    """Root mean square errors of cross-validation, the least of each set in bold."""
    studies = read(REGRESSION / "results.json")["studies"]
    errors = {
        name: {method: mean(row["rmse"]) for method, row in studies[name]["methods"].items() if "rmse" in row}
        for name in SETS
    }
    rows = []
    for method, label in METHODS.items():
        cells = [_error(errors[name].get(method), min(errors[name].values())) for name in SETS]
        rows.append([label, *cells])
    about = [f"{name.split('-')[0]}, n {studies[name]['train']:,}, d {studies[name]['d']}" for name in SETS]
    return table(["RMSE", *about], rows)


def _error(value: float | None, best: float) -> str:
    if value is None:
        return ""
    shown = f"{value:#.4g}".rstrip(".")
    return f"**{shown}**" if value == best else shown


def prediction() -> str:
    """Prediction at many points against KeOps and PyTorch, seconds."""
    cases = read(EPYC / "regression_prediction.json")["prediction"]
    names = list(next(iter(cases.values()))["time_ms"])
    rows = [
        [case.split("d 3, ")[1], *(f"{each['time_ms'][name]['median'] / 1000:.1f}" for name in names)]
        for case, each in cases.items()
    ]
    return table(["100,000 queries, 100,000 points, d 3", *names], rows)


def bandwidths() -> str:
    """How often the search finds a criterion close to the best of 24 descents, and at what cost."""
    found = read(REGRESSION / "bandwidth_search.json")["criteria"]
    rows = []
    for name, label in {"loo": "leave-one-out", "aic": "corrected AIC"}.items():
        ours, theirs = (found[name]["summary"]["all"][who] for who in ("NadarayaWatson", "three descents"))
        shares = [f"{100 * each['within 0.02']:.1f} %" for each in (ours, theirs)]
        rows.append([label, *shares, f"{ours['seconds'] / theirs['seconds']:.1f}×"])
    return table(["criterion", "NadarayaWatson", "three descents", "time of three descents"], rows)


def coverage() -> str:
    """How often bands of 95 % hold the curve, the least and the most over noises and degrees."""
    cells = [
        cell
        for name in ("band-coverage", "band-coverage-1000", "band-coverage-skewed")
        for cell in read(REGRESSION / f"{name}.json")["cells"]
    ]
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for cell in cells:
        noise = "skewed" if cell["noise"] == "skewed" else "constant or growing"
        groups.setdefault((f"{cell['n']:,}", noise), []).append(cell["mean"])
    rows = []
    for (n, noise), means in groups.items():
        ends = [[f"{100 * of(each[band] for each in means):.1f}" for of in (min, max)] for band in BANDS]
        rows.append([n, noise, *("–".join(dict.fromkeys(each)) for each in ends)])
    return table(["n", "noise", *(f"{label}, %" for label in BANDS.values())], rows, left=2)


def vit() -> str:
    """Throughput and memory of GKA against DeiT."""
    rows = [row for row in read(EPYC / "vit.json")["rows"] if row["mode"] != "peak"]
    shown = []
    for base, ours in zip(rows[::2], rows[1::2], strict=True):
        what = f"{base['model'].split('_')[1]}, {base['mode']}, batch {base['batch']}"
        speeds = [f"{row[RATE]:.1f} ({row['low']:.1f}–{row['high']:.1f})" for row in (base, ours)]
        memory = f"{ours['memory_mib'] / base['memory_mib']:.2f}×"
        shown.append([what, *speeds, f"{ours['speed_ratio']:.2f}×", memory])
    return table(["", "DeiT, images/s", "GKA, images/s", "throughput", "memory"], shown)


def _forms(folder: str) -> list[list[str]]:
    found = read(RESULTS / folder / "results.json")
    rows = []
    for form in [form for form in FORMS if form in found["summary"]]:
        runs = [row for row in found["runs"] if row["form"] == form]
        each = found["summary"][form]
        seeds = ", ".join(f"{100 * row['ema_top1']:.2f}" for row in runs)
        counts = [f"{each['parameters'] / 1000:.0f} k", f"{each['flops_per_image'] / 1e6:.1f}"]
        rows.append([code(form), f"{100 * mean(row['ema_top1'] for row in runs):.2f}", seeds, *counts])
    return rows


def cifar() -> str:
    """Forms of attention on CIFAR-10."""
    header = ["form", "top-1, %", "seeds", "parameters", "MFLOPs/image"]
    return table(header, _forms("vision-cifar10"))


TABLES: Tables = {
    "accuracy": accuracy,
    "prediction": prediction,
    "bandwidths": bandwidths,
    "coverage": coverage,
    "vit": vit,
    "cifar": cifar,
}
