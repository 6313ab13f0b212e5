"""Recipes: what is read is what was written; what cannot be used is refused with its key and the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nadaraya.errors import InputError
from nadaraya.models import KernelGPTConfig
from nadaraya.training import ImageRecipe, Recipe, Run, built_in_recipes, load_recipe
from nadaraya.training.recipe import read_mapping, recipe_help, recipe_schema
from nadaraya.training.text_recipe import ModelRecipe, TrainingRecipe


@pytest.mark.parametrize("name", built_in_recipes())
def test_built_in_recipes_survive_writing_and_reading(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert type(recipe).from_mapping(yaml.safe_load(recipe.to_yaml())) == recipe
    (tmp_path / "config.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "config.yaml") == recipe
    model = "rope" if recipe.task == "text" else "gka_tiny_patch16_224"
    model = "gpa-spread" if name == "recommended" else model
    assert recipe.name == f"{name}-{model}"


def test_the_task_chooses_the_recipe_and_is_text_where_a_file_names_none(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("training: {steps: 30}\n")
    assert isinstance(load_recipe(path), Recipe)
    assert isinstance(load_recipe(path, ["task=image", "training={epochs: 30}"]), ImageRecipe)
    with pytest.raises(InputError, match="did you mean 'image'"):
        load_recipe(path, ["task=imgae"])


def test_byte_pairs_alone_have_a_vocabulary_to_choose() -> None:
    chosen = load_recipe("demo", ["data.tokenizer=bpe", "data.vocabulary=256"])
    assert isinstance(chosen, Recipe)
    assert chosen.data.vocabulary == 256
    for overrides, message in (
        (
            ["data.tokenizer=characters", "data.vocabulary=500"],
            "must be null where data.tokenizer is characters .* got 500",
        ),
        (["data.tokenizer=bytes", "data.vocabulary=500"], "where data.tokenizer is bytes"),
        (
            ["data.tokenizer=bpe", "data.vocabulary=255"],
            "vocabulary must be at least 256 or null, got 255",
        ),
        (["data.tokenizer=byte"], "data.tokenizer must be 'characters', 'bytes' or 'bpe', got 'byte'"),
        (["data.vocabulry=500"], "did you mean 'data.vocabulary'"),
    ):
        with pytest.raises(InputError, match=message):
            load_recipe("demo", overrides)


def test_dickens_is_the_model_of_the_papers() -> None:
    recipe = load_recipe("dickens")
    assert (recipe.model.num_hidden_layers, recipe.model.num_attention_heads, recipe.model.hidden_size) == (
        4,
        4,
        512,
    )
    assert (recipe.data.context, recipe.training.batch_size, recipe.training.steps) == (256, 256, 200_000)


def test_overrides_are_yaml_and_the_last_one_wins() -> None:
    recipe = load_recipe(
        "demo",
        [
            "training.steps=7",
            "training.steps=30",
            "training.learning_rate=1e-3",
            "model.variant=[rope, gpa-mul]",
            "model.variant_options.num_terms=4",
            "training.clip=null",
            "training.betas=[0.8, 0.99]",
        ],
    )
    assert recipe.training.steps == 30
    assert recipe.training.learning_rate == 1e-3
    assert recipe.model.variant == ["rope", "gpa-mul"]
    assert recipe.model.variant_options == {"num_terms": 4}
    assert recipe.training.clip is None
    assert recipe.training.betas == (0.8, 0.99)
    assert recipe.name == "demo-rope+gpa-mul"


def test_a_file_is_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: chosen\nmodel:\ntraining: {steps: 30}\n")
    recipe = load_recipe(path)
    assert (recipe.name, recipe.training.steps, recipe.model) == ("chosen", 30, ModelRecipe())


def test_tokens_of_a_batch_are_windows_of_the_context(tmp_path: Path) -> None:
    recipe = load_recipe("demo", ["training.batch_tokens=4096", "data.context=128"])
    assert isinstance(recipe, Recipe)
    assert (recipe.training.batch_size, recipe.training.batch_tokens) == (32, 4096)
    assert Recipe.from_mapping(yaml.safe_load(recipe.to_yaml())) == recipe
    assert Recipe(training=TrainingRecipe(batch_tokens=512)).training.batch_size == 2
    assert recipe.first_conflict(load_recipe("demo", ["data.context=128", "training.batch_size=32"])) is None
    for overrides, message in (
        (["training.batch_tokens=1000"], r"batch_tokens must be a multiple of data\.context = 256, got 1000"),
        (["training.batch_tokens=many"], r"batch_tokens must be an integer or null, got 'many'"),
        (
            ["training.batch_tokens=1280", "training.micro_batch_size=2"],
            r"batch_tokens / data\.context must be a multiple of training\.micro_batch_size = 2, got 5",
        ),
    ):
        with pytest.raises(InputError, match=message):
            load_recipe("demo", overrides)


def test_accumulation_follows_from_the_windows_that_a_process_computes_at_a_time() -> None:
    training = TrainingRecipe(batch_size=24, micro_batch_size=2)
    assert [training.pieces(count) for count in (1, 2, 3, 4)] == [12, 6, 4, 3]
    assert TrainingRecipe(batch_size=24, gradient_accumulation=2).pieces(4) == 2
    with pytest.raises(InputError, match=r"a multiple of 5 processes × training\.micro_batch_size = 2"):
        training.pieces(5)
    with pytest.raises(InputError, match=r"gradient_accumulation must be 1 where .*micro_batch_size"):
        TrainingRecipe(batch_size=24, micro_batch_size=2, gradient_accumulation=2)


def test_what_a_run_that_goes_on_may_change_is_no_conflict() -> None:
    recipe = load_recipe("demo")
    steps = recipe.training.steps
    assert recipe.first_conflict(load_recipe("demo")) is None
    for change in ("training.log_every=7", "training.compile=true", f"training.steps={steps + 1}"):
        assert recipe.first_conflict(load_recipe("demo", [change])) is None
    shorter = load_recipe("demo", [f"training.steps={steps - 1}"])
    assert recipe.first_conflict(shorter) == ("training.steps", steps, steps - 1)
    other = load_recipe("demo", ["training.batch_size=8"])
    assert recipe.first_conflict(other) == ("training.batch_size", 16, 8)
    images = {how: load_recipe("cifar-cpu", [f"data.corrupt={how}"]) for how in ("fatal", "skip")}
    assert images["fatal"].first_conflict(images["skip"]) is None
    assert images["skip"].first_conflict(images["fatal"]) == ("data.corrupt", "skip", "fatal")


@pytest.mark.parametrize("key", recipe_help())
def test_a_misspelt_key_is_refused_with_the_nearest(key: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{key}'"):
        load_recipe("demo", [f"{key}z=1"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps=0", "recipe key training.steps must be greater than 0, got 0"),
        ("training.steps=1.5", "training.steps must be an integer, got 1.5"),
        ("training.steps=true", "must be an integer, got True"),
        ("training.steps=many", "must be an integer, got 'many'"),
        ("training.steps", "override must be KEY=VALUE"),
        ("data.corpus=Book #1.txt", "override must be without a YAML comment"),
        ("training.learning_rate=-1", "greater than 0"),
        ("training.learning_rate=.nan", "a finite number"),
        ("training.learning_rate=true", "a number"),
        ("training.learning_rate=fast", "a number"),
        ("training.min_learning_rate=1", "at most training.learning_rate = 0.002, got 1"),
        ("training.clip=0", "greater than 0 or null"),
        ("training.betas=[0.9]", "training.betas must be a list of two numbers"),
        ("training.betas=[0.9, 1.0]", "training.betas[1] must be less than 1, got 1.0"),
        ("training.precision=float16", "'auto', 'float32' or 'bfloat16'"),
        ("training.compile=3", "true or false or 'default', "),
        ("training.tracker=tensorbord", "'tensorboard', 'wandb' or 'trackio' or null"),
        ("training.gradient_accumulation=3", "a multiple of training.gradient_accumulation = 3, got 16"),
        ("training.warmup_steps=601", "training.warmup_steps must be at most training.steps = 150, got 601"),
        ("data.validation_fraction=1", "less than 1"),
        ("data.context=1", "at least 2"),
        ("model.variant=3", "text or a list"),
        ("model.dropout=1", "less than 1"),
        ("seed=-1", "at least 0"),
        ("name=../elsewhere", "letters, digits"),
        ("model=3", "recipe key model must be a section of keys, got 3"),
        ("1=2", "got '1'"),
        ("model.variant=[", "not plain YAML"),
        ("seed=4294967296", "seed must be less than 4294967296"),
        ("training.learning_rate=1e300", "training.learning_rate must be less than or equal to 1e+37"),
        (f"training.learning_rate=1{'0' * 400}", "a finite number"),
        (f"training.steps={'9' * 5000}", "more than 1000 digits"),
        (f"task=0x{'f' * 6000}", "more than 1000 digits"),
        ("training.steps=2020-13-45", "must be an integer, got '2020-13-45'"),
        ("training.steps=1:30", "must be an integer, got '1:30'"),
        ("training.steps=0200", "must be an integer, got '0200'"),
        ("training.steps=!!int 3", "it has the tag !!int"),
        ("training.betas=&x [*x, *x]", "it refers to *x"),
        (f"model.extra={'[' * 5000}{']' * 5000}", "nested deeper than 20 levels"),
        (f"model.extra{'.a' * 50}=1", "at most 20 names"),
        ("model.extra={norm: rmsnorm, norm: layernorm}", "the key 'norm' is there twice"),
        ("model.extra.norm_eps=.nan", "model.extra must be made of finite numbers"),
        ("model.extra={1: 2}", "model.extra[1] must be text"),
        ("name=nul\x00", "not plain YAML"),
        (f"name={'x' * 129}", "up to 128 letters"),
        ("model.hidden_size=10000000", "less than or equal to 1048576"),
        ("model.num_hidden_layers=100000", "less than or equal to 4096"),
        ("training.sample_characters=1000000000", "less than or equal to 1000000"),
    ],
)
def test_values_out_of_range_are_refused_with_what_is_accepted(override: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        load_recipe("demo", [override])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_recipes_made_in_python_are_checked_too() -> None:
    with pytest.raises(InputError, match=r"training\.steps"):
        TrainingRecipe(steps=-1)
    with pytest.raises(InputError, match=r"training\.steps must be greater than 0"):
        Recipe(training={"steps": -1})
    with pytest.raises(ValueError, match="frozen"):
        TrainingRecipe().steps = 3  # type: ignore[misc]


def test_the_schema_for_editors_has_every_key_with_its_meaning() -> None:
    definitions = recipe_schema()["$defs"]
    for task, name in (("text", "Recipe"), ("image", "ImageRecipe")):
        keys = set()
        for key, value in definitions[name]["properties"].items():
            section = definitions.get(value.get("$ref", "").rpartition("/")[2])
            fields = section["properties"] if section else {key: value}
            keys |= {f"{key}.{part}" if section else part for part in fields}
            assert all(field["description"] for field in fields.values())
        assert keys == {"extends", "format", *recipe_help(task)}
    assert definitions["TrainingRecipe"]["properties"]["steps"]["exclusiveMinimum"] == 0
    assert definitions["Recipe"]["additionalProperties"] is False


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    path = tmp_path / "evil.yaml"
    path.write_text(f"name: !!python/object/apply:os.system ['touch {trace}']\n")
    with pytest.raises(InputError, match="not plain YAML"):
        load_recipe(path)
    with pytest.raises(InputError, match="not plain YAML"):
        load_recipe("demo", [f"name=!!python/object/apply:os.system ['touch {trace}']"])
    assert not trace.exists()


@pytest.mark.parametrize("source", ["dem", "absent.yaml"])
def test_a_recipe_that_is_not_there_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=source):
        load_recipe(source)


@pytest.mark.parametrize("content", [b"- a\n- b\n", b"just words\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_recipe(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__variant": "gpa-mull"}, "did you mean 'gpa-mul'"),
        ({"model__variant_options": {"num_term": 2}}, "num_term"),
        ({"model__num_attention_heads": 3}, "a multiple of model.num_attention_heads = 3, got 32"),
        ({"model__extra": {"nrom": "rmsnorm"}}, "did you mean 'norm'"),
        ({"model__extra": {"hidden_size": 64}}, "hidden_size"),
        ({"model__extra": {"norm": 3}}, "norm"),
        ({"model__extra": {"dtype": "int8"}}, "key in model.extra must be one of"),
        ({"model__extra": {"id2label": 3}}, "got 'id2label'"),
        ({"model__extra": {"is_encoder_decoder": True}}, "got 'is_encoder_decoder'"),
        ({"model__extra": {"pad_token_id": 10**9}}, "got 'pad_token_id'"),
        ({"model__variant_options": {"num_terms": 10**12}}, "num_terms must be at most 1,048,576, got"),
        ({"model__variant_options": {"num_terms": [1]}}, "num_terms"),
        ({"model__hidden_size": 2**20}, "GB of memory, this machine has"),
        ({"training__batch_size": 10**11}, "reduce model.hidden_size"),
        ({"data__context": 2 * 10**9}, "windows of 2,000,000,000 tokens"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(
    tiny_recipe: Callable[..., Recipe], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        tiny_recipe(**changes).build_model(10)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_extra_reaches_the_model(tiny_recipe: Callable[..., Recipe]) -> None:
    config = tiny_recipe(model__extra={"norm": "rmsnorm", "tie_word_embeddings": True}).build_model(10).config
    assert (config.norm, config.tie_word_embeddings, config.vocab_size) == ("rmsnorm", True, 10)
    assert config.max_position_embeddings == 16


@pytest.mark.parametrize("layers", [3, 12, 13])
def test_what_cannot_fit_in_memory_is_refused_before_it_is_allocated(
    tiny_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    shared = {"share": "layers"} if layers == 13 else {}
    variants = ["gpa-mul", "gpa-mul-xsa"] if shared else ["rope", "gpa-mul"]
    recipe = tiny_recipe(
        model__num_hidden_layers=layers, model__variant=variants, model__variant_options=shared
    )
    counted = sum(parameter.numel() for parameter in recipe.build_model(10).parameters())
    monkeypatch.setattr("nadaraya.device.machine_memory", lambda device: 16 * counted)
    with pytest.raises(InputError, match=f"training of {counted:,} parameters in batches of 4 windows"):
        recipe.build_model(10)


def test_flat_keys_of_a_file_are_put_into_their_sections(tmp_path: Path) -> None:
    path = tmp_path / "flat.yaml"
    path.write_text("model.variant: gpa\nmodel: {hidden_size: 64}\nmodel.extra.norm: rmsnorm\n")
    model = load_recipe(path).model
    assert (model.variant, model.hidden_size, model.extra) == ("gpa", 64, {"norm": "rmsnorm"})
    path.write_text("model.variant: gpa\nmodel: {variant: rope}\n")
    with pytest.raises(InputError, match=r"the key model.variant twice"):
        load_recipe(path)


def test_a_hybrid_of_many_names_has_a_short_name_and_seeds_have_names_of_their_own() -> None:
    many = [load_recipe("demo", [f"model.variant=[{', '.join(32 * [v])}]"]).name for v in ("gpa-mul", "rope")]
    assert many[0] != many[1]
    assert all(len(name) <= 128 and name.startswith("demo-") for name in many)
    assert load_recipe("demo", ["seed=1"]).name == "demo-rope-seed1"


def test_a_file_that_cannot_be_a_recipe_is_refused_unread(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text(" " * (2**20 + 1))
    for source, words in (
        (large, "at most 1 MiB"),
        ("x" * 5000, "is no path"),
        ("/dev/zero", "recipe"),
    ):
        with pytest.raises(InputError, match=words):
            load_recipe(source)


@pytest.mark.parametrize(
    ("source", "key", "meant"),
    [
        ("demo", "text", "data.corpus"),
        ("demo", "data.path", "data.corpus"),
        ("deit", "path", "data.source"),
        ("demo", "lr", "training.learning_rate"),
        ("demo", "training.lr", "training.learning_rate"),
        ("demo", "layers", "model.num_hidden_layers"),
        ("demo", "model.heads", "model.num_attention_heads"),
        ("demo", "width", "model.hidden_size"),
        ("demo", "epochs", "training.steps"),
        ("deit", "steps", "training.epochs"),
        ("demo", "batch", "training.batch_size"),
        ("demo", "variant", "model.variant"),
        ("demo", "varient", "model.variant"),
        ("demo", "training.corpus", "data.corpus"),
    ],
)
def test_keys_are_known_by_their_meaning_and_without_their_section(source: str, key: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean '{meant}'\?") as refused:
        load_recipe(source, [f"{key}=1"])
    assert "`nadaraya train --keys" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("variant", "options", "now"),
    [
        ("gpa", {}, "gpa-paper"),
        ("gpa-loo-rope", {"num_terms": 3}, "gpa-rope-paper-loo"),
        (["gpa-mul", "gpa-rope"], {}, ["gpa-mul", "gpa-rope-paper"]),
        ("gpa-rope", {"init": "unit"}, "gpa-rope"),
        ("gpa-rope-paper", {}, "gpa-rope-paper"),
        ("rope", {}, "rope"),
    ],
)
def test_recipes_of_before_there_was_a_format_mean_what_they_meant(
    variant: str | list[str], options: dict[str, Any], now: str | list[str], tmp_path: Path
) -> None:
    """When `gpa` and `gpa-rope` had the paper's start."""
    made = Recipe(model={"variant": variant, "variant_options": options})
    assert read_mapping(made.to_mapping()) == made
    kept = {key: value for key, value in made.to_mapping().items() if key != "format"}
    assert read_mapping(kept).model.variant == now
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(kept))
    assert load_recipe(tmp_path).model.variant == load_recipe(tmp_path / "config.yaml").model.variant == now
    # What is said now means what it means now.
    assert load_recipe(tmp_path, ["model.variant=gpa-rope"]).model.variant == "gpa-rope"
    (tmp_path / "more.yaml").write_text("extends: config.yaml\nmodel.variant: gpa\n")
    assert load_recipe(tmp_path / "more.yaml").model.variant == "gpa"
    with pytest.raises(InputError, match="format must be 2, or left out, got 3"):
        read_mapping({**made.to_mapping(), "format": 3})


