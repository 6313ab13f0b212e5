"""Tables of docs/results/index.md and docs/findings.md."""

from pages_format import EPYC, XEON, Tables, code, difference, read, spread, table
from pages_language import change, changes, compute, found, gap, largest
from pages_related import text_losses
from pages_speed import SHAPES, STOCK, median, step_times
from pages_trained import STUDENTS

from nadaraya.study.statistics import mean_with_interval

BEST = "mul-loo-spread-gate-conv"
PAGES = {
    "speed.md": "Speed",
    "language-models.md": "Language models",
    "papers.md": "Papers",
    "related.md": "Related systems",
    "trained-models.md": "Trained models",
    "regression.md": "Regression",
    "vision.md": "Vision",
    "../development/targets.md": "Targets",
}
LATE = ("u3000", "u10000")


def index() -> str:
    """Questions, answers in a line, pages."""
    times = {name: median(row) for name, row in read(EPYC / "attention.json")["time_ms"][SHAPES[0]].items()}
    bank = times["gpa, with the gradient of the bank"]
    steps = [100 * (median(each["gpa-rope"]) / median(each["rope"]) - 1) for each in step_times()]
    vision = [row["speed_ratio"] for row in read(EPYC / "vit.json")["rows"] if row["model"].startswith("gka")]
    select = read(XEON / "regression_selection.json")["selection"]["time_ms"]
    ratio = median(select["statsmodels KernelReg, cv_ls"]) / median(select["nadaraya, 7 starts"])
    language = "language-models.md"
    saved = compute("gka-bytepairs", "gpa-rope").strip("*")
    best = gap("beyond", BEST, "u10000", "gpa-rope")
    linear = {name: spread(each) for name, each in text_losses("related-3000").items() if each}
    run = read(STUDENTS)["runs"][0]
    student = run["students"][1]  # with KL
    far = [changes("papers", variant, "u3000", 4096) for variant in ("rope", "gpa")]
    rows = [
        [
            "What does attention with a bank cost?",
            f"{bank / times[STOCK]:.2f}× PyTorch's fused attention without a bias, O(N) memory; "
            f"an N × N bias {times['gpa, SDPA with an N×N bias'] / times[STOCK]:.2f}×",
            "speed.md",
        ],
        [
            "And a training step?",
            f"`gpa-rope`: at most {max(steps):.0f} % more than RoPE",
            "speed.md",
        ],
        [
            "Does a bank save compute?",
            f"with byte pairs `gpa-rope` needs {saved} of RoPE's FLOPs, and "
            f"{largest('gpa-rope')[2]} of its seconds at width 64",
            language,
        ],
        [
            "What is lowest?",
            f"`gpa-spread` with a convolution, {best} nats/token against `gpa-rope` after 10,000 updates",
            language,
        ],
        [
            "Longer texts than in training?",
            f"at 16 × the length RoPE's loss changes by {far[0]}, a bank's by {far[1]}; "
            "a sliding window helps a rotary model as much, and recalls nothing beyond itself",
            language,
        ],
        ["Do the papers' figures come out?", "not comparable: far fewer passes", "papers.md"],
        [
            "Attention in linear time?",
            f"`linear-bank`: a state in place of a cache, {linear['linear-bank']} nats/token after "
            f"3,000 updates; `rope` {linear['rope']}, `linear` {linear['linear']}",
            "related.md",
        ],
        [
            "Another kernel in a trained model?",
            f"half of the layers as `gpa-rope`: {student['loss']:.3f} nats/character after 300 updates, "
            f"the model itself {run['teacher, tuned']:.3f}; one seed",
            "trained-models.md",
        ],
        [
            "Is kernel regression fast?",
            f"bandwidth selection {ratio:.0f}× faster than statsmodels, prediction ahead of KeOps",
            "regression.md",
        ],
        [
            "GKA for images?",
            f"{min(vision):.2f}–{max(vision):.2f}× DeiT's throughput on a CPU; less accurate as "
            "published, level with three changes",
            "vision.md",
        ],
        ["On a GPU?", "not timed yet", "../development/targets.md"],
    ]
    linked = [[question, answer, f"[{PAGES[page]}]({page})"] for question, answer, page in rows]
    return table(["question", "answer", "page"], linked, left=3)


