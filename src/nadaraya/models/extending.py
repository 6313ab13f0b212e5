"""Longer texts than a rotary model was trained on: a window, other angles, or none."""

import math
from contextlib import ExitStack
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.errors import InputError, check_at_least, check_name, must_be

Method = Literal["window", "interpolate", "ntk", "yarn", "drop"]
_STATIC = ("default", "linear", "llama3", "yarn")  # types of angles that do not depend on the text


def extend_context(
    model: nn.Module, method: Method, *, factor: float | None = None, window: int | None = None
) -> ExitStack:
    """Let a model with rotary positions read texts that are longer than those it was trained on.

    No parameter changes, and nothing is trained: some methods want a short training afterwards.

    - "window": every layer sees the last `window` tokens alone.
    - "interpolate": all angles become θ / s (Chen et al. 2023).
    - "ntk": θ_p s^(−2p/(d−2)), p = 0 … d/2 − 1: the slowest are interpolated, the fastest stay (NTK-aware).
    - "yarn": by parts, with sharper logits (Peng et al. 2024).
    - "drop": no rotation at all (Gelberg et al. 2025), of little use before a recalibration.

    Args:
        model: a KernelGPT with rotary positions, or a causal model of transformers whose rotary positions
            have one set of angles of the type "default", such as Llama, Qwen, Mistral and GPT-NeoX; for
            "drop" angles may be scaled, as Llama 3's.
        method: one of the above.
        factor: s, how many times as long the texts are, above 1; for "interpolate", "ntk" and "yarn".
        window: tokens that a query sees, itself included; default the context trained on,
            `config.max_position_embeddings`. For "window" alone.

    Returns:
        A context manager that takes the change back at its end; so does its `close()`.

    Raises:
        InputError: a method, factor or window that does not exist, a model without such positions.

    >>> import torch
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, extend_context
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", variant="rope"))
    >>> with extend_context(model, "yarn", factor=4.0):
    ...     model(torch.arange(64)[None]).logits.shape
    torch.Size([1, 64, 93])
    """
    check_name("method", method, get_args(Method))
    trained = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if trained is None:
        raise must_be("model", "a language model, whose config has max_position_embeddings", type(model))
    for name, given in (("factor", factor), ("window", window)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float))):
            raise must_be(name, "a number", given)
    scales = method in ("interpolate", "ntk", "yarn")
    if (factor is not None) != scales or not 1.0 < (2.0 if factor is None else factor) < math.inf:
        accepted = "a finite number above 1 for 'interpolate', 'ntk' and 'yarn', and left out for others"
        raise must_be("factor", accepted, factor)
    if window is not None and (method != "window" or window < 1):
        raise must_be("window", "at least 1 for 'window', and left out for others", window)
    undo = ExitStack()
    if method == "window":
        return see_last(model, trained if window is None else window)
    types = _STATIC if method == "drop" else _STATIC[:1]
    modules = [part for part in model.modules() if _theirs(part, types) or isinstance(part, RotaryEmbedding)]
    if not modules:
        raise must_be("model", "one with rotary positions", type(model).__name__)
    for part in modules:
        own = isinstance(part, RotaryEmbedding)
        theta: Any = part.angles().detach() if isinstance(part, RotaryEmbedding) else part.inv_freq
        turning = theta[theta > 0]  # of replaced layers some channels, or all, do not
        if not len(turning):
            continue
        angles, scale = _angles(method, turning, factor or 1.0, trained)
        angles = F.pad(angles, (0, len(theta) - len(turning)))
        changes = {"replaced": (angles, scale)} if own else {"inv_freq": angles, "attention_scaling": scale}
        for name, value in changes.items():
            _set(undo, part, name, value)
    return undo


def see_last(model: nn.Module, window: int) -> ExitStack:
    """Let each attention layer see at most `window` tokens, itself included, until the result is closed.

    The model has layers of `KernelSelfAttention`, as KernelGPT has, or is one of transformers that takes
    `attn_implementation="nadaraya"`; layers that see fewer keep theirs.
    """
    check_at_least(1, sliding_window=window)
    undo = ExitStack()
    layers = [layer for layer in model.modules() if isinstance(layer, KernelSelfAttention)]
    from nadaraya.models.attach import attach_attention
    from nadaraya.models.replacing import ReplacedAttention

    if not layers or any(isinstance(part, ReplacedAttention) for part in model.modules()):
        undo.enter_context(attach_attention(model, window=window))
    for layer in layers:
        _set(undo, layer, "window", window if layer.window is None else min(window, layer.window))
    return undo


def _set(undo: ExitStack, part: nn.Module, name: str, value: Any) -> None:
    """Set an attribute until the end."""
    undo.callback(setattr, part, name, getattr(part, name))
    setattr(part, name, value)


def _theirs(part: nn.Module, types: tuple[str, ...]) -> bool:
    """Return whether a module is of transformers' rotary positions, with angles of some types."""
    if not hasattr(part, "attention_scaling") and not hasattr(part, "rope_type"):
        return False
    found = getattr(part, "rope_type", None)
    if found not in types or not hasattr(part, "attention_scaling"):
        accepted = f"one with one set of rotary angles of the type {' or '.join(map(repr, types))}"
        raise InputError(f"model must be {accepted}, got {type(part).__name__} of {found!r}")
    return True


def _angles(method: Method, theta: Tensor, factor: float, trained: int) -> tuple[Tensor, float]:
    """New angles (d/2,), and a factor of queries and of keys."""
    pair = torch.arange(len(theta), device=theta.device, dtype=theta.dtype)
    if method == "drop":
        return torch.zeros_like(theta), 1.0
    if method == "interpolate":
        return theta / factor, 1.0
    if method == "ntk":
        return theta * factor ** (-pair / max(1, len(theta) - 1)), 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    width = 2 * len(theta)
    if width == 2:
        raise InputError("method 'yarn' needs heads wider than 2: a single angle does not tell its base")
    config = LlamaConfig(
        hidden_size=width, num_attention_heads=1, max_position_embeddings=int(trained * factor),
        rope_parameters={
            "rope_type": "yarn", "rope_theta": float(theta[-1].double() ** (-width / (width - 2))),
            "factor": factor, "original_max_position_embeddings": trained,
        },
    )  # fmt: skip
    angles, scale = ROPE_INIT_FUNCTIONS["yarn"](config, theta.device)
    return angles.to(theta.dtype), float(scale)
