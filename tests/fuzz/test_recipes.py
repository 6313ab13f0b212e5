"""Thousands of recipes that are wrong in one way or several: a model, or one line that says why not."""

import json
import random
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from fuzz.damage import CONTENTS, OTHERS
from fuzz.hostile import NUMBERS, STRUCTURES, YAML

from nadaraya.errors import InputError
from nadaraya.training import ImageRecipe, Recipe, load_recipe
from nadaraya.training.recipe import recipe_help

pytestmark = pytest.mark.slow
SMALL = {
    "text": ["model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2",
        "data.context=16"],
    "image": ["model.options={patch_size: 8, embed_dim: 16, depth: 2, num_heads: 2}", "model.image_size=16"],
}  # fmt: skip
FILES = {"text": "demo", "image": "cifar-cpu"}
NAMES = {
    "model.variant": ("rope", "gpa", "gpa-mul", "decay", "gka", "gka-loo", "gka-loo-bank", "vlt", "t5",
        "kerple", "rope-norm", "mixed-bank", "gka-bank", "kv-shared", "qkv-shared", "fox", "inkling", "fire",
        "rope-xsa", "fox-loo", "kernel"),
    "model.variant_options": ("num_terms", "init", "rotary_base", "rotary", "values", "eps", "num_buckets",
        "form", "bias", "num_profiles", "extent", "hidden", "threshold", "head_norm",
        "expression", "how"),
    "model.extra": (
        "norm", "hidden_act", "num_key_value_heads", "intermediate_size", "window_pattern",
        "sliding_window", "bias",
        "tie_word_embeddings", "head_norm", "short_convolution", "value_embeddings", "output_gate",
        "prune_tol", "initializer_range", "norm_eps", "use_cache", "dtype", "id2label",
        "is_encoder_decoder", "pad_token_id", "layer_types", "torchscript", "vocab_size", "architectures",
    ),
    "model.options": (
        "variant", "pattern", "depth", "embed_dim", "num_heads", "patch_size", "mlp_ratio", "reg_tokens",
        "qkv_bias",
        "class_token", "global_pool", "grid_kernel", "img_size", "pretrained", "num_classes", "act_layer",
        "drop_rate",
    ),
    "data.rand_augment": (
        "rand-m9", "rand-m99-n2", "rand-m-1", "rand-mx", "rand", "rand-", "augmix-m5-w4-d2", "original", "v0",
        "originalr", "3a", "rand-m9-n0", "rand-m9-n99", "rand-m9-mstdinf", "rand-m9-minc", "rand-x9",
        "rand-w0",
    ),
    "data.interpolation": ("bicubic", "random", "bilinear", "nope", "lanczos"),
    "model.name": ("resnet10t", "deit_tiny_patch16_224", "vlt_tiny_patch16_224", "hf-hub:a/b", "swin_tiny",
        "gka"),
}  # fmt: skip


def _built(source: str | Path, overrides: list[str]) -> str:
    """What a recipe comes to: "built", or "refused" in a proper line; anything else fails."""
    try:
        recipe = load_recipe(source, overrides)
        again = type(recipe).from_mapping(recipe.to_mapping())
        assert again == recipe
        assert len(recipe.name.encode()) <= 255
        if isinstance(recipe, Recipe):
            recipe.build_model(50)
        else:
            assert isinstance(recipe, ImageRecipe)
            _augment(recipe)
            recipe.build_model(4, 3)
    except InputError as refused:
        line = str(refused)
        assert line
        assert "\n" not in line
        assert len(line) < 1200, line
        return "refused"
    return "built"


def _augment(recipe: ImageRecipe) -> None:
    from PIL import Image

    from nadaraya.data.images.transforms import TrainingTransform, evaluation_transform

    small = recipe.model_copy(update={"model": recipe.model.model_copy(update={"image_size": 16})})
    image = Image.new("RGB", (20, 20), (10, 20, 30))
    random.seed(0)
    for transform in (TrainingTransform(small.augmentation(), 3), evaluation_transform(small.augmentation())):
        assert transform(image).isfinite().all()


