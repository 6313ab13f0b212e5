"""The layer: every variant is the operator on the tensors that its paper names, and decodes as it trains."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from causal_variants import CAUSAL, NEVER_CAUSAL, causal_options

from nadaraya import InputError, KernelSelfAttention, kernel_attention, variants
from nadaraya.attention.content import DotProduct, GaussianContent
from nadaraya.attention.gates import ForgetGate, Sink
from nadaraya.attention.mixing import FIRE, MixedBank, MixedProfiles
from nadaraya.attention.projections import LayerShape
from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.kernels import ALiBi, Gaussian, KernelBank, T5Buckets

DIM, HEADS = 32, 4


class ListCache:
    """The simplest cache that keeps everything."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.kept: torch.Tensor | None = None
        self.counted = 0

    def length(self) -> int:
        return self.counted if self.keys is None else self.keys.shape[2]

    def state(self) -> torch.Tensor | None:
        return self.kept

    def keep_state(self, state: torch.Tensor, tokens: int) -> None:
        self.kept, self.counted = state, self.counted + tokens

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = keys if self.keys is None else torch.cat((self.keys, keys), 2)
        self.values = values if self.values is None else torch.cat((self.values, values), 2)
        return self.keys, self.values


def make(variant: str, causal: bool = True, **options: Any) -> KernelSelfAttention:
    torch.manual_seed(0)
    options = {**(causal_options(variant) if causal else {}), **options}
    return KernelSelfAttention(DIM, HEADS, causal=causal, **variants.get(variant, **options)).double().eval()


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 12, DIM, dtype=torch.float64)


@pytest.mark.parametrize("variant", [*CAUSAL, "gka-loo-bank-sink", "fox-sink-gate"])
def test_cached_decoding_equals_the_full_pass(variant: str, x: torch.Tensor) -> None:
    layer, cache = make(variant), ListCache()
    full = layer(x)
    steps = [layer(x[:, :5], cache=cache), *(layer(x[:, [n]], cache=cache) for n in range(5, 12))]
    torch.testing.assert_close(torch.cat(steps, 1), full)


@pytest.mark.parametrize(
    ("variant", "options"),
    [("gka", {"values": "rotated"}), ("gka-loo", {"rotary": None}), ("gka-loo-bank", {}), ("gka-bank", {})],
)
def test_gaussian_attention_caches_one_tensor(variant: str, options: dict, x: torch.Tensor) -> None:
    layer, cache = make(variant, **options), ListCache()
    full = layer(x)
    steps = [layer(x[:, :7], cache=cache), layer(x[:, 7:], cache=cache)]
    torch.testing.assert_close(torch.cat(steps, 1), full)
    assert cache.keys.numel() == x.numel()
    assert cache.values.numel() == 0


