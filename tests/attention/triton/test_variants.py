"""How often kernels are compiled: once for all lengths of a text, whatever they are multiples of."""

import json
import os
import subprocess
import sys

import pytest

# Without a GPU and without the interpreter: the kernels are asked for, and what Triton would compile is noted
# in place of being compiled.
PROGRAM = """
import json
from collections import defaultdict

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


variants = defaultdict(set)
triton.runtime.driver.set_active(Driver())
JITFunction._do_compile = lambda kernel, key, *rest: variants[kernel.fn.__name__].add(key)

from nadaraya.attention.triton.decoding import triton_decoding
from nadaraya.attention.triton.launch import document_bounds
from nadaraya.attention.triton.operator import triton_attention, triton_attention_backward
from nadaraya.attention.triton.per_query import (
    triton_attention_per_query,
    triton_attention_per_query_backward,
)

BATCH, HEADS, WIDTH = 2, 4, 64
for length in (64, 65, 128, 129):
    q, k, v = torch.zeros(3, BATCH, HEADS, length, WIDTH, dtype=torch.bfloat16).unbind(0)
    sigma, table = torch.ones(HEADS), torch.zeros(HEADS, 2 * length - 1)
    logits = torch.zeros(BATCH, HEADS, length)
    padding = torch.zeros(BATCH, length, dtype=torch.bool)
    documents = document_bounds(torch.zeros(BATCH, length, dtype=torch.int64))
    window = length // 2
    three = (q, k, v), (1.0, sigma, table, logits, padding, documents, True, window, True), (True, True)
    one = (q, None, None), (1.0, sigma, None, None, None, documents, True, window, True), (False, False)
    for tensors, options, needs in (three, one):
        out, lse, alone = triton_attention(*tensors, *options)
        grads = torch.zeros_like(out), torch.zeros_like(lse)
        triton_attention_backward(*grads, *tensors, out, lse, alone, *options, *needs)
    general = (1.0, sigma, table, logits, padding, documents, True, window, True)
    active = torch.zeros(BATCH, HEADS, 2, 2, dtype=torch.int32)
    out, lse, alone = triton_attention(q, k, v, *general, active)
    grads = torch.zeros_like(out), torch.zeros_like(lse)
    triton_attention_backward(*grads, q, k, v, out, lse, alone, *general, True, True, active)
    mixed = (torch.ones(BATCH, HEADS, length, 3), torch.ones(1, 3, 2 * length - 1), None)
    per_query = (1.0, sigma, *mixed, logits, padding, documents, True, window, True)
    out, lse, alone = triton_attention_per_query(q, k, v, *per_query)
    triton_attention_per_query_backward(*grads, q, k, v, out, lse, alone, *per_query, True, True)
    for cached in (length, 100 * length):
        key, value = torch.zeros(2, BATCH, HEADS, cached, WIDTH, dtype=torch.bfloat16).unbind(0)
        triton_decoding(q[:, :, :1], key, value, 1.0, None, None, None, None, None, True, window, False)
print(json.dumps({name: len(keys) for name, keys in variants.items()}))
"""
# Variants are three tensors, those with tiles that are not visited, strips of rows, and one tensor.
EXPECTED = {
    "forward_kernel": 4,
    "row_sum_kernel": 1,
    "key_value_gradient_kernel": 3,
    "query_gradient_kernel": 3,
    "one_tensor_gradient_kernel": 1,
    "decoding_kernel": 1,
    "merging_kernel": 1,
}


@pytest.mark.slow
def test_no_length_needs_a_compilation_of_its_own() -> None:
    pytest.importorskip("triton.backends.nvidia")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == EXPECTED
