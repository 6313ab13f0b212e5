"""The candidates of a search over kernel expressions, and how far the losses that are known take it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import groupby
from operator import add, mul
from statistics import mean, stdev

from nadaraya.errors import must_be
from nadaraya.kernels import ComposedKernel
from nadaraya.kernels.expressions import Exponential, KernelExpression, Term, parse_expression

MOST_KERNELS = 64  # per head, of an expression that a search makes
DEFAULT_BASES = ("constant", "exponential", "gaussian", "matern32", "periodic", "rq")
_ENDS = {"rounds": (0, 20), "beam": (1, 16), "seeds": (3, 100)}
# Final validation loss of an expression with a seed, infinite where training diverged; None: not known yet.
Loss = Callable[[str, int], float | None]


@dataclass(frozen=True)
class SearchPlan:
    """The extent of a search.

    Args:
        bases: expressions that it starts from, and that its steps add, multiply and put in place.
        rounds: of steps, at most 20. Default 4.
        beam: expressions that each round keeps, at most 16. Default 1, the greedy search.
        seeds: how many, 3 to 100: the first one chooses, all others confirm. Default 3.

    Raises:
        InputError: no or other expressions, or numbers out of range.

    >>> from nadaraya.study.search import SearchPlan
    >>> SearchPlan(("rq * periodic", "gaussian")).bases
    ('periodic*rq', 'gaussian')
    """

    bases: tuple[str, ...] = DEFAULT_BASES
    rounds: int = 4
    beam: int = 1
    seeds: int = 3

    def __post_init__(self) -> None:
        if not self.bases:
            raise must_be("bases", "at least one expression", self.bases)
        spelt = dict.fromkeys(str(parse_expression(base)) for base in self.bases)
        object.__setattr__(self, "bases", tuple(spelt))
        for name, (least, most) in _ENDS.items():
            if not least <= getattr(self, name) <= most:
                raise must_be(name, f"a whole number from {least} to {most}", getattr(self, name))


def neighbours(expression: KernelExpression, bases: Sequence[KernelExpression]) -> list[KernelExpression]:
    """Expressions one step away from one, by moves like those of Duvenaud et al. (2013).

    A base is added to it or multiplied with it, or with one of its terms, or takes the place of a kernel;
    or a term gets twice as many copies. Inside parentheses and exponentials likewise. They are different
    ones of at most 64 kernels; with the bases rq and periodic those of rq are 2*rq, rq*rq, periodic + rq,
    periodic*rq and periodic.
    """
    found = dict.fromkeys(_steps(expression, bases))
    found.pop(expression, None)
    return [each for each in found if each.num_kernels <= MOST_KERNELS]


def _steps(expression: KernelExpression, bases: Sequence[KernelExpression]) -> Iterator[KernelExpression]:
    for base in bases:
        yield expression + base
        yield expression * base
    terms = [KernelExpression((term,)) for term in expression.terms]
    for index, term in enumerate(expression.terms):
        for changed in _steps_of_term(term, bases):
            yield reduce(add, [*terms[:index], *terms[index + 1 :]], changed)


def _steps_of_term(term: Term, bases: Sequence[KernelExpression]) -> Iterator[KernelExpression]:
    yield 2 * KernelExpression((term,))
    factors = [
        factor if isinstance(factor, KernelExpression) else KernelExpression((Term(1, (factor,)),))
        for factor in term.factors
    ]
    for base in bases:
        yield term.copies * reduce(mul, factors, base)
    for index, factor in enumerate(term.factors):
        steps: Iterable[KernelExpression] = bases  # one kernel is replaced
        if isinstance(factor, Exponential):
            steps = (inner.exp() for inner in _steps(factor.inner, bases))
        elif isinstance(factor, KernelExpression):
            steps = _steps(factor, bases)
        for changed in steps:
            yield term.copies * reduce(mul, [*factors[:index], *factors[index + 1 :]], changed)


@dataclass
class Candidate:
    """An expression that a search tries.

    Its gain is how far its loss is below that of its best parent, nats/token: the mean over the confirming
    seeds, None where it was not confirmed, or is a base.
    """

    expression: str  # its one spelling
    round: int  # in which it is tried; 0 for the bases
    parents: tuple[str, ...]  # those kept in the round before of which a step makes it
    losses: dict[int, float] = field(default_factory=dict)  # final ones of validation that are known, by seed
    chosen: bool = False  # by the first seed, to be trained with all others
    kept: bool = False  # the next round steps from it
    gain: float | None = None
    error: float | None = None  # standard error of the gain

    @property
    def loss(self) -> float | None:
        """The mean over the confirming seeds: the first one, that chose it, would flatter it.

        None where fewer than two are known.
        """
        return mean(self.confirming) if len(self.confirming) > 1 else None

    @property
    def confirming(self) -> list[float]:
        """The losses of all seeds but the first."""
        return [loss for seed, loss in self.losses.items() if seed > 0]

    @cached_property
    def parameters_per_head(self) -> int:
        """Numbers that the kernel learns for each head."""
        return ComposedKernel(self.expression, num_heads=1).parameters_per_head


@dataclass
class Progress:
    """The state of a search."""

    candidates: list[Candidate] = field(default_factory=list)  # tried, each once, in the order of the rounds
    pending: list[tuple[str, int]] = field(default_factory=list)  # expressions and seeds to train now
    ended: str | None = None  # why nothing is left; None while something is pending

    @property
    def path(self) -> list[Candidate]:
        """The best of those that each round kept."""
        kept = (each for each in self.candidates if each.kept)
        return [min(group, key=_loss) for _, group in groupby(kept, key=lambda each: each.round)]

    @property
    def best(self) -> Candidate | None:
        """The one of the path with the lowest loss; None before the bases are confirmed."""
        return min(self.path, key=_loss, default=None)


def search_progress(plan: SearchPlan, loss: Loss) -> Progress:
    """The findings of a search and what it needs next: the same for the same losses.

    In each round every new expression is trained with the first seed. The best of those that are better than
    their parents there, twice as many as are kept, are trained with all other seeds. A candidate is kept if
    it is better than its best parent by more than the standard error of the mean difference over these other
    seeds, and is among the best of such; where there is none, the search ends. Of the bases the best on the
    first seed are kept, but for those that diverge with another one.
    """
    progress = Progress()
    for candidates, seeds in _rounds(plan, progress):
        for each in candidates:
            for seed in seeds:
                found = loss(each.expression, seed)
                if found is None:
                    progress.pending.append((each.expression, seed))
                else:
                    each.losses[seed] = found
        if progress.pending:
            break
    return progress


def _rounds(plan: SearchPlan, progress: Progress) -> Iterator[tuple[list[Candidate], Sequence[int]]]:
    """Candidates and the seeds that they are to be trained with; their losses are known when it goes on."""
    bases, known = [parse_expression(base) for base in plan.bases], dict[str, Candidate]()
    now = [Candidate(base, 0, ()) for base in plan.bases]
    for number in range(plan.rounds + 1):
        progress.candidates += now
        known |= {each.expression: each for each in now}
        yield now, [0]
        promising = sorted((each for each in now if _promises(each, known)), key=lambda each: each.losses[0])
        better, room = list[Candidate](), 2 * plan.beam if number else plan.beam
        while promising and room:
            chosen, promising = promising[:room], promising[room:]
            for each in chosen:
                each.chosen = True
            yield chosen, range(1, plan.seeds)
            better += [each for each in chosen if _is_better(each, known)]
            # The next bases stand in for those that diverged with another seed.
            room = 0 if number else plan.beam - len(better)
        kept = sorted(better, key=_loss)[: plan.beam]
        for each in kept:
            each.kept = True
        if not kept:
            progress.ended = (
                "no candidate was better than its parent by more than the standard error"
                if number
                else "the training of every base diverged"
            )
            return
        parents: dict[str, list[str]] = {}
        for each in kept:
            for made in map(str, neighbours(parse_expression(each.expression), bases)):
                if made not in known:
                    parents.setdefault(made, []).append(each.expression)
        now = [Candidate(made, number + 1, tuple(of)) for made, of in parents.items()]
    progress.ended = f"after {plan.rounds} rounds"


def most_runs(plan: SearchPlan, loss: Loss) -> int:
    """About how many runs a search still needs at the most: where in every round the longest are the best."""
    asked = set()

    def pretended(expression: str, seed: int) -> float:
        found = loss(expression, seed)
        if found is None:
            asked.add((expression, seed))
            return -float(len(expression))
        return found

    search_progress(plan, pretended)
    return len(asked)


def _promises(candidate: Candidate, known: dict[str, Candidate]) -> bool:
    """Return whether it is better with the first seed than all of its parents."""
    limit = min((known[parent].losses[0] for parent in candidate.parents), default=math.inf)
    return candidate.losses[0] < limit


def _is_better(candidate: Candidate, known: dict[str, Candidate]) -> bool:
    """Return whether it is better than its best parent beyond the noise of the seeds, pair by pair."""
    parent = min((known[name] for name in candidate.parents), key=_loss, default=None)
    if parent is None or math.inf in (_loss(candidate), _loss(parent)):
        return _loss(candidate) < math.inf
    gains = [before - after for before, after in zip(parent.confirming, candidate.confirming, strict=True)]
    candidate.gain, candidate.error = mean(gains), stdev(gains) / math.sqrt(len(gains))
    return candidate.gain > candidate.error


def _loss(candidate: Candidate) -> float:
    return math.inf if candidate.loss is None else candidate.loss