@pytest.fixture(autouse=True)
def a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built is small, whatever the machine."""
    monkeypatch.setattr("nadaraya.device.machine_memory", lambda device="cpu": 200_000_000)
    torch.set_num_threads(1)


@pytest.mark.parametrize("task", ["text", "image"])
def test_every_key_with_every_hostile_value(task: str) -> None:
    """Each key of a recipe takes each value."""
    if task == "image":
        pytest.importorskip("timm")
    counts: Counter[str] = Counter()
    for key in recipe_help(task):
        for value in YAML[:: 1 if key in NAMES else 3]:
            counts[_tried(FILES[task], [*SMALL[task], f"{key}={value}"])] += 1
    print(task, dict(counts))
    assert sum(counts.values()) > 900
    assert counts["built"] > 60
    assert counts["refused"] > 400


@pytest.mark.parametrize("task", ["text", "image"])
def test_options_of_models_and_augmentations(task: str) -> None:
    """What is handed on to models and augmentations, in every name that they have."""
    if task == "image":
        pytest.importorskip("timm")
    draw, counts = random.Random(1), Counter()  # type: ignore[var-annotated]
    for key in set(recipe_help(task)) & set(NAMES):
        for name in NAMES[key]:
            if key in ("model.variant_options", "model.extra", "model.options"):
                few = draw.sample(YAML, 12) + draw.sample(NUMBERS, 6)
                variants = NAMES["model.variant"] if task == "text" else ("gka", "vlt")
                given = [
                    [f"{key}.{name}={value}"]
                    + ([f"model.variant={draw.choice(variants)}"] if task == "text" else [])
                    for value in few
                ]
            else:
                given = [[f"{key}={name}"]]
            for overrides in given:
                counts[_tried(FILES[task], [*SMALL[task], *overrides])] += 1
    print(task, dict(counts))
    assert counts["refused"] > 50


@pytest.mark.parametrize("seed", range(4))
def test_files_with_characters_replaced_inserted_and_lines_swapped(seed: int, tmp_path: Path) -> None:
    """The text of a recipe, damaged: what YAML makes of it, or one line."""
    draw, counts = random.Random(seed), Counter()  # type: ignore[var-annotated]
    original = load_recipe("demo", SMALL["text"]).to_yaml()
    path = tmp_path / "recipe.yaml"
    for _ in range(250):
        content = original.encode()
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(content))
            kind = draw.randrange(5)
            if kind == 0:
                content = content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
            elif kind == 1:
                piece = draw.choice([*YAML, *"0123456789:-#.,"]).encode(errors="surrogateescape")
                content = content[:place] + piece + content[place:]
            elif kind == 2:
                content = content[:place] + content[place + draw.randint(1, 40) :]
            elif kind == 3:
                lines = content.split(b"\n")
                first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
                lines[first], lines[second] = lines[second], lines[first]
                content = b"\n".join(lines)
            else:
                content = content.replace(b"  ", draw.choice([b"", b"\t", b"   ", b"- "]), draw.randint(1, 3))
            content = content or b" "
        path.write_bytes(content)
        counts[_tried(path, [])] += 1
    print(seed, dict(counts))
    assert counts["refused"] > 100
    assert counts["built"] > 0


def test_files_of_hostile_yaml(tmp_path: Path) -> None:
    """Aliases, depth and other types, as a whole file, as a section, under a key and under a dotted one."""
    counts: Counter[str] = Counter()
    doubled = (f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))
    laughs = "\n".join(["a0: &a0 [x, x]", *doubled])
    depths = [f"{'- ' * depth}a" for depth in (5, 25, 5000)] + [
        "\n".join(f"{' ' * level}a:" for level in range(depth)) for depth in (5, 25, 900)
    ]
    path = tmp_path / "recipe.yaml"
    for value in (*STRUCTURES, laughs, *depths):
        inside = "\n".join(f"  {line}" for line in value.split("\n"))
        for text in (
            value,
            f"model:\n{inside}",
            f"extends:\n{inside}",
            f"training:\n  betas:\n  {inside}",
            f"model.extra.norm: {value}",
            f"? {value}\n: 1",
            f"task: {value}\n",
            f"format: {value}",
        ):
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
            counts[_tried(path, [])] += 1
    for content in CONTENTS:
        path.write_bytes(content)
        counts[_tried(path, [])] += 1
    print(dict(counts))
    assert counts["refused"] > 300


@pytest.mark.parametrize("seed", range(2))
def test_chains_of_recipes_that_extend_each_other(seed: int, tmp_path: Path) -> None:
    """Long ones, circles, and those with a damaged recipe, a folder or no recipe at all in them."""
    draw, counts = random.Random(seed), Counter()  # type: ignore[var-annotated]
    (tmp_path / "folder").mkdir()
    (tmp_path / "damaged.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "circle.yaml").symlink_to("0.yaml")
    odd = [
        "demo",
        "deit",
        "folder",
        "damaged.yaml",
        "circle.yaml",
        "absent",
        "/dev/zero",
        "",
        ".",
        "~",
        "a\0b",
    ]
    for _ in range(60):
        length = draw.choice([1, 2, 5, 19, 20, 21, 22, 50])
        for number in range(length):
            following = f"{number + 1}.yaml" if number + 1 < length else draw.choice([*odd, "0.yaml"])
            base = following if draw.random() < 0.97 else draw.choice([*odd, *OTHERS])
            given = {"extends": base, "seed": number, "model": draw.choice([None, {"hidden_size": 32}, 3])}
            (tmp_path / f"{number}.yaml").write_text(json.dumps(given))
        counts[_tried(tmp_path / "0.yaml", [])] += 1
    print(seed, dict(counts))
    assert counts["refused"] > 20


def _tried(source: str | Path, overrides: list[str]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _built(source, overrides)
    except Exception as fault:
        content = Path(source).read_bytes()[:2000] if isinstance(source, Path) else ""
        shown = [text if len(text) < 200 else f"{text[:200]} …" for text in overrides]
        raise AssertionError(
            f"{source} {shown} {content!r}: {type(fault).__name__}: {fault}"[:3000]
        ) from fault
