"""Expressions one step away from one: the moves of a search."""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add, mul

from nadaraya.kernels.expressions import Exponential, Factor, KernelExpression, Term, named

MOST_KERNELS = 64  # per head, of an expression that a search makes


def neighbours(expression: KernelExpression, bases: Sequence[KernelExpression]) -> list[KernelExpression]:
    """What one step makes of an expression, by moves like those of Duvenaud et al. (2013).

    A base is added to it or multiplied with it, or with one of its terms, or takes the place of a kernel;
    or a term gets twice as many copies. Inside parentheses and exponentials likewise.

    Args:
        expression: the expression.
        bases: what is added, multiplied and put in place.

    Returns:
        Different expressions of at most 64 kernels, without the one given.

    >>> from nadaraya.kernels import parse_expression
    >>> from nadaraya.study.search import neighbours
    >>> found = neighbours(parse_expression("rq"), [parse_expression("rq"), parse_expression("periodic")])
    >>> [str(each) for each in found]
    ['2*rq', 'rq*rq', 'periodic + rq', 'periodic*rq', 'periodic']
    """
    found = dict.fromkeys(_steps(expression, bases))
    found.pop(expression, None)
    return [each for each in found if each.num_kernels <= MOST_KERNELS]


def _steps(expression: KernelExpression, bases: Sequence[KernelExpression]) -> Iterator[KernelExpression]:
    for base in bases:
        yield expression + base
        yield expression * base
    for place, term in enumerate(expression.terms):
        others = [*expression.terms[:place], *expression.terms[place + 1 :]]
        for changed in _steps_of_term(term, bases):
            yield reduce(add, [changed, *map(_expression, others)])


def _steps_of_term(term: Term, bases: Sequence[KernelExpression]) -> Iterator[KernelExpression]:
    whole = _expression(term)
    yield 2 * whole
    factors = [_of_factor(factor) for factor in term.factors]
    for base in bases:
        yield term.copies * reduce(mul, [*factors, base])
    for place, factor in enumerate(term.factors):
        others = [*factors[:place], *factors[place + 1 :]]
        for changed in _steps_of_factor(factor, bases):
            yield term.copies * reduce(mul, [changed, *others])


def _steps_of_factor(factor: Factor, bases: Sequence[KernelExpression]) -> Iterator[KernelExpression]:
    if isinstance(factor, str):
        yield from bases
    elif isinstance(factor, Exponential):
        yield from (inner.exp() for inner in _steps(factor.inner, bases))
    else:
        yield from _steps(factor, bases)


def _expression(term: Term) -> KernelExpression:
    return KernelExpression((term,))


def _of_factor(factor: Factor) -> KernelExpression:
    if isinstance(factor, str):
        return named(factor)
    return factor.inner.exp() if isinstance(factor, Exponential) else factor
