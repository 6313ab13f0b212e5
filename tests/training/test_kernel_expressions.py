"""A model whose kernel is an expression trains, is read back, and shows and loses its heads' kernels."""

from pathlib import Path

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.interpret import bank_shapes
from nadaraya.kernels import ComposedKernel
from nadaraya.models import KernelGPTForCausalLM
from nadaraya.models.pruning import prune_heads
from nadaraya.training import load_recipe, train
from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.optimizer import parameter_groups

TINY = [
    "model.hidden_size=16", "model.num_hidden_layers=2", "model.num_attention_heads=2", "data.context=16",
    "data.limit=9000", "training.steps=2", "training.warmup_steps=0", "training.batch_size=2",
    "training.validation_batches=1", "training.sample_characters=0", "model.variant=kernel",
]  # fmt: skip
EXPRESSION = "model.variant_options.expression=2*exponential*periodic + rq"


@pytest.mark.slow
def test_a_run_of_an_expression_is_read_back(tmp_path: Path) -> None:
    recipe = load_recipe("demo", [*TINY, EXPRESSION])
    run = train(recipe, tmp_path / "run", progress=False)
    model = run.load_model()
    kernels = [kernel for _, kernel in model.lag_kernels()]
    read = [kernel for _, kernel in run.lag_kernels()]
    start = [kernel for _, kernel in run.lag_kernels(initial=True)]
    untrained = ComposedKernel("2*exponential*periodic + rq", 2)
    for trained, again, before in zip(kernels, read, start, strict=True):
        assert trained.expression == again.expression == untrained.expression
        assert torch.equal(trained.log(torch.arange(16)), again.log(torch.arange(16)))
        assert torch.equal(before.log(torch.arange(16)), untrained.log(torch.arange(16)))
        assert not torch.equal(trained.log(torch.arange(16)), before.log(torch.arange(16)))
    assert [shape.trained.shape for shape in bank_shapes(run, 16)] == [(2, 16), (2, 16)]

    (group,) = [group for group in parameter_groups(model, recipe.training) if group["name"] == "kernels"]
    assert {id(value) for value in group["params"]} == {id(value) for _, value in kernel_parameters(model)}
    per_head = untrained.parameters_per_head
    assert sum(value.numel() for value in group["params"]) == 2 * 2 * per_head

    model.save_pretrained(tmp_path / "copy")
    ids = torch.arange(9)[None]
    copy = KernelGPTForCausalLM.from_pretrained(tmp_path / "copy")
    torch.testing.assert_close(copy(ids).logits, model(ids).logits)


@pytest.mark.parametrize("how", ["multiply", "add", "mix"])
def test_heads_are_pruned_and_saved(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    recipe = load_recipe("demo", [*TINY, EXPRESSION, f"model.variant_options.how={how}"])
    model = recipe.build_model(40).eval()
    smaller = prune_heads(model, {0: [0]})
    smaller.save_pretrained(tmp_path / "pruned")
    ids = torch.arange(9)[None]
    again = KernelGPTForCausalLM.from_pretrained(tmp_path / "pruned").eval()
    torch.testing.assert_close(again(ids).logits, smaller(ids).logits)


def test_a_misspelt_expression_of_a_recipe_is_one_line() -> None:
    recipe = load_recipe("demo", [*TINY, "model.variant_options.expression=rq*perodic"])
    with pytest.raises(InputError, match="did you mean 'periodic'"):
        recipe.build_model(40)
