"""Kernel expressions: sums and products of kernels by name, read from text, with one spelling for each."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add, mul

from nadaraya.errors import InputError, must_be, shown, unknown_name

KERNEL_NAMES = (
    "constant", "epanechnikov", "exponential", "gaussian", "matern32", "matern52", "periodic", "rq",
    "tricube",
)  # fmt: skip
# A product of two of these is one of them, of another length.
_CLOSED = ("exponential", "gaussian")
_LONGEST = 1000  # characters of an expression
_DEEPEST = 16  # parentheses in parentheses
_MOST_KERNELS = 4096  # per head
_TOKEN = re.compile(r"(\d+)|([^\W\d]\w*)|(\S)")


@dataclass(frozen=True)
class Term:
    """A product of kernels, and how many copies of it the sum has.

    Attributes:
        copies: each with parameters of its own.
        factors: names, exponentials and sums of more than one term, sorted.

    >>> from nadaraya.kernels.expressions import parse_expression
    >>> parse_expression("4*periodic*exponential").terms
    (Term(copies=4, factors=('exponential', 'periodic')),)
    """

    copies: int
    factors: "tuple[Factor, ...]"

    def __str__(self) -> str:
        product = "*".join(f"({f})" if isinstance(f, KernelExpression) else str(f) for f in self.factors)
        return f"{self.copies}*{product}" if self.copies > 1 else product


@dataclass(frozen=True)
class Exponential:
    """exp(κ), as a factor.

    >>> from nadaraya.kernels.expressions import parse_expression
    >>> str(parse_expression("exp(rq) * exp(gaussian)"))
    'exp(gaussian + rq)'
    """

    inner: "KernelExpression"

    def __str__(self) -> str:
        return f"exp({self.inner})"


@dataclass(frozen=True)
class KernelExpression:
    """A sum of products of kernels; + and * of expressions, whole number * expression, and `exp()` make more.

    Expressions are equal where they are the same up to the order of sums and products, copies written out,
    and these identities: exp(κ₁) exp(κ₂) = exp(κ₁ + κ₂); a product of Gaussians is a Gaussian, one of
    exponentials an exponential; a constant factor is part of a product's amplitude, and a sum of constants is
    one. Products of sums are not multiplied out: in (a + b) * c both terms have the same c.

    Attributes:
        terms: of the sum, sorted.

    >>> from nadaraya.kernels.expressions import parse_expression
    >>> one, other = parse_expression("rq*periodic + rq"), parse_expression("rq + periodic * rq")
    >>> one == other, str(one * one), str(2 * one)
    (True, '(periodic*rq + rq)*(periodic*rq + rq)', '2*periodic*rq + 2*rq')
    """

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))

    def __add__(self, other: "KernelExpression") -> "KernelExpression":
        return _sum((*self.terms, *other.terms))

    def __mul__(self, other: "KernelExpression") -> "KernelExpression":
        return _product((*self._as_factors(), *other._as_factors()))

    def __rmul__(self, copies: int) -> "KernelExpression":
        return _sum(Term(copies * term.copies, term.factors) for term in self.terms)

    def exp(self) -> "KernelExpression":
        """exp(κ)."""
        return KernelExpression((Term(1, (Exponential(self),)),))

    @property
    def num_terms(self) -> int:
        """Terms of the sum, copies counted."""
        return sum(term.copies for term in self.terms)

    @property
    def num_kernels(self) -> int:
        """Kernels that it has in all, copies counted."""
        return sum(term.copies * sum(map(_num_kernels, term.factors)) for term in self.terms)

    def _as_factors(self) -> "tuple[Factor, ...]":
        if self.num_terms == 1:
            return self.terms[0].factors
        return (self,)


Factor = str | Exponential | KernelExpression


def named(name: str) -> KernelExpression:
    """One kernel.

    Raises:
        InputError: there is none of that name.

    >>> from nadaraya.kernels.expressions import named
    >>> str(named("rq") + named("gaussian"))
    'gaussian + rq'
    """
    if name not in KERNEL_NAMES:
        raise unknown_name("kernel in an expression", name, (*KERNEL_NAMES, "exp"))
    return KernelExpression((Term(1, (name,)),))


def parse_expression(text: str) -> KernelExpression:
    """Read an expression.

    Args:
        text: kernels by name joined by + and *, exp(…), parentheses, and whole numbers first in a product:
            so many copies of it, with parameters of their own. Names: constant (σ²), exponential (the decay
            of Bunks et al. (2025), eq. 4), gaussian, matern32, matern52, periodic, rq (rational quadratic),
            and, exactly zero from some lag on, epanechnikov and tricube.

    Returns:
        The expression; its `str` is the one spelling of all that are equal.

    Raises:
        InputError: it is not such a text, is longer than 1000 characters, nested deeper than 16 levels, or
            has more than 4096 kernels.

    >>> from nadaraya.kernels.expressions import parse_expression
    >>> str(parse_expression("2*(periodic * exponential) + rq + exponential*periodic"))
    '3*exponential*periodic + rq'
    >>> parse_expression("rq * periodc")
    Traceback (most recent call last):
    nadaraya.errors.InputError: kernel in an expression must be one of ... did you mean 'periodic'?
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise must_be("expression", f"a text of at most {_LONGEST} characters, as 'rq*periodic'", text)
    parser = _Parser(text)
    found = parser.sum()
    parser.expect("")
    if found.num_kernels > _MOST_KERNELS:
        raise must_be("expression", f"one of at most {_MOST_KERNELS} kernels", text)
    return found


