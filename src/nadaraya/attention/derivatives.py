"""Gradients of custom operators, which other custom operators compute."""

from collections.abc import Sequence
from typing import Any, NoReturn

from torch import Tensor

from nadaraya.errors import InputError


def differentiate(
    operator: Any, backward: Any, names: Sequence[str], optional: Sequence[Sequence[str]]
) -> None:
    """Make an operator the gradient of another one; it has no gradient of its own.

    Args:
        operator: of queries, keys, values and more; gives an output, a log-sum-exp and, if any, flags.
        backward: takes the gradients of the output and the log-sum-exp; queries, keys, values; the results;
            the other inputs, and ahead of those with a default whether each of `optional` is wanted.
        names: the inputs that it gives gradients of, in this order; an input of size 1 may stand for several.
        optional: inputs whose gradients it leaves out where none of them is wanted.
    """
    arguments = operator._opoverload._schema.arguments
    inputs = [argument.name for argument in arguments]
    required = sum(not argument.has_default_value() for argument in arguments)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output, *(each if isinstance(each, Tensor) else None for each in inputs))
        ctx.options = [None if isinstance(each, Tensor) else each for each in inputs]
        ctx.mark_non_differentiable(*output[2:])

    def gradients(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # a checkpoint hands them out once
        results, tensors = saved[: len(grads)], saved[len(grads) :]
        given = [option if t is None else t for t, option in zip(tensors, ctx.options, strict=True)]
        wanted = {name for name, needs in zip(inputs, ctx.needs_input_grad, strict=False) if needs}
        flags = [not wanted.isdisjoint(together) for together in optional]
        found = backward(*grads[:2], *given[:3], *results, *given[3:required], *flags, *given[required:])
        by_name = dict(zip(names, found, strict=True))
        return tuple(
            by_name[name].sum_to_size(t.shape).to(t.dtype) if name in wanted else None
            for name, t in zip(inputs, tensors, strict=True)
        )

    operator.register_autograd(gradients, setup_context=keep)
    backward.register_autograd(refuse_second_derivative)


def refuse_second_derivative(*_: object) -> NoReturn:
    """The gradient of a fast backend's gradients."""
    raise InputError('second derivatives must be taken with backend="reference": fast backends have none')
