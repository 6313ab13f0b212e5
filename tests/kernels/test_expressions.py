"""Expressions: reading and printing are inverse, and equal expressions have one spelling."""

import random

import pytest

from nadaraya.errors import InputError
from nadaraya.kernels.expressions import KERNEL_NAMES, KernelExpression, named, parse_expression


def drawn(draw: random.Random, depth: int = 3) -> str:
    """A random expression as a person might write it."""
    form = draw.choice(("name", "sum", "product", "exp", "copies")) if depth else "name"
    if form == "name":
        return draw.choice(KERNEL_NAMES)
    if form == "exp":
        return f"exp( {drawn(draw, depth - 1)} )"
    if form == "copies":
        return f"{draw.randint(1, 3)}*({drawn(draw, depth - 1)})"
    parts = [f"({drawn(draw, depth - 1)})" for _ in range(draw.randint(2, 3))]
    return draw.choice(("+", " + ") if form == "sum" else ("*", " * ")).join(parts)


@pytest.mark.parametrize("seed", range(200))
def test_reading_and_printing_are_inverse(seed: int) -> None:
    expression = parse_expression(drawn(random.Random(seed)))
    again = parse_expression(str(expression))
    assert again == expression
    assert str(again) == str(expression)
    assert hash(again) == hash(expression)


@pytest.mark.parametrize("seed", range(100))
def test_sums_and_products_commute_and_associate(seed: int) -> None:
    a, b, c = (parse_expression(drawn(random.Random(3 * seed + i), depth=2)) for i in range(3))
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert 2 * (a + b) == 2 * a + 2 * b
    assert (a + b).exp() == a.exp() * b.exp()
    assert a.num_terms + b.num_terms >= (a + b).num_terms >= 1


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("4*exponential*periodic + rq", "4*exponential*periodic + rq"),
        ("matern32 + 2*(gaussian*periodic)", "2*gaussian*periodic + matern32"),
        ("rq + rq", "2*rq"),
        ("gaussian*rq*gaussian", "gaussian*rq"),
        ("2*(3*rq + periodic)", "2*periodic + 6*rq"),
        ("constant*rq + 3*constant", "constant + rq"),
        ("(rq + periodic)*constant", "periodic + rq"),
        ("exp(rq)*periodic*exp(periodic)", "periodic*exp(periodic + rq)"),
        ("(rq + periodic)*gaussian", "gaussian*(periodic + rq)"),
        ("periodic*periodic", "periodic*periodic"),
    ],
)
def test_spellings(text: str, spelling: str) -> None:
    assert str(parse_expression(text)) == spelling


def test_a_shared_factor_is_not_multiplied_out() -> None:
    shared, apart = (
        parse_expression("rq*(gaussian + periodic)"),
        parse_expression("rq*gaussian + rq*periodic"),
    )
    assert shared != apart
    assert (shared.num_kernels, apart.num_kernels) == (3, 4)
    assert parse_expression("2*(3*rq)*periodic").num_kernels == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rq*periodc", "did you mean 'periodic'"),
        ("Exp(rq)", "did you mean 'exp'"),
        ("rq + ", "has its end where a kernel, exp(…) or a parenthesis is accepted"),
        ("", "has its end where a kernel"),
        ("(rq", "has its end where ')', + or * is accepted"),
        ("rq)", "has ')' where its end, + or * is accepted"),
        ("rq rq", "has 'rq' where its end, + or * is accepted"),
        ("rq*2", "has '2' where a kernel"),
        ("3", "has a number alone: it is followed by * and a kernel, as in 2*gaussian"),
        ("0*rq", "has 0 copies: 1 to 4096 are accepted"),
        ("9" * 500 + "*rq", "copies: 1 to 4096 are accepted"),
        ("exp + rq", "has '+' where a parenthesis is accepted"),
        ("rq**2", "has '*' where a kernel"),
        ("__import__('os')", "kernel in an expression must be one of"),
        ("(" * 17 + "rq" + ")" * 17, "is nested deeper than 16 levels"),
        ("2*(4096*rq)*periodic", "must be one of at most 4096 kernels"),
        ("rq+" * 400 + "rq", "must be a text of at most 1000 characters"),
        (8, "must be a text of at most 1000 characters"),
    ],
)
def test_what_is_no_expression_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_expression(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_names_make_expressions() -> None:
    assert named("rq") * named("periodic") + 2 * named("rq") == parse_expression("2*rq + periodic*rq")
    assert isinstance(named("rq").exp(), KernelExpression)
    with pytest.raises(InputError, match="kernel in an expression must be one of"):
        named("cosine")
