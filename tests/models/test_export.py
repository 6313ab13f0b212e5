"""Exported models: the same function for any batch, and for ONNX nothing but PyTorch's core operators."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from grids import covering
from torch import nn

import nadaraya.models.vit  # noqa: F401  (registers the models)

VARIANTS: dict[str, dict[str, Any]] = {
    "gka": {},
    "gka with a grid kernel": {"variant_options": {"grid_kernel": "bank"}},
    "gka-loo": {"variant": "gka-loo", "variant_options": {"eps": 1e-3}},
    "gka and softmax": {"pattern": "GA"},
    "vlt": {"variant": "vlt"},
}


# Every pair of a variant, fused or not, and strict or not; two of the first variant in the fast tier.
QUICK = [("gka", fused, False) for fused in (False, True)]
PAIRS = [case.values for case in covering(list(VARIANTS), [False, True], [False, True], whole=False)]
SLOW = [name if name == "gka" else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]


def make(variant: str, fused: bool) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(
        "gka_tiny_patch16_224", img_size=48, depth=2, num_classes=3, **VARIANTS[variant]
    )
    for block in model.blocks:
        block.attn.fused_attn = fused
    return model.eval()


def export(model: nn.Module, strict: bool) -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim("batch")},)
    return torch.export.export(model, (torch.randn(2, 3, 48, 48),), dynamic_shapes=shapes, strict=strict)


@pytest.mark.parametrize(
    ("variant", "fused", "strict"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in PAIRS if case not in QUICK)],
)
def test_an_exported_model_is_the_model_for_any_batch(
    variant: str, fused: bool, strict: bool, tmp_path: Path
) -> None:
    model, images = make(variant, fused), torch.randn(5, 3, 48, 48)
    torch.export.save(export(model, strict), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(loaded(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", SLOW)
@pytest.mark.parametrize("fused", [False, True])
def test_onnx_gets_core_operators_alone(variant: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = make(variant, fused), torch.randn(5, 3, 48, 48)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)  # as torch.onnx.export has it
    program = export(model, strict=False).run_decompositions()
    operators = [
        node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    ]
    checks = {torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_scalar.default}
    assert torch.ops.aten._cdist_forward.default not in operators  # which onnxscript does not translate
    assert not [each for each in operators if torch.Tag.core not in each.tags and each not in checks]
    torch.testing.assert_close(program.module()(images), model(images), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_far_from_the_origin_an_exported_model_keeps_its_digits() -> None:
    layer = make("gka", fused=False).blocks[0].attn
    x = torch.randn(2, 10, 192) + 1000.0
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x), rtol=0.0, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fused", [False, True])
@torch.no_grad()
def test_an_onnx_file_computes_the_model(variant: str, fused: bool, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, images = make(variant, fused), torch.randn(5, 3, 48, 48)
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(
        model, (torch.randn(2, 3, 48, 48),), dynamo=True, dynamic_shapes=shapes, verbose=False
    )
    assert program is not None
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(images), rtol=1e-4, atol=1e-5)
