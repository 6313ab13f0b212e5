"""A table that is kept while a text grows is the kernel's."""

import pytest
import torch
from kernels.conftest import CASES

from nadaraya import InputError, kernel_attention
from nadaraya.attention import Factored
from nadaraya.attention.tables import LagTable
from nadaraya.kernels import Exp, Kernel, KernelBank, T5Buckets

SIGNED = T5Buckets(3, 8, 20, bidirectional=True)


def signed(kernel: Kernel, tokens: int, causal: bool) -> torch.Tensor:
    table = torch.atleast_2d(kernel.lag_logits(tokens, causal=causal))
    return torch.cat((table[:, 1:].flip(1), table), 1) if kernel.symmetric or causal else table


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", [*(case.build for case in CASES), lambda: SIGNED])
@torch.no_grad()
def test_it_is_the_kernel_s_at_every_length(make, causal: bool) -> None:
    kernel: Kernel = make()
    table = LagTable()
    for tokens in (5, 6, 7, 90, 91, 300, 40):
        found = table.logits(kernel, tokens, causal, decoding=tokens > 5)
        torch.testing.assert_close(found.logits, signed(kernel, tokens, causal))
        assert not found.mirrored or found.logits.equal(found.logits.flip(1))
        assert found.lowest is None or found.lowest <= found.logits.amin()


@torch.no_grad()
def test_what_a_table_is_known_for_changes_no_result() -> None:
    x, kernel = torch.randn(1, 2, 7, 4), Exp(KernelBank(2, 3))
    kept = LagTable().logits(kernel, 7, True, decoding=False)
    for query, content in ((x, None), (x[:, :, -1:], None), (x.exp(), Factored())):
        found, wanted = (
            kernel_attention(query, x.exp(), x, content=content, position=each, causal=True)
            for each in (kept, kept.logits)
        )
        torch.testing.assert_close(found, wanted)
    elsewhere = kept._replace(logits=kept.logits.to("meta"))
    with pytest.raises(InputError, match="position must be on the device of the query"):
        kernel_attention(x, x, x, position=elsewhere, causal=True)


@torch.no_grad()
def test_the_past_alone_and_both_sides_are_tables_of_their_own() -> None:
    torch.nn.init.normal_(next(SIGNED.parameters()))
    table = LagTable()
    for causal in (True, False, True):
        found = table.logits(SIGNED, 9, causal, decoding=True)
        torch.testing.assert_close(found.logits, signed(SIGNED, 9, causal))


@torch.no_grad()
def test_a_text_that_grows_computes_few_lags_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, table, lags = Exp(KernelBank(2, 3)), LagTable(), []
    plain = kernel.log
    monkeypatch.setattr(kernel, "log", lambda r: lags.append(len(r)) or plain(r))
    for tokens in range(1000, 1101):
        table.logits(kernel, tokens, True, decoding=tokens > 1000)
    assert lags == [1000, 65, 65]  # 64 beyond the length that is asked for
