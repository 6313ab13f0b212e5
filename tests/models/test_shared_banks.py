"""Banks that layers share: one tensor in memory, in the optimizer, in files; the same function as copies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.interpret import bank_shapes
from nadaraya.kernels import Exp, KernelBank
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, prune_heads
from nadaraya.training import load_recipe, train
from nadaraya.training.optimizer import parameter_groups
from nadaraya.training.processes import shard_model

TOKENS = torch.arange(12)[None]
# Banks of 2 heads in 3 layers: how many there are.
BANKS = {"none": 6, "heads": 3, "layers": 2, "all": 1}
FITTED = {"sigma": [1.5, 0.5], "length": [3.0, 30.0], "tau": [4.0, 20.0], "alpha": [0.4, 2.0]}


def made(share: str, variant: Any = "gpa-mul", layers: int = 3, **options: Any) -> KernelGPTForCausalLM:
    """A tiny model; terms that the same seed makes random."""
    torch.manual_seed(0)
    options = {"num_terms": 2, "init": "random", "share": share, **options}
    sizes = {"vocab_size": 12, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": layers}
    return KernelGPTForCausalLM(KernelGPTConfig(variant=variant, variant_options=options, **sizes)).eval()


def banks(model: KernelGPTForCausalLM) -> list[KernelBank]:
    """Those of each layer."""
    kernels = [kernel for _, kernel in model.lag_kernels()]
    return [kernel.kernel if isinstance(kernel, Exp) else kernel for kernel in kernels]


@pytest.mark.parametrize("variant", ["gpa-mul", "gpa-rope", "gka-loo-bank", "mixed-bank"])
@pytest.mark.parametrize("share", BANKS)
def test_what_is_shared_is_there_once_and_is_saved_and_loaded(share: str, variant: str, tmp_path) -> None:
    model, alone = made(share, variant), made("none", variant)
    of_banks = [p for name, p in model.kernel_parameters() if ".log_" in name and "bandwidth" not in name]
    assert sum(p.numel() for p in of_banks) == BANKS[share] * 4 * 2
    saved = 4 * 2 * (6 - BANKS[share])
    assert alone.num_parameters() - model.num_parameters() == saved
    options = load_recipe("demo").training
    (kernels,) = [g["params"] for g in parameter_groups(model, options) if g["name"] == "kernels"]
    assert [sum(p is parameter for p in kernels) for parameter in of_banks] == [1] * len(of_banks)

    with torch.no_grad():
        for parameter in of_banks:
            parameter.add_(torch.randn_like(parameter) / 9)
    model.save_pretrained(tmp_path)
    assert (
        sum(t.numel() for t in load_file(tmp_path / "model.safetensors").values()) == model.num_parameters()
    )
    for cls, before in ((KernelGPTForCausalLM, model), (type(model.model), model.model)):
        loaded = cls.from_pretrained(tmp_path).eval()
        assert torch.equal(loaded(TOKENS)[0], before(TOKENS)[0])
        assert loaded.num_parameters() == before.num_parameters()


@pytest.mark.parametrize("tie", [False, True])
def test_more_layers_than_have_one_digit_and_tied_embeddings(tie: bool, tmp_path: Path) -> None:
    config = KernelGPTConfig.from_dict(made("all", layers=12).config.to_dict(), tie_word_embeddings=tie)
    model = KernelGPTForCausalLM(config)
    assert len({id(bank.log_length) for bank in banks(model)}) == 1
    model.save_pretrained(tmp_path)
    loaded, told = KernelGPTForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    assert loaded.num_parameters() == model.num_parameters()


def test_shared_layers_compute_what_copies_do_with_the_sum_of_their_gradients() -> None:
    shared, copies = made("all"), made("none")
    values = {name: tensor for name, tensor in shared.state_dict().items() if ".log_" not in name}
    copies.load_state_dict(values, strict=False)
    with torch.no_grad():
        for one, several in zip(banks(shared), banks(copies), strict=True):
            for name, parameter in several.named_parameters():
                parameter.copy_(getattr(one, name).expand_as(parameter))
    losses = [model(TOKENS, labels=TOKENS).loss for model in (shared, copies)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for name, parameter in banks(shared)[0].named_parameters():
        gradients = [getattr(bank, name).grad.sum(0, keepdim=True) for bank in banks(copies)]
        torch.testing.assert_close(parameter.grad, sum(gradients), rtol=1e-3, atol=1e-6)


def test_in_a_hybrid_the_layers_of_each_variant_have_a_bank_of_their_own() -> None:
    first, other, third, fourth = banks(made("layers", ["gpa-mul", "gpa-mul-xsa"], layers=4))
    assert first.log_tau is third.log_tau
    assert other.log_tau is fourth.log_tau
    assert first.log_tau is not other.log_tau


@pytest.mark.parametrize("share", ["heads", "all"])
def test_heads_go_where_they_share_a_bank(share: str, tmp_path: Path) -> None:
    model = made(share)
    smaller = prune_heads(model, {0: [1], 2: [0]})
    kernels = [dict(m.kernel_parameters()) for m in (model, smaller)]
    assert kernels[0].keys() == kernels[1].keys()
    assert all(torch.equal(kernels[0][name], kernels[1][name]) for name in kernels[0])
    assert [shape.trained.shape for shape in bank_shapes(smaller, 5)] == [(1, 5), (2, 5), (1, 5)]
    smaller.save_pretrained(tmp_path)
    loaded = KernelGPTForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(TOKENS).logits, smaller(TOKENS).logits)


def test_what_sharing_does_not_allow_is_refused() -> None:
    with pytest.raises(InputError, match="pruned_heads must be None where layers share the banks"):
        prune_heads(made("layers"), {0: [1]})
    with pytest.raises(InputError, match=r"training\.parallel must be ddp for a model whose layers share"):
        shard_model(made("all"), torch.device("cpu"))


def test_a_start_by_number_is_kept_in_the_configuration(tmp_path: Path) -> None:
    model = made("none", init=FITTED)
    model.save_pretrained(tmp_path)
    config = KernelGPTConfig.from_pretrained(tmp_path)
    assert config.variant_options["init"] == FITTED
    for bank in banks(KernelGPTForCausalLM(config)):
        for name, values in FITTED.items():
            torch.testing.assert_close(getattr(bank, name), torch.tensor(values).expand(2, 2))


@pytest.mark.slow
def test_a_run_reads_its_shared_bank_before_and_after_training(tmp_path: Path) -> None:
    recipe = load_recipe(
        "demo",
        [
            "model.variant=gpa-rope", "model.variant_options={num_terms: 2, share: all, init: random}",
            "model.hidden_size=8", "model.num_attention_heads=2", "model.num_hidden_layers=2",
            "training.steps=2", "training.batch_size=2", "training.warmup_steps=0", "data.limit=9000",
            "data.context=16", "training.validation_batches=1", "training.sample_characters=0",
        ],
    )  # fmt: skip
    run = train(recipe, tmp_path / "run", progress=False)
    model, start = run.load_model(), run.load_model(initial=True)

    def tables(kernels: Any) -> Tensor:
        return torch.stack([kernel.lag_logits(9) for _, kernel in kernels]).detach()

    assert torch.equal(tables(run.lag_kernels()), tables(model.lag_kernels()))
    assert torch.equal(tables(run.lag_kernels(initial=True)), tables(start.lag_kernels()))
    assert not torch.equal(tables(run.lag_kernels()), tables(run.lag_kernels(initial=True)))
    assert run.final is not None
    assert run.final["kernel_parameters"] == 4 * 2
    longer = load_recipe(tmp_path / "run", ["training.steps=4"])
    assert train(longer, tmp_path / "run", progress=False).final["step"] == 4
