"""What a load has met, by the simulator's rules.

Percentiles are over all requests, and one that did not finish counts as infinitely late.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from splitcore.load.plan import Request
from splitcore.schema import Distribution, Gaps, RequestCounts

__all__ = ["LoadSummary", "Outcome", "Seen", "quantiles", "summarise"]

Outcome = Literal["completed", "rejected", "failed", "unfinished"]


class LoadSummary(TypedDict):
    """A load in numbers: latencies as in `splitcore.schema.Summary`, from the arrival that was planned.

    Of a load that was interrupted, the requests that had been sent; those under way are ``unfinished``.
    """

    url: str
    model: str
    trace: str
    seed: int
    rate_rps: float | None
    """Arrivals a second: as asked for, else the mean of those that were sent; None where all come at once."""
    arrivals_s: float
    """From the first arrival to the last. Over a short time the mean may be far from the rate that was asked for."""
    requests: RequestCounts
    errors: dict[str, int]
    """Why requests were rejected or failed, and how many; the most frequent first."""
    first_error: str | None
    """What was answered to the first of them that was sent, in the service's own words."""
    ttft_s: Distribution
    tbt_s: Distribution
    """Per request: (E2E - TTFT) / (output tokens - 1)."""
    e2e_s: Distribution
    gaps_s: Gaps
    """Every gap between two events with text; a service may put several tokens into one."""
    prompt_tokens: int
    """Of completed requests, as planned."""
    output_tokens: int
    """Of completed requests, as counted by the service if it counts, else by events."""
    output_tokens_per_s: float | None
    duration_s: float
    """From the first arrival to the last end, or to the interruption."""
    sent_late_s: float
    """How much later than planned a request was sent, at most. Where this is much, the sender was the bottleneck."""
    slo_ttft_s: float | None
    slo_tbt_s: float | None
    attainment: float | None
    """The share of requests that completed and kept both limits; None without limits."""


@dataclass(slots=True)
class Seen:
    """One request as its client saw it. Times are seconds from the start of the load."""

    request: Request
    sent_s: float = math.inf
    """Infinite until it is sent."""
    outcome: Outcome = "unfinished"
    why: str = ""
    """What is counted: alike for all that failed alike."""
    said: str = ""
    """What the service, or the connection, says beyond that."""
    events_s: list[float] = field(default_factory=list)
    """When text came."""
    ended_s: float = 0.0
    output_tokens: int = 0

    @property
    def told(self) -> str:
        """Why it did not complete, in full."""
        return f"{self.why}: {self.said}" if self.said else self.why

    @property
    def ttft_s(self) -> float:
        """From its arrival to the first token."""
        return self.events_s[0] - self.request.arrival_s if self._is_whole else math.inf

    @property
    def e2e_s(self) -> float:
        """From its arrival to the last token."""
        return self.events_s[-1] - self.request.arrival_s if self._is_whole else math.inf

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens; a request of one token has none."""
        if not self._is_whole:
            return math.inf
        if self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)

    @property
    def _is_whole(self) -> bool:
        return self.outcome == "completed" and bool(self.events_s)


def quantiles(values: Iterable[float]) -> Distribution:
    """Work out mean, percentiles and maximum; None stands for infinity, and for no values at all.

    Args:
        values: Some of which may be infinite.

    Returns:
        The numbers; percentiles are linear between values.
    """
    ordered = sorted(values)
    if not ordered:
        return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    return {
        "mean": _finite(math.fsum(ordered) / len(ordered) if math.isfinite(ordered[-1]) else math.inf),
        "p50": _finite(_percentile(ordered, 50)),
        "p90": _finite(_percentile(ordered, 90)),
        "p99": _finite(_percentile(ordered, 99)),
        "max": _finite(ordered[-1]),
    }


def _percentile(ordered: Sequence[float], percent: int) -> float:
    # In whole numbers, so that a whole rank does not touch its neighbour.
    rank, rest = divmod(percent * (len(ordered) - 1), 100)
    if rest == 0 or math.isinf(ordered[rank]):
        return ordered[rank]
    if math.isinf(ordered[rank + 1]):
        return math.inf
    return ordered[rank] + (ordered[rank + 1] - ordered[rank]) * rest / 100


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarise(
    seen: Sequence[Seen],
    *,
    url: str,
    model: str,
    trace: str,
    seed: int,
    rate_rps: float | None = None,
    slo_ttft_s: float | None = None,
    slo_tbt_s: float | None = None,
) -> LoadSummary:
    """Work out a summary.

    Args:
        seen: All requests that were sent, by arrival; at least one.
        url: Of the service.
        model: It was asked for.
        trace: Name of the workload.
        seed: Of the workload.
        rate_rps: That was asked for.
        slo_ttft_s: Limit on the time to the first token.
        slo_tbt_s: Limit on the time between tokens.

    Returns:
        The numbers.
    """
    counts: RequestCounts = {
        "submitted": len(seen), "completed": 0, "rejected": 0, "failed": 0, "cancelled": 0, "unfinished": 0,
    }  # fmt: skip
    errors: dict[str, int] = {}
    for one in seen:
        counts[one.outcome] += 1
        if one.outcome in ("rejected", "failed"):
            errors[one.why] = errors.get(one.why, 0) + 1
    gaps = [later - earlier for one in seen for earlier, later in zip(one.events_s, one.events_s[1:], strict=False)]
    first, last = seen[0].request.arrival_s, seen[-1].request.arrival_s
    duration_s = max(one.ended_s for one in seen) - first
    wrong = next((one for one in sorted(seen, key=lambda one: one.sent_s) if one.why), None)
    completed = [one for one in seen if one.outcome == "completed"]
    output_tokens = sum(one.output_tokens for one in completed)
    limits = [limit for limit in (slo_ttft_s, slo_tbt_s) if limit is not None]
    kept = sum(
        one.outcome == "completed"
        and (slo_ttft_s is None or one.ttft_s <= slo_ttft_s)
        and (slo_tbt_s is None or (one.tbt_s or 0.0) <= slo_tbt_s)
        for one in seen
    )
    return {
        "url": url,
        "model": model,
        "trace": trace,
        "seed": seed,
        "rate_rps": rate_rps or ((len(seen) - 1) / (last - first) if last > first else None),
        "arrivals_s": last - first,
        "requests": counts,
        "errors": dict(sorted(errors.items(), key=lambda item: -item[1])),
        "first_error": None if wrong is None else wrong.told,
        "ttft_s": quantiles(one.ttft_s for one in seen),
        "tbt_s": quantiles(tbt for one in seen if (tbt := one.tbt_s) is not None),
        "e2e_s": quantiles(one.e2e_s for one in seen),
        "gaps_s": {**quantiles(gaps), "count": len(gaps)},
        "prompt_tokens": sum(one.request.prompt_tokens for one in completed),
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / duration_s if duration_s > 0 else None,
        "duration_s": duration_s,
        "sent_late_s": max(one.sent_s - one.request.arrival_s for one in seen),
        "slo_ttft_s": slo_ttft_s,
        "slo_tbt_s": slo_tbt_s,
        "attainment": kept / len(seen) if limits else None,
    }
