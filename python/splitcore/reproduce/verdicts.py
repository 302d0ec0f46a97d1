"""When a published claim holds: the rule, applied to numbers and never to names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from splitcore import _native

__all__ = ["RULE", "Band", "Estimate", "Verdict", "all_of", "estimate", "exactly", "judge"]


class Verdict(Enum):
    """What is said of a claim."""

    AGREES = "agrees"
    DIRECTION = "direction only"
    FAILS = "does not hold"
    OPEN = "cannot be shown"


RULE = f"""\
A claim is a number with a band around it, or a limit, and where there is one the *neutral* value, at which nothing
would be claimed (a ratio of 1, a loss of 0). Ours is a mean over seeds with its 95 % interval (Student's t; of ratios
and differences the pairs of the same seed, that is of the same requests), wider at both ends by what the bisection of
rates leaves open. The first that applies:

1. *{Verdict.AGREES.value}*: the mean lies in the band and the interval lies on the claimed side of the neutral value.
   Without a neutral value the whole interval lies in the band.
2. *{Verdict.DIRECTION.value}*: the mean lies outside the band, and the interval on the claimed side of the neutral
   value.
3. *{Verdict.FAILS.value}*: the interval has nothing in common with the band.
4. *{Verdict.OPEN.value}*: all else. There are too few seeds to tell, or there is no number at all; the row says why.

A claim of several comparisons has the weakest verdict of them."""


@dataclass(frozen=True)
class Estimate:
    """A number, and how sure it is."""

    mean: float
    low: float | None
    """Lower end of the 95 % interval; None without one."""
    high: float | None
    count: int
    """Of seeds; 0 for what follows from arithmetic alone."""

    def widened(self, by: float) -> "Estimate":
        """Add a share of the mean to the interval at both ends, for what a search leaves open."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.mean, self.low - by * abs(self.mean), self.high + by * abs(self.mean), self.count)


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate a mean from independent values.

    Args:
        values: At least one.

    Returns:
        The mean with the interval of Student's t; without one of a single value.
    """
    mean, interval = _native.mean_interval(list(values))
    low, high = (None, None) if interval is None else (interval["low"], interval["high"])
    return Estimate(mean, low, high, len(values))


def exactly(value: float) -> Estimate:
    """Make an estimate of what has no luck in it.

    Args:
        value: It.

    Returns:
        An interval of no width.
    """
    return Estimate(value, value, value, 0)


@dataclass(frozen=True)
class Band:
    """What a claim says of a number."""

    low: float
    high: float
    neutral: float | None = None
    """Where nothing would be claimed."""

    @classmethod
    def about(cls, value: float, within: float, neutral: float | None = None) -> "Band":
        """Take `value` give or take `within`."""
        return cls(value - within, value + within, neutral)

    @classmethod
    def above(cls, limit: float) -> "Band":
        """Take all beyond a limit, which is neutral itself."""
        return cls(limit, inf, limit)

    @classmethod
    def below(cls, limit: float) -> "Band":
        """Take all under a limit, which is neutral itself."""
        return cls(-inf, limit, limit)


def judge(band: Band, found: Estimate | None) -> Verdict:
    """Hold an estimate against a claim.

    Args:
        band: The claim.
        found: Ours; None where there is none.

    Returns:
        The verdict by `RULE`.
    """
    if found is None or found.low is None or found.high is None:
        return Verdict.OPEN
    if band.neutral is None:
        if band.low <= found.low and found.high <= band.high:
            return Verdict.AGREES
    else:
        is_up = band.low + band.high > 2 * band.neutral
        is_beyond = found.low > band.neutral if is_up else found.high < band.neutral
        if is_beyond:
            return Verdict.AGREES if band.low <= found.mean <= band.high else Verdict.DIRECTION
    if found.high < band.low or found.low > band.high:
        return Verdict.FAILS
    return Verdict.OPEN


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Join the verdicts of a claim of several comparisons.

    Args:
        verdicts: At least one.

    Returns:
        The weakest.
    """
    order = (Verdict.AGREES, Verdict.DIRECTION, Verdict.OPEN, Verdict.FAILS)
    return max(verdicts, key=order.index)
