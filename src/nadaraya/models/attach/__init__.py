"""The operator in the models of transformers: `attn_implementation="nadaraya"`, and `attach_attention`.

`register_attention` makes the name known, which importing `nadaraya.models` does too. Models whose positions
are biases of all pairs, T5 and Inkling, need `attach_attention` besides to work without them.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from nadaraya.errors import InputError, must_be
from nadaraya.models.attach import interface, masks, relative
from nadaraya.models.gated import OVER, WINDOWED, unwrapped

__all__ = [
    "attach_attention",
    "register_attention",
]

_NAME = "nadaraya"


def register_attention() -> None:
    """Make `attn_implementation="nadaraya"` known to transformers; once more does no harm.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nadaraya.models import register_attention
    >>> register_attention()
    >>> sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes, attn_implementation="nadaraya"))
    >>> model.config._attn_implementation
    'nadaraya'
    """
    AttentionInterface.register(_NAME, interface.attention)
    AttentionMaskInterface.register(_NAME, masks.attention_mask)


class Attachment(ExitStack):
    """The changes of `attach_attention` to a model; as a context manager it takes them back at its end.

    Attributes:
        relative: names of the modules whose relative positions are handed on unwritten.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        super().__init__()
        models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
        for part in reversed(models):  # the last is taken back first: the whole before its parts
            self.callback(_put_back, part, part.config._attn_implementation)
        model.set_attn_implementation(name)
        found = {name: module for name, module in model.named_modules() if relative.is_relative(module)}
        self.relative = list(found)
        for module in found.values():
            self.callback(relative.hand_on(module))

    def remove(self) -> None:
        """Give the model back the attention that it had."""
        self.close()


def _put_back(part: PreTrainedModel, name: str) -> None:
    over = OVER * str(part.config._attn_implementation).startswith(OVER)  # a bank is there now
    part.set_attn_implementation(over + name.removeprefix(OVER))


def attach_attention(model: Any, *, window: int | None = None) -> Attachment:
    """Let a model of transformers compute its attention with the operator, in O(N) memory where it can.

    As `model.set_attn_implementation("nadaraya")`, and more: T5 (with mT5, Switch Transformers, LongT5 and
    Pop2Piano) and Inkling (1 and 2) hand on the parts of their relative positions instead of N × N biases
    (Raffel et al. 2020). No parameter is touched, and state dicts stay as they are.

    Args:
        model: a `PreTrainedModel`, or one of peft's around it, whose attention goes through transformers'
            AttentionInterface.
        window: tokens that a query sees at most, itself included, and as many on its other side where it sees
            any there; default what the model lets it see.

    Returns:
        An `Attachment`, whose `remove` undoes it.

    Raises:
        InputError: for anything else, or a model that is attached already.

    >>> from transformers import T5Config, T5EncoderModel
    >>> from nadaraya.models import attach_attention
    >>> sizes = dict(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
    >>> model = T5EncoderModel(T5Config(**sizes))
    >>> with attach_attention(model) as attached:
    ...     len(attached.relative)
    2
    """
    model = unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise must_be("model", "a model of transformers (PreTrainedModel)", type(model))
    if not model._can_set_attn_implementation():
        accepted = "one whose attention goes through transformers' AttentionInterface"
        raise must_be("model", accepted, type(model).__name__)
    if any(relative.hands_on(module) for module in model.modules()):
        raise InputError(f"model must not be attached already, got an attached {type(model).__name__}")
    from nadaraya.models.attach.beside import register_over

    given = str(model.config._attn_implementation)
    over = OVER if given.startswith(OVER) else ""  # a kernel bank is there
    if window is None:
        register_attention()
        return Attachment(model, over + _NAME)
    former = given.removeprefix(OVER).removeprefix(WINDOWED)
    window = min(window, int(former)) if former.isdigit() else window  # another one that is not removed yet
    name = f"{WINDOWED}{window}"
    AttentionInterface.register(name, interface.attention)
    AttentionMaskInterface.register(name, partial(masks.attention_mask, window=window))
    register_over(name)
    return Attachment(model, over + name)
