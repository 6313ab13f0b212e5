"""Counts against what is known by hand and what the documents say."""

from functools import cache

import pytest
import torch

from nadaraya.evaluation.efficiency import flop_counter, model_cost
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM


@cache
def cost(variant: str, **changes: object):  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        return model_cost(KernelGPTForCausalLM(KernelGPTConfig.preset("dickens", variant=variant, **changes)))


def test_papers_model() -> None:
    """4 blocks of 12 D² weights, norms, two tables of 93 × 512: about 12.7 M in the model of the papers."""
    width, layers, vocabulary, context = 512, 4, 93, 256
    counted = cost("rope")
    norms = (2 * layers + 1) * width
    assert counted.parameters == 12 * width**2 * layers + 2 * vocabulary * width + norms
    assert counted.attention_parameters == 4 * width**2 * layers
    assert counted.mlp_parameters == 8 * width**2 * layers
    assert counted.kernel_parameters == 0
    linear = 2 * (12 * width**2 * layers + vocabulary * width)
    attention = layers * 4 * context * width
    assert counted.flops_per_token == linear + attention
    assert counted.weight_bytes == 4 * counted.parameters


@pytest.mark.parametrize(
    ("variant", "extra"), [("gpa-rope", 4096), ("gpa", 4096), ("gpa-mul", 512), ("decay", 256), ("alibi", 0)]
)
def test_lag_kernels_cost_parameters_but_no_operations(variant: str, extra: int) -> None:
    base, counted = cost("rope"), cost(variant)
    assert counted.parameters - base.parameters == counted.kernel_parameters == extra
    assert counted.flops_per_token == base.flops_per_token


def test_gka_has_a_quarter_of_the_attention_weights() -> None:
    base, counted = cost("rope"), cost("gka")
    assert counted.attention_parameters - counted.kernel_parameters == base.attention_parameters / 4
    saved = 2 * 3 * 512**2 * 4
    assert base.flops_per_token - counted.flops_per_token == saved


@pytest.mark.parametrize(
    ("variant", "weights", "kernels", "operations"),
    [
        # Per layer of D = 512, H = 4, context 256: matrices cost 2 operations per weight and token.
        ("nope", 0, 0, 0),
        ("rope-xsa", 0, 0, 0),
        ("rope-norm", 0, 4, 0),
        ("kv-shared", -(512**2), 0, -2 * 512**2),
        ("qkv-shared", -2 * 512**2, 0, -4 * 512**2),
        ("gka-bank", -3 * 512**2, 4 + 4 * 4 * 8, -6 * 512**2),
        ("fox", (512 + 1) * 4, 0, 2 * 512 * 4),
        # Each query's M weights times M profiles at 256 lags.
        ("mixed-bank", 512 * 4 * 8, 4 * 4 * 8, 2 * 4 * 8 * (512 + 256)),
        ("inkling", 512 * 4 * 16, 16 * 1024 + 4, 2 * 4 * 16 * (512 + 256)),
        # A network 1 → 32 → 4 for every pair of tokens.
        ("fire", 2 * 32 + 33 * 4, 2, 2 * (32 + 32 * 4) * 256),
    ],
)
def test_what_parts_cost_beside_rotary_attention(
    variant: str, weights: int, kernels: int, operations: int
) -> None:
    base, counted = cost("rope"), cost(variant)
    assert counted.attention_parameters - base.attention_parameters == 4 * (weights + kernels)
    assert counted.parameters - base.parameters == 4 * (weights + kernels)
    assert counted.kernel_parameters == 4 * kernels
    assert counted.flops_per_token - base.flops_per_token == 4 * operations


@pytest.mark.parametrize(
    ("name", "millions", "per_token", "tokens", "total"),
    [
        # The tokens of the table, 4.5686e9 and 2.7787e9, in whole batches of 2¹⁹.
        ("nano-d20", 896, "3.0042e+09", 8714 * 2**19, "1.3725e+19"),
        ("nano-d20-gka", 378, "2.4143e+09", 5300 * 2**19, "6.7088e+18"),
    ],
)
def test_table_8_of_kundu_et_al(name: str, millions: int, per_token: str, tokens: int, total: str) -> None:
    """Parameters, in whole millions; FLOPs per token; FLOPs in all."""
    with torch.device("meta"):
        counted = model_cost(KernelGPTForCausalLM(KernelGPTConfig.preset(name)))
    assert counted.parameters // 10**6 == millions
    assert f"{counted.training_flops_per_token:.4e}" == per_token
    assert f"{counted.training_flops_per_token * tokens:.4e}" == total


