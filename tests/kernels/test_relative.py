"""Published position biases: against their papers' formulas and transformers' implementations."""

import math

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import KERPLE, ALiBi, FreeTable, Sandwich, T5Buckets

LAGS = torch.arange(400)


def test_alibi_slopes_of_a_power_of_two():
    torch.testing.assert_close(ALiBi(8).slopes, 2.0 ** -torch.arange(1.0, 9.0))
    torch.testing.assert_close(ALiBi(16).slopes, 2.0 ** (-0.5 * torch.arange(1.0, 17.0)))
    torch.testing.assert_close(ALiBi(1).slopes, torch.tensor([2.0**-8]))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 20])
def test_alibi_is_that_of_transformers(num_heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    bias = bloom.build_alibi_tensor(torch.ones(1, 50), num_heads, torch.float32)[:, 0]  # slope × key position
    ours = ALiBi(num_heads).log(torch.arange(50).flip(0))
    torch.testing.assert_close(ours - ours[:, :1], bias, rtol=1e-5, atol=1e-5)


def test_alibi_learns_nothing():
    assert list(ALiBi(4).parameters()) == []
    assert "slopes" in ALiBi(4).state_dict()


@pytest.mark.parametrize("num_buckets", [2, 8, 32, 33, 64])
@pytest.mark.parametrize("max_distance", [40, 128, 256])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets_are_those_of_transformers(num_buckets, max_distance, bidirectional):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    if bidirectional:
        num_buckets = 2 * (num_buckets // 2 + 1)
    ours = T5Buckets(2, num_buckets, max_distance, bidirectional)
    lags = torch.arange(-600 if bidirectional else 0, 600)
    # There a relative position is that of the key minus that of the query.
    expected = t5.T5Attention._relative_position_bucket(-lags, bidirectional, num_buckets, max_distance)
    assert torch.equal(ours.buckets(lags), expected)


def test_t5_reads_its_table():
    kernel = T5Buckets(2, num_buckets=8, max_distance=16)
    assert (kernel(LAGS) == 1).all()
    torch.nn.init.normal_(kernel.logits)
    assert torch.equal(kernel.log(LAGS[:5]), kernel.logits[:, :5])
    assert torch.equal(kernel.log(LAGS[16:]), kernel.logits[:, -1:].expand(2, 384))


def test_kerple_is_the_published_bias():
    log = KERPLE(3)
    expected = -log.r1[:, None] * torch.log(1 + log.r2[:, None] * LAGS)
    torch.testing.assert_close(log.log(LAGS), expected)
    power = KERPLE(3, form="power")
    torch.testing.assert_close(power.log(LAGS), -power.r1[:, None] * LAGS.float() ** power.r2[:, None])


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_starts_in_range_and_differs_by_head(form):
    kernel = KERPLE(64, form)
    assert (kernel.r1 > 0).all()
    assert ((kernel.r2 > 0) & (kernel.r2 < 2)).all()
    assert len(set(kernel.r1.tolist())) > 32
    low, high = (kernel.r2, kernel.r1) if form == "log" else (kernel.r1, kernel.r2)
    assert low.amax() <= 1 < high.amax() <= 2


def test_kerple_power_stays_in_range_however_far_it_is_pushed():
    kernel = KERPLE(2, "power")
    kernel.raw_r2.data = torch.tensor([-30.0, 30.0])
    assert ((kernel.r2 > 0) & (kernel.r2 <= 2)).all()


def test_sandwich_is_the_inner_product_of_sinusoidal_encodings():
    num_heads, dim = 4, 128
    frequencies = 10000 ** (-2 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    angles = LAGS[:, None] * frequencies
    encodings = torch.cat([angles.sin(), angles.cos()], dim=-1)
    ratios = 8 * torch.arange(1, num_heads + 1, dtype=torch.float64) / num_heads
    published = (encodings @ encodings[0]) / ratios[:, None]
    ours = Sandwich(num_heads, dim).log(LAGS.double())
    torch.testing.assert_close(ours, published - published[:, :1], rtol=1e-4, atol=1e-4)


def test_sandwich_does_not_overflow_with_many_heads():
    assert torch.isfinite(Sandwich(64)(LAGS)).all()


def test_free_table_has_one_entry_a_lag():
    kernel = FreeTable(2, 5)
    torch.nn.init.normal_(kernel.logits)
    assert torch.equal(kernel.log(LAGS[:5]), kernel.logits)
    assert torch.equal(kernel.log(-LAGS[:5]), kernel.logits)
    signed = FreeTable(2, 5, signed=True)
    torch.nn.init.normal_(signed.logits)
    assert torch.equal(signed.lag_logits(5), signed.logits)
    assert torch.equal(signed.lag_logits(5, causal=True), signed.logits[:, 4:])


def test_lags_beyond_the_free_table_take_its_last_entry():
    signed = FreeTable(1, 3, signed=True)
    torch.nn.init.normal_(signed.logits)
    assert torch.equal(signed.log(torch.tensor([-90, 90])), signed.logits[:, [0, -1]])


def test_lags_are_rounded_to_whole_tokens():
    kernel = FreeTable(1, 4)
    torch.nn.init.normal_(kernel.logits)
    assert torch.equal(kernel.log(torch.tensor([0.9, 2.2])), kernel.logits[:, [1, 2]])


@pytest.mark.parametrize("kernel_class", [KERPLE, T5Buckets])
def test_reset_brings_a_start_back(kernel_class):
    kernel = kernel_class(2)
    for parameter in kernel.parameters():
        parameter.data.fill_(math.nan)
    kernel.reset_parameters()
    assert torch.isfinite(kernel(LAGS)).all()


def test_bad_requests():
    with pytest.raises(InputError, match=r"num_heads must be .* got 0"):
        ALiBi(0)
    with pytest.raises(InputError, match="did you mean 'power'"):
        KERPLE(2, form="powr")
    with pytest.raises(InputError, match="dim must be even, got 7"):
        Sandwich(2, dim=7)
    with pytest.raises(InputError, match="num_buckets must be even, got 9"):
        T5Buckets(2, num_buckets=9, bidirectional=True)
    with pytest.raises(InputError, match="max_distance must be a whole number of at least 17, got 16"):
        T5Buckets(2, num_buckets=32, max_distance=16)
    with pytest.raises(InputError, match=r"num_lags must be .* got -1"):
        FreeTable(2, -1)