@pytest.mark.parametrize("variant", [*variants.names(), "gpa-mul-loo-sink"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_parameter_learns(variant: str, causal: bool, x: torch.Tensor) -> None:
    if (variant == "fox" and not causal) or (causal and variant in NEVER_CAUSAL):
        pytest.skip("gates say what is forgotten of the past, and some mixtures are of the future too")
    layer = make(variant, causal)
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A bidirectional look-up leaves far buckets of a short sequence untouched, and only those.
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("variant", CAUSAL)
def test_causal_layers_do_not_see_the_future(variant: str, x: torch.Tensor) -> None:
    layer = make(variant)
    changed = x.clone()
    changed[:, 8:] += 1.0
    torch.testing.assert_close(layer(x)[:, :8], layer(changed)[:, :8])
    assert not torch.allclose(layer(x)[:, 8:], layer(changed)[:, 8:])


def test_vision_form_of_gka_is_the_operator_on_slices(x: torch.Tensor) -> None:
    layer = make("gka", causal=False, rotary=None, head_norm=False)
    slices = x.view(2, 12, HEADS, DIM // HEADS).transpose(1, 2)
    smoothed = kernel_attention(
        slices, slices, slices, content=Gaussian(layer.content.bandwidth), backend="reference"
    )
    torch.testing.assert_close(layer(x), layer.projections.o_proj(smoothed.transpose(1, 2).flatten(2)))


def test_a_bandwidth_per_channel_scales_queries_and_keys_and_leaves_the_values(x: torch.Tensor) -> None:
    content = partial(GaussianContent, per="channel")
    options = {**variants.get("gka", rotary=None, head_norm=False), "content": content}
    layer = KernelSelfAttention(DIM, HEADS, **options).double()
    torch.nn.init.normal_(layer.content.log_bandwidth)
    slices = x.view(2, 12, HEADS, DIM // HEADS).transpose(1, 2)
    scaled = slices / layer.content.bandwidth[:, None]
    smoothed = kernel_attention(scaled, scaled, slices, content=Gaussian(1.0))
    torch.testing.assert_close(layer(x), layer.projections.o_proj(smoothed.transpose(1, 2).flatten(2)))


def test_eps_dropout_and_causality_of_a_call_reach_the_operator(x: torch.Tensor) -> None:
    layer = KernelSelfAttention(DIM, HEADS, projections="o", eps=0.5, dropout=0.5).double().eval()
    slices = x.view(2, 12, HEADS, DIM // HEADS).transpose(1, 2)
    for is_causal in (False, True):
        smoothed = kernel_attention(slices, slices, slices, eps=0.5, causal=is_causal)
        expected = layer.projections.o_proj(smoothed.transpose(1, 2).flatten(2))
        torch.testing.assert_close(layer(x, is_causal=is_causal), expected)
    assert not torch.allclose(layer.train()(x, is_causal=True), expected)


def test_initial_bandwidth_and_rotary_base() -> None:
    default = KernelSelfAttention(DIM, HEADS, **variants.get("gka"))
    parts = {"content": partial(GaussianContent, bandwidth=3.0), "rotary": RotaryEmbedding(8, base=100.0)}
    given = KernelSelfAttention(DIM, HEADS, **{**variants.get("gka"), **parts})
    torch.testing.assert_close(default.content.bandwidth, torch.full((HEADS,), (DIM / HEADS) ** 0.25))
    torch.testing.assert_close(given.content.bandwidth, torch.full((HEADS,), 3.0))
    assert (default.rotary.base, given.rotary.base) == (10_000.0, 100.0)


def test_a_shifted_kernel_looks_around_a_displacement_of_its_token(x: torch.Tensor) -> None:
    """Where the displaced token is another token, that one has all the weight of a narrow kernel."""
    content = partial(GaussianContent, bandwidth=0.05, shift=True)
    options = {**variants.get("gka", rotary=None, head_norm=False), "content": content}
    layer = KernelSelfAttention(DIM, HEADS, **options).double()
    with torch.no_grad():
        slices = x.view(2, 12, HEADS, DIM // HEADS).transpose(1, 2)
        layer.content.shift.copy_(slices[0, :, 7:8] - slices[0, :, 3:4])
    _, weights = layer(x, return_weights=True)
    torch.testing.assert_close(weights[0, :, 3, 7], x.new_ones(HEADS))
    assert "content.shift" in dict(layer.kernel_parameters())


def test_shifted_layers_decode_as_they_train_and_cache_one_tensor(x: torch.Tensor) -> None:
    options = {**variants.get("gka", rotary=None), "content": partial(GaussianContent, shift=True)}
    layer = KernelSelfAttention(DIM, HEADS, causal=True, **options).double()
    unshifted, cache = layer(x), ListCache()
    torch.nn.init.normal_(layer.content.shift)
    full = layer(x)
    steps = [layer(x[:, :7], cache=cache), layer(x[:, 7:], cache=cache)]
    torch.testing.assert_close(torch.cat(steps, 1), full)
    assert cache.values.numel() == 0
    assert not torch.allclose(full, unshifted)


def test_rotated_values_are_the_literal_reading_of_kundu_et_al(x: torch.Tensor) -> None:
    layer = make("gka", values="rotated")
    features = F.rms_norm(x.view(2, 12, HEADS, DIM // HEADS).transpose(1, 2), (DIM // HEADS,))
    rotated = layer.rotary(features)
    smoothed = kernel_attention(
        rotated, rotated, rotated, content=Gaussian(layer.content.bandwidth), causal=True
    )
    torch.testing.assert_close(layer(x), layer.projections.o_proj(smoothed.transpose(1, 2).flatten(2)))
    assert not torch.allclose(layer(x), make("gka")(x))


def test_rotated_values_count_positions_from_the_beginning_of_their_text(x: torch.Tensor) -> None:
    layer = make("gka", values="rotated")
    tokens = x.shape[1]
    documents = torch.arange(tokens).ge(5).long().expand(len(x), -1)
    packed = layer(x, document_ids=documents)
    torch.testing.assert_close(packed, torch.cat((layer(x[:, :5]), layer(x[:, 5:])), 1))
    present = torch.arange(tokens).ge(torch.arange(len(x))[:, None] + 2)
    padded = layer(x, key_mask=present)
    for row, mask in enumerate(present):
        torch.testing.assert_close(padded[row, mask], layer(x[row : row + 1, mask])[0])


def test_gka_has_only_the_output_projection_and_one_bandwidth_a_head() -> None:
    names = {name: tuple(p.shape) for name, p in make("gka").named_parameters()}
    assert names == {"content.kernel.log_bandwidth": (HEADS,), "projections.o_proj.weight": (DIM, DIM)}
    assert "projections.v_proj.weight" not in dict(make("vlt").named_parameters())


def test_letters_in_parentheses_share_one_matrix(x: torch.Tensor) -> None:
    def matrices(form: str) -> set[str]:
        layer = KernelSelfAttention(DIM, HEADS, projections=form)
        return {name.split(".")[1] for name, _ in layer.named_parameters()}

    assert matrices("(qkv)o") == {"q_proj", "o_proj"}
    assert matrices("q(kv)o") == {"q_proj", "k_proj", "o_proj"}
    for form in ("(qkv)o", "q(kv)o"):
        layer = KernelSelfAttention(DIM, HEADS, projections=form).double()
        query, key, value = layer.projections(x)
        assert value is key
        assert (key is query) == (form == "(qkv)o")


def test_a_gated_layer_forgets_by_the_product_of_its_gates(x: torch.Tensor) -> None:
    layer = make("fox")
    log_forget = layer.gate(x)
    total = log_forget.cumsum(-1)
    query, key, value = layer.projections(x)
    mask = total[..., :, None] - total[..., None, :]
    smoothed = kernel_attention(query, key, value, attn_mask=mask, causal=True)
    torch.testing.assert_close(layer(x), layer.projections.merged(smoothed))
    with pytest.raises(InputError, match="a gate must be in a causal layer"):
        KernelSelfAttention(DIM, HEADS, gate=ForgetGate)


@pytest.mark.parametrize("causal", [False, True])
def test_a_sink_is_a_key_that_weighs_and_has_no_value(causal: bool, x: torch.Tensor) -> None:
    layer = make("softmax-sink", causal)
    layer.sink.logit.data = torch.linspace(-2.0, 4.0, HEADS, dtype=torch.float64)
    query, key, value = layer.projections(x)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
    sink = layer.sink.logit[:, None, None].expand(2, -1, 12, 1)
    weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    expected, shown = layer.projections.merged(weights @ value), layer(x, return_weights=True)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(shown, (expected, weights))
    gradients = [torch.autograd.grad(out.sin().sum(), layer.sink.logit)[0] for out in (layer(x), expected)]
    torch.testing.assert_close(*gradients)
    assert [name for name, _ in layer.kernel_parameters()] == ["sink.logit"]
    layer.sink.logit.data.fill_(-60.0)
    torch.testing.assert_close(layer(x), make("softmax", causal)(x))


def test_fire_counts_lags_in_fractions_of_what_a_query_sees() -> None:
    torch.manual_seed(2)
    fire = FIRE(LayerShape(DIM, HEADS, HEADS), threshold=4)
    whole, last = fire(torch.zeros(1, 9, DIM), 9), fire(torch.zeros(1, 2, DIM), 9)
    torch.testing.assert_close(last, whole[:, 7:])
    # Below the threshold it is a function of the lag; its end is always at the fraction 1.
    torch.testing.assert_close(whole[:, 1, 0], whole[:, 3, 2])
    torch.testing.assert_close(whole[:, 5, 0], whole[:, 8, 0])


def test_extra_parameters_of_the_papers_banks() -> None:
    def extra(variant: str) -> int:
        return sum(p.numel() for _, p in make(variant).kernel_parameters())

    assert extra("gpa") == extra("gpa-rope") == 4 * 64 * HEADS  # 4 M per head
    assert extra("gpa-mul") == 4 * 8 * HEADS
    assert extra("decay") == 2 * 8 * HEADS
    assert extra("gka") == HEADS
    assert extra("rope") == 0


@pytest.mark.parametrize("variant", ["gpa", "gpa-mul", "gka-loo-bank", "t5"])
def test_weights_give_the_layers_own_output(variant: str, x: torch.Tensor) -> None:
    layer = make(variant)
    out, weights = layer(x, return_weights=True)
    torch.testing.assert_close(out, layer(x))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 12, dtype=torch.float64))


def test_padding_changes_nothing_for_the_tokens_beside_it(x: torch.Tensor) -> None:
    layer = make("gpa-mul-loo")
    padded = torch.cat((torch.randn(2, 3, DIM, dtype=torch.float64), x), 1)
    present = torch.ones(2, 15, dtype=torch.bool)
    present[:, :3] = False
    torch.testing.assert_close(layer(padded, key_mask=present)[:, 3:], layer(x))


@pytest.mark.parametrize("signed", [False, True])
def test_the_table_kept_between_tokens_follows_the_parameters(signed: bool, x: torch.Tensor) -> None:
    kernel = T5Buckets(HEADS, 8, 20, bidirectional=True) if signed else KernelBank(HEADS, 4)
    layer, cache = KernelSelfAttention(DIM, HEADS, position=kernel).double(), ListCache()
    with torch.no_grad():
        for tokens in (x[:, :5], x[:, 5:6], x[:, 6:7]):
            kept = layer(tokens, cache=cache)
        torch.testing.assert_close(kept, layer(x[:, :7])[:, 6:])
        layer(x[:, :5], cache=(other := ListCache()))
        layer(x[:, 5:6], cache=other)
        for parameter in kernel.parameters():
            parameter += torch.randn_like(parameter)
        after = layer(x[:, 6:7], cache=other)
        torch.testing.assert_close(after, layer(x[:, :7])[:, 6:])
    assert not torch.allclose(kept, after)


def test_a_signed_kernel_tells_the_past_from_the_future_and_serves_any_length(x: torch.Tensor) -> None:
    layer = KernelSelfAttention(DIM, HEADS, position=T5Buckets(HEADS, bidirectional=True)).double()
    torch.nn.init.normal_(next(layer.position.parameters()))
    with torch.no_grad():
        kept = layer(x)
        shorter = layer(x[:, :5])
    torch.testing.assert_close(kept, layer(x))  # with gradients the table is made anew
    torch.testing.assert_close(shorter, layer(x[:, :5]))


def test_window_and_grouped_heads(x: torch.Tensor) -> None:
    layer = KernelSelfAttention(DIM, HEADS, causal=True, window=4, num_key_value_heads=2).double()
    changed = x.clone()
    changed[:, 3] += 1.0
    torch.testing.assert_close(layer(x)[:, 7:], layer(changed)[:, 7:])
    assert not torch.allclose(layer(x)[:, 6], layer(changed)[:, 6])


@pytest.mark.parametrize("kept", [None, [0, 3]])
@pytest.mark.parametrize(("variant", "options"), [("gpa-spread", {}), ("parallax", {"rotary": None})])
def test_wider_heads_with_zeros_beside_their_channels_compute_the_same(
    variant: str, options: dict[str, Any], kept: list[int] | None, x: torch.Tensor
) -> None:
    layer = make(variant, **options)
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    made = variants.get(variant, **options)
    wide = KernelSelfAttention(DIM, HEADS, causal=True, head_dim=10, **made).double()
    values = {name: torch.zeros_like(tensor) for name, tensor in wide.state_dict().items()}
    for name, tensor in layer.state_dict().items():
        dims = [dim for dim in (0, 1) if values[name].shape[dim : dim + 1] != tensor.shape[dim : dim + 1]]
        target = values[name]
        for dim in dims:
            tensor, target = tensor.unflatten(dim, (HEADS, -1)), target.unflatten(dim, (HEADS, -1))
            target = target.narrow(dim + 1, 0, 8)
        target.copy_(tensor * (10 / 8) ** 0.5 if "q_proj" in name else tensor)
    wide.load_state_dict(values)
    for each in (layer, wide):
        each.keep_heads(kept or range(HEADS))
    torch.testing.assert_close(wide(x), layer(x))


def test_autocast_keeps_tables_and_sums_in_float32() -> None:
    torch.manual_seed(0)
    layer = KernelSelfAttention(DIM, HEADS, causal=True, **variants.get("gpa-rope"))
    x = torch.randn(2, 40, DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x)
    full = layer(x)
    assert half.dtype == torch.bfloat16
    assert (half.float() - full).norm() / full.norm() < 0.02


@pytest.mark.parametrize("variant", variants.names())
@pytest.mark.parametrize("head_norm", [False, True])
def test_every_variant_runs_under_autocast(variant: str, head_norm: bool) -> None:
    torch.manual_seed(0)
    options = {**variants.get(variant, **causal_options(variant)), "head_norm": head_norm}
    layer = KernelSelfAttention(DIM, HEADS, causal=variant not in NEVER_CAUSAL, **options).eval()
    x = torch.randn(2, 12, DIM, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x)
    half.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert (half.float() - layer(x)).norm() / layer(x).norm() < 0.03


def test_layers_built_in_inference_mode_compute() -> None:
    with torch.inference_mode():
        layer = KernelSelfAttention(DIM, HEADS, causal=True, **variants.get("gpa"))
        assert layer(torch.zeros(1, 3, DIM)).shape == (1, 3, DIM)


def test_a_padding_mask_of_another_length_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"of shape \(batch, 12\), as many as tokens so far, got \(2, 14\)"):
        make("rope")(x, key_mask=torch.ones(2, 14, dtype=torch.bool))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "num_heads must be a divisor of dim = 32, got 5"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must be a divisor of num_heads = 4, got 3"),
        (
            {"num_key_value_heads": 2, "projections": "o"},
            "projections must be 'qkvo' or .* with num_key_value_heads",
        ),
        ({"projections": "qkv"}, "did you mean 'qkvo'"),
        ({"own_value": "dorp"}, "own_value must be .* did you mean 'drop'"),
        ({"own_value": "drop", "exclude_self": True}, "own_value='drop' must not be given with exclude_self"),
        ({"content": partial(GaussianContent, per="chanel")}, "per must be .* did you mean 'channel'"),
        (
            {"content": partial(GaussianContent, per="channel"), "num_key_value_heads": 2},
            "per must be 'head' where heads share keys",
        ),
        (
            {"content": partial(GaussianContent, bandwidth=-1.0)},
            "bandwidth must be a positive finite number, got -1.0",
        ),
        ({"content": partial(DotProduct, scale=-1.0, learned=True)}, "scale must be finite, and positive"),
        ({"position": Gaussian}, "position must be a kernel, as Gaussian"),
        ({"content": lambda shape: 3.0}, "content must be a module, or a function of the layer's shape"),
        (
            {
                "content": partial(GaussianContent, per="channel"),
                "rotary": lambda shape: RotaryEmbedding(shape.head_dim, values=True),
            },
            "rotary values need one bandwidth per head",
        ),
        (
            {"position": partial(MixedProfiles, extent=0)},
            "extent must be a whole number of at least 1, got 0",
        ),
        ({"position": partial(MixedBank, bank=ALiBi)}, "bank must be a function that makes a KernelBank"),
        ({**variants.get("linear-sink", features="silu")}, "sink must not be given with content that has no"),
        ({**variants.get("skyformer-sink")}, "sink must not be given with content that has no"),
        ({**variants.get("nystromformer-sink")}, "sink must not be given with content that has no"),
        ({"sink": partial(Sink, logit=float("inf"))}, "logit must be a finite number, got inf"),
        ({"eps": -0.5}, "eps must be a finite number of at least 0, got -0.5"),
        ({"window": 0}, "window must be a positive number of tokens or None, got 0"),
        ({"dropout": 1.0}, r"must be a number in \[0, 1\), got 1.0"),
        (
            {"rotary": lambda shape: RotaryEmbedding(shape.head_dim, base="10")},
            "must be a finite number above 1, got '10'",
        ),
        (
            {"position": KernelBank(3, 2)},
            "position must be a kernel shared by all heads or with one value for each of 4, got KernelBank",
        ),
    ],
)
def test_bad_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        KernelSelfAttention(**{"dim": DIM, "num_heads": HEADS, **changes})


def test_wrong_input_shape_is_named() -> None:
    with pytest.raises(InputError, match=r"x must be of shape \(batch, tokens, 32\), got \(2, 12, 31\)"):
        make("rope")(torch.randn(2, 12, 31, dtype=torch.float64))


def test_parameters_written_through_data_are_seen_by_the_next_text() -> None:
    torch.manual_seed(0)
    layer = KernelSelfAttention(
        16, 2, causal=True, position=lambda shape: KernelBank(shape.num_heads, 4)
    ).eval()
    x = torch.randn(1, 12, 16)
    with torch.no_grad():
        before = layer(x)
        for parameter in layer.position.parameters():
            parameter.data.mul_(0.1)
        after = layer(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, layer(x).detach())