def test_value_embeddings_hold_most_of_what_table_8_saves() -> None:
    with torch.device("meta"):
        configs = [KernelGPTConfig.preset(name) for name in ("nano-d20", "nano-d20-gka")]
        baseline, gka = (model_cost(KernelGPTForCausalLM(config)) for config in configs)
    assert baseline.parameters - gka.parameters == 517_734_210
    assert baseline.value_embedding_parameters == 10 * (32_768 * 1280 + 1)
    assert gka.value_embedding_parameters == 0
    # What is left are W_Q, W_K, W_V of every layer, less the bandwidths of GKA.
    rest = baseline.parameters - baseline.value_embedding_parameters - gka.parameters
    assert rest == 20 * (3 * 1280**2 - 10)


def test_the_estimate_for_training_is_three_forward_passes_but_for_windows() -> None:
    counted = cost("rope")
    assert counted.training_flops_per_token == 3 * counted.flops_per_token
    windows = {"window_pattern": "SL", "sliding_window": 100}
    saved = counted.training_flops_per_token - cost("rope", **windows).training_flops_per_token
    assert saved == 12 * 512 * 2 * (256 - 100)
    beyond = cost("rope", **{**windows, "sliding_window": 1000})
    assert beyond.training_flops_per_token == counted.training_flops_per_token
    tied = cost("rope", tie_word_embeddings=True)
    assert tied.training_flops_per_token == counted.training_flops_per_token


def test_tied_tables_count_once() -> None:
    assert cost("rope").parameters - cost("rope", tie_word_embeddings=True).parameters == 93 * 512


def test_a_short_convolution_costs_its_taps() -> None:
    """Depthwise: K weights and K multiply-adds per channel."""
    base, counted = cost("rope"), cost("rope", short_convolution=4)
    assert counted.parameters - base.parameters == 4 * 512 * 4
    assert counted.flops_per_token - base.flops_per_token == 2 * 4 * 512 * 4
    assert counted.attention_parameters == base.attention_parameters


def test_an_output_gate_costs_one_matrix_of_attention() -> None:
    base, counted = cost("rope"), cost("rope", output_gate=True)
    assert counted.attention_parameters - base.attention_parameters == 512**2 * 4
    assert counted.parameters - base.parameters == 512**2 * 4
    assert counted.flops_per_token - base.flops_per_token == 2 * 512**2 * 4


@pytest.mark.parametrize(("which", "tables"), [("all", 4), ("alternate", 2)])
def test_value_embeddings_cost_a_table_and_a_number_per_layer_but_no_products(
    which: str, tables: int
) -> None:
    for heads in (4, 2):
        base = cost("rope", num_key_value_heads=heads)
        counted = cost("rope", num_key_value_heads=heads, value_embeddings=which)
        assert counted.parameters - base.parameters == tables * (93 * heads * 128 + 1)
        assert counted.attention_parameters == base.attention_parameters
        assert counted.flops_per_token == base.flops_per_token


def test_options_of_a_block_are_no_kernels() -> None:
    options = {"short_convolution": 4, "output_gate": True, "value_embeddings": "all", "prune_tol": 0.01}
    assert cost("gpa-mul", **options).kernel_parameters == cost("gpa-mul").kernel_parameters


@pytest.mark.parametrize("variant", ["linear", "linear-bank", "performer"])
def test_content_that_factorises_costs_the_same_per_token_at_any_length(variant: str) -> None:
    short, long = (cost(variant, max_position_embeddings=context) for context in (8192, 16384))
    assert long.flops_per_token == pytest.approx(short.flops_per_token, rel=1e-6)  # states move once a chunk
    assert long.training_flops_per_token == pytest.approx(short.training_flops_per_token, rel=1e-6)
    assert long.training_flops_per_token == pytest.approx(3 * long.flops_per_token, rel=1e-6)


def test_what_is_counted_of_a_transform() -> None:
    """2.5 n log₂ n for n real numbers along the axis, once there and once back."""
    with (counter := flop_counter()):
        torch.fft.irfft(torch.fft.rfft(torch.zeros(3, 5, 64, device="meta")), n=64)
    assert counter.get_total_flops() == 2 * round(2.5 * 3 * 5 * 64 * 6)