def start() -> str:
    """A bank beside RoPE by its start."""
    rows = [
        [label, *(gap("papers", variant, size, "rope") for size in ("u300", "u1000", "u3000"))]
        for label, variant in (("G(0) = 64, the paper's", "gpa-rope-paper"), ("G(0) = 1", "gpa-rope"))
    ]
    return table(["bank beside RoPE, − `rope`", "300 updates", "1,000", "3,000"], rows)


def apart() -> str:
    """Heads that start apart, and the control without a bank."""
    rows = [
        ["`gpa-spread` with a convolution", *(gap("beyond", BEST, size, "gpa-rope") for size in LATE)],
        [
            "the same, heads start alike",
            *(gap("beyond", "mul-loo-gate-conv", size, "gpa-rope") for size in LATE),
        ],
        [
            "`rope` with all that is beside the bank",
            *(gap("beyond", "rope-loo-gate-conv", size, "gpa-rope") for size in LATE),
        ],
        ["the first row − the third", *(gap("beyond", BEST, size, "rope-loo-gate-conv") for size in LATE)],
    ]
    return table(["− `gpa-rope`", "3,000 updates", "10,000"], rows)


def length() -> str:
    """The loss at 4,096 characters minus that at 256."""
    rows = []
    for variant, label, folder in (
        ("rope", "`rope`", "papers"),
        ("gpa-rope", "`gpa-rope`", "papers"),
        (BEST, "`gpa-spread` with a convolution", "beyond"),
    ):
        runs = found(folder).sizes(variant, "lengths")["u3000"]
        rows.append([label, difference(mean_with_interval([change(row, 4096) for row in runs]), 2)])
    return table(["", "loss at 4,096 characters − at 256"], rows)


def sizes() -> str:
    """Shares of RoPE's FLOPs by character, size by size."""
    rows = [
        [code(variant), *(compute("gka-characters", variant, size) for size in ("w32", "w64"))]
        for variant in ("gka-loo-bank", "projected", "hybrid-4")
    ]
    return table(["share of `rope`'s FLOPs", "10¹² FLOPs", "10¹³"], rows)


def adding() -> str:
    """A bank and a convolution, apart and together."""
    rows = [
        [label, *(gap("controls", variant, size, "rope") for size in ("u1000", "u3000"))]
        for label, variant in (("bank", "gpa-rope"), ("convolution", "rope-conv"), ("both", "gpa-rope-conv"))
    ]
    return table(["− `rope`", "1,000 updates", "3,000"], rows)


def itself() -> str:
    """A bank that multiplies the weights, with the token itself left out or a gate."""
    rows = [
        [code(variant), compute("gka-bytepairs", variant), compute("gka-bytepairs", variant, "w64")]
        for variant in ("gpa-mul", "gpa-mul-loo", "gpa-mul-gate", "decay")
    ]
    return table(["share of `rope`'s FLOPs, byte pairs", "all sizes", "largest"], rows)


def forget() -> str:
    """Forget gates without rotations or a bank."""
    rows = [
        ["`fox-loo` with output gates", gap("beyond", "fox-loo-gate", "u3000", "rope")],
        ["`gpa-rope` with gates", gap("beyond", "gate", "u3000", "rope")],
        ["`rope` with gates", gap("beyond", "rope-gate", "u3000", "rope")],
    ]
    return table(["− `rope`, 3,000 updates", ""], rows)


def rates() -> str:
    """RoPE's loss by its learning rate at two sizes, first seed."""
    runs = [
        row
        for row in found("gka-characters").results["runs"]
        if row["variant"] == "rope" and row["seed"] == 0 and row["learning_rate"] in (0.008, 0.016, 0.032)
    ]
    by_cell = {(row["size"], row["learning_rate"]): row["loss"] for row in runs}
    rows = [
        [label, *(f"{by_cell[size, rate]:.3f}" for rate in (0.008, 0.016, 0.032))]
        for label, size in (("3 · 10¹² FLOPs", "w48"), ("10¹³", "w64"))
    ]
    return table(["`rope` at a rate of", "0.008", "0.016", "0.032"], rows)


TABLES: Tables = {
    "index": index,
    "start": start,
    "apart": apart,
    "length": length,
    "sizes": sizes,
    "adding": adding,
    "itself": itself,
    "forget": forget,
    "rates": rates,
}