def test_a_recipe_extends_another_section_by_section(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "one.yaml").write_text("extends: demo\nname: one\nmodel: {variant: gpa}\nseed: 3\n")
    (tmp_path / "two.yaml").write_text(
        "extends: base/one.yaml\nmodel.hidden_size: 64\ntraining: {steps: 5}\n"
    )
    two, demo = load_recipe(tmp_path / "two.yaml", ["training.warmup_steps=0"]), load_recipe("demo")
    assert (two.model.variant, two.model.hidden_size, two.training.steps, two.seed) == ("gpa", 64, 5, 3)
    assert two.training.learning_rate == demo.training.learning_rate
    assert two.name == "two-gpa-seed3"


def test_a_recipe_that_extends_itself_or_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    (tmp_path / "c.yaml").write_text("extends: [a]\n")
    (tmp_path / "d.yaml").write_text("extends: absent.yaml\n")
    for name, words in (("a", "extends itself"), ("c", "extends in .* must be"), ("d", "absent.yaml")):
        with pytest.raises(InputError, match=words):
            load_recipe(tmp_path / f"{name}.yaml")


def test_a_run_folder_is_its_recipe(finished_text_run: Path, tmp_path: Path) -> None:
    assert load_recipe(finished_text_run) == Recipe.from_mapping(
        yaml.safe_load((finished_text_run / "config.yaml").read_text())
    )
    with pytest.raises(InputError, match=r"not a run folder: it has no config\.yaml"):
        load_recipe(tmp_path)


