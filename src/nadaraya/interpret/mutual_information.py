"""Mutual information of characters by the distance between them, and banks that start from it."""

import numpy as np

from nadaraya.errors import must_be
from nadaraya.kernels.fitting import fit_bank

_MOST_KINDS = 4096  # tables of pairs have the square of it


def mutual_information(text: str | np.ndarray, max_lag: int = 256, *, corrected: bool = False) -> np.ndarray:
    """Mutual information of two characters that stand r characters apart (Li 1990).

    I(r) = Σ_ab p_r(a, b) log (p_r(a, b) / (p_r(a) p_r(b))), p_r being frequencies of pairs at distance r.
    That of independent characters is above 0 by about (K − 1)² / 2n, for K kinds and n pairs.

    Args:
        text: any text, or (n,) numbers of its tokens.
        max_lag: the longest distance, below the length of the text. Default 256.
        corrected: without that bias to first order (Miller 1955; Roulston 1999), which takes values around
            0 for independent characters. Default False.

    Returns:
        I at distances 0 to max_lag, (max_lag + 1,), float64, in nats; at 0 it is the entropy of a character.

    Raises:
        InputError: max_lag is not between 1 and the length of the text less 1, or there are more than 4096
            kinds of tokens.

    >>> from nadaraya.interpret import mutual_information
    >>> mutual_information("ab" * 500, max_lag=2).round(3)  # each character tells all others
    array([0.693, 0.693, 0.693])
    """
    if isinstance(text, str):
        text = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    codes = np.asarray(text)
    if codes.ndim != 1 or not 1 <= max_lag < len(codes):
        raise must_be("max_lag", f"from 1 to {max(codes.size - 1, 1):,}, the text less one", max_lag)
    kinds, numbers = np.unique(codes, return_inverse=True)
    if len(kinds) > _MOST_KINDS:
        raise must_be("kinds of tokens in text", f"at most {_MOST_KINDS:,}", len(kinds))
    found = np.empty(max_lag + 1)
    for lag in range(max_lag + 1):
        pairs = numbers[: len(numbers) - lag] * len(kinds) + numbers[lag:]
        counts = np.bincount(pairs, minlength=len(kinds) ** 2).reshape(len(kinds), len(kinds))
        total, rows, columns = counts.sum(), counts.sum(1), counts.sum(0)
        a, b = np.nonzero(counts)
        joint = counts[a, b]
        logs = np.log(joint) + np.log(total) - np.log(rows[a]) - np.log(columns[b])
        found[lag] = (joint * logs).sum() / total
        if corrected:
            freedom = len(joint) - np.count_nonzero(rows) - np.count_nonzero(columns) + 1
            found[lag] -= freedom / (2 * total)
    return found


def corpus_start(
    text: str | np.ndarray,
    num_terms: int,
    *,
    max_lag: int = 256,
    periodic: bool | str = True,
    added: bool = False,
) -> dict[str, list[float]]:
    """The start of a bank by which a token weighs as much as it tells about the token to be predicted.

    The key at lag r is r + 1 tokens ahead of the token that the query predicts: the bank is fitted to
    log I(r + 1), the corrected `mutual_information`; what is below 1e-4 of the highest counts as that much.
    Some millions of characters are enough.

    Args:
        text: the training text, or (n,) numbers of its tokens.
        num_terms: M.
        max_lag: number of lags that the fit sees, the context, in tokens. Default 256.
        periodic, added: as for `fit_bank`: `gpa-mul` and `decay` multiply, `gpa` and `gpa-rope` add.

    Returns:
        Numbers for each term by name: the option `init` of a variant, in Python and in a recipe.

    Raises:
        InputError: a text whose tokens tell nothing about each other, or as for `mutual_information`.

    >>> from nadaraya import variants
    >>> from nadaraya.interpret import corpus_start
    >>> start = corpus_start("to be or not to be, " * 50, num_terms=2, max_lag=30)
    >>> sorted(start)
    ['alpha', 'length', 'sigma', 'tau']
    >>> layer_arguments = variants.get("gpa-mul", num_terms=2, init=start)
    """
    information = mutual_information(text, max_lag, corrected=True)[1:]
    highest = information.max()
    if not highest > 0:
        raise must_be("text", "one whose tokens tell something about each other", f"{highest:.2g} nats")
    logits = np.log(np.maximum(information, 1e-4 * highest))
    return fit_bank(logits, num_terms, periodic=periodic, added=added)