class _Parser:
    """Recursive descent: a sum has products, a product has factors, a factor may be a sum in parentheses."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: Iterator[tuple[str, str, str]] = iter(_TOKEN.findall(text))
        self._depth = 0
        self._step()

    def sum(self) -> KernelExpression:
        terms = [self._product()]
        while self._symbol == "+":
            self._step()
            terms.append(self._product())
        return reduce(add, terms)

    def expect(self, symbol: str) -> None:
        if self._symbol != symbol or self._number or self._name:
            raise self._error(f"has {shown(self._next) if self._next else 'its end'} where "
                              f"{shown(symbol) if symbol else 'its end'}, + or * is accepted")  # fmt: skip
        self._step()

    def _product(self) -> KernelExpression:
        copies = 1
        if self._number:
            copies = int(self._number[:9])
            if not 0 < copies <= _MOST_KERNELS:
                raise self._error(f"has {self._number[:20]} copies: 1 to {_MOST_KERNELS} are accepted")
            self._step()
            if self._symbol != "*":
                raise self._error("has a number alone: it is followed by * and a kernel, as in 2*gaussian")
            self._step()
        factors = [self._factor()]
        while self._symbol == "*":
            self._step()
            factors.append(self._factor())
        return copies * reduce(mul, factors)

    def _factor(self) -> KernelExpression:
        name = self._name
        if name and name != "exp":
            self._step()
            return named(name)
        if name:
            self._step()
        if self._symbol != "(":
            what = shown(self._next) if self._next else "its end"
            accepted = "a parenthesis" if name else "a kernel, exp(…) or a parenthesis"
            raise self._error(f"has {what} where {accepted} is accepted")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"is nested deeper than {_DEEPEST} levels")
        self._step()
        inner = self.sum()
        self.expect(")")
        self._depth -= 1
        return inner.exp() if name else inner

    def _step(self) -> None:
        self._number, self._name, self._symbol = next(self._tokens, ("", "", ""))
        self._next = self._number or self._name or self._symbol

    def _error(self, problem: str) -> InputError:
        return InputError(f"expression {shown(self._text)} {problem}")


def _sum(terms: Iterable[Term]) -> KernelExpression:
    copies: dict[tuple[Factor, ...], int] = {}
    for term in terms:
        copies[term.factors] = copies.get(term.factors, 0) + term.copies
    if ("constant",) in copies:
        copies["constant",] = 1
    by_text = {str(Term(1, factors)): Term(number, factors) for factors, number in copies.items()}
    return KernelExpression(tuple(by_text[text] for text in sorted(by_text)))


def _product(given: Iterable[Factor]) -> KernelExpression:
    factors = list(given)
    for name in _CLOSED:
        if name in factors:
            factors = [name, *(factor for factor in factors if factor != name)]
    inner = [factor.inner for factor in factors if isinstance(factor, Exponential)]
    if inner:
        factors = [factor for factor in factors if not isinstance(factor, Exponential)]
        factors.append(Exponential(reduce(add, inner)))
    factors = [factor for factor in factors if factor != "constant"] or ["constant"]
    if len(factors) == 1 and isinstance(factors[0], KernelExpression):
        return factors[0]
    ordered = sorted(factors, key=lambda factor: (not isinstance(factor, str), str(factor)))
    return KernelExpression((Term(1, tuple(ordered)),))


def _num_kernels(factor: Factor) -> int:
    if isinstance(factor, str):
        return 1
    return factor.inner.num_kernels if isinstance(factor, Exponential) else factor.num_kernels