@pytest.mark.parametrize("task", ["text", "image"])
def test_every_key_has_its_default_and_meaning(task: str) -> None:
    assert all(meaning for _, meaning in recipe_help(task).values())


def test_a_run_whose_recipe_is_cut_off_is_damaged(finished_text_run: Path, tmp_path: Path) -> None:
    text = (finished_text_run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text[: text.index("steps:") + len("steps:")])
    with pytest.raises(InputError, match="is damaged: its end is missing"):
        Run(tmp_path)


def test_a_preset_is_its_model_and_what_is_given_beside_it() -> None:
    changes = ["data.context=64", "training.batch_tokens=128", "training.micro_batch_size=1"]
    recipe = load_recipe("nano", ["model.preset=nano-d2-gka", "model.extra.logit_cap=9.0", *changes])
    assert isinstance(recipe, Recipe)
    config = recipe.build_model(50).config
    expected = KernelGPTConfig.preset("nano-d2-gka", vocab_size=50, max_position_embeddings=64, logit_cap=9.0)
    assert config.to_dict() == expected.to_dict()
    assert Recipe.from_mapping(yaml.safe_load(recipe.to_yaml())) == recipe
    for override, message in (
        ("model.hidden_size=64", "model.hidden_size must be 128, that of the preset nano-d2-gka"),
        ("model.preset=nano-dx", "depth of preset nano-dN must be a whole number"),
    ):
        with pytest.raises(InputError, match=message):
            load_recipe("nano", ["model.preset=nano-d2-gka", override, *changes])


@pytest.mark.parametrize(
    ("source", "overrides", "words"),
    [
        ("my.txt", [], "`nadaraya train demo data.corpus=my.txt`"),
        ("./texts", [], "`nadaraya train demo data.corpus=./texts`"),
        ("demo", ["my.txt"], "for example data.corpus=my.txt, got 'my.txt'"),
        ("cifar-cpu", ["texts"], "for example data.source=texts"),
        ("demo", ["model.init=unit"], "did you mean 'model.variant_options.init'"),
        ("demo", ["model.norm=rmsnorm"], "did you mean 'model.extra.norm'"),
        ("demo", ["training.device=cpu"], "`nadaraya train --device` chooses the device"),
    ],
)
def test_mistakes_are_told_what_was_meant(
    source: str, overrides: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("a text " * 300_000)
    Path("texts").mkdir()
    with pytest.raises(InputError) as caught:
        load_recipe(source, overrides)
    assert words in str(caught.value)
