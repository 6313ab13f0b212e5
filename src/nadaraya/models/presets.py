"""Named configurations of KernelGPT: the papers' character model, a small one, and the family of nanochat.

The family (Karpathy 2025) has one dial, the depth: "nano-d20" has 20 blocks. Its width is 64 per block,
rounded up to whole heads of 128; vocabulary 32,768, context 2048; windows SSSL, an S sees half of the
context and the last layer all; root-mean-square norms without parameters, of the embedding and of queries
and keys too; rotary positions, ReLU², logits capped at ±15, no tied weights, no biases. Its value embeddings
are those of Kundu et al. (2026), table 8: a table in the last layer and every second before it.

"nano-d20-gka" is the same with another variant: any of `nadaraya.variants`. Without a W_V in any layer there
are no value embeddings: there the features are the values, and table 8 has none either.
"""

import re
from collections.abc import Sequence
from typing import Any

from nadaraya.attention import variants
from nadaraya.errors import must_be, unknown_name

PRESETS: dict[str, dict[str, Any]] = {
    # The defaults: the character model of Bunks et al. (2025) and of Gaussian Process Attention (anonymous).
    "dickens": {},
    # A model that trains on two CPU cores in about a minute.
    "demo": {"hidden_size": 128},
    # What docs/guides/choosing.md recommends, at any size.
    "recommended": {"variant": "gpa-spread", "short_convolution": 4},
}
_NANO = re.compile(r"nano-d(?P<depth>[^-]*)(?:-(?P<variant>.*))?")
_DEEPEST = 999
_HEAD_DIM = 128


def is_preset(name: str) -> bool:
    """Return whether a name is, or begins as, that of a preset.

    Args:
        name: what may be one.

    >>> from nadaraya.models.presets import is_preset
    >>> is_preset("demo"), is_preset("nano-d12-gka"), is_preset("gka")
    (True, True, False)
    """
    return name in PRESETS or _NANO.fullmatch(name) is not None


def preset_fields(name: str, variant: str | Sequence[str] | None = None) -> dict[str, Any]:
    """The fields of a preset that differ from the defaults of `KernelGPTConfig`.

    Args:
        name: "dickens", "demo", "recommended", or "nano-d20" or "nano-d20-gka" with any depth.
        variant: the variants, over that of the name; default that of the name, else "rope".

    Raises:
        InputError: no such preset or variant, or a depth out of range.

    >>> from nadaraya.models.presets import preset_fields
    >>> preset_fields("nano-d20")["hidden_size"], preset_fields("nano-d20")["value_embeddings"]
    (1280, 'alternate')
    >>> preset_fields("nano-d20-gka")["value_embeddings"] is None
    True
    """
    parts = _NANO.fullmatch(name)
    if parts is None:
        if name not in PRESETS:
            raise unknown_name("preset", name, [*PRESETS, "nano-d20", "nano-d20-gka"])
        return dict(PRESETS[name])
    number = parts["depth"]
    depth = int(number) if re.fullmatch("[0-9]{1,3}", number) else 0
    if not 1 <= depth <= _DEEPEST:
        raise must_be("the depth of preset nano-dN", f"a whole number from 1 to {_DEEPEST}", number)
    if variant is None:
        variant = "rope" if parts["variant"] is None else parts["variant"]
    heads = -(-64 * depth // _HEAD_DIM)
    forms = [each.get("projections", "qkvo") for _, each in variants.by_layer(variant, depth)]
    return {
        "num_hidden_layers": depth,
        "hidden_size": heads * _HEAD_DIM,
        "num_attention_heads": heads,
        "vocab_size": 32_768,
        "max_position_embeddings": 2048,
        "variant": variant,
        "window_pattern": "SSSL",
        "norm": "rmsnorm",
        "norm_eps": 1e-6,
        "head_norm": True,
        "head_norm_eps": 1e-6,
        "embedding_norm": True,
        "hidden_act": "relu2",
        "logit_cap": 15.0,
        "value_embeddings": "alternate" if any(form in ("qkvo", "vo") for form in forms) else None,
    }
