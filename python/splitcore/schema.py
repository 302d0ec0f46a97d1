"""The shapes of the plain dicts that a run returns, and of the JSON that the command line writes.

Units stand last in names. Percentiles are over all submitted requests, and one that was rejected, failed or did not
finish counts as infinitely late; ``None`` stands for infinity, and for no value at all.
"""

from typing import Any, TypedDict

__all__ = [
    "OUTCOMES",
    "PERCENTILES",
    "Distribution",
    "Gaps",
    "PoolUse",
    "RequestCounts",
    "Slo",
    "Speed",
    "Spread",
    "Summary",
    "Transfers",
]

OUTCOMES = ("finished", "rejected", "failed", "unfinished")
PERCENTILES = ("p50", "p90", "p99")


class Distribution(TypedDict):
    """One latency over all submitted requests, in the unit its key in `Summary` ends with."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    max: float | None


class Gaps(Distribution):
    """The gaps between tokens, all requests together; percentiles to three digits."""

    count: int


class RequestCounts(TypedDict):
    """How the requests of a run ended; the four outcomes add up to `submitted`."""

    submitted: int
    finished: int
    rejected: int
    failed: int
    unfinished: int


class Slo(TypedDict):
    """One of the nine limits: a percentile of the slowdown against the idle reference, met when `value < limit`."""

    metric: str
    """``"ttft"``, ``"tbt"`` or ``"e2e"``."""
    percentile: int
    limit: float
    value: float | None
    met: bool


class Transfers(TypedDict):
    """The KV handoffs of a run."""

    serialized: int
    layer_wise: int
    bytes: int
    visible_s: Distribution
    """The part of each transfer that prefill did not hide."""


class Spread(TypedDict):
    """A share between 0 and 1 over the machines of a pool."""

    min: float
    mean: float
    max: float


class PoolUse(TypedDict):
    """The machines of one home role."""

    name: str
    """``"prompt"``, ``"token"``, ``"mixed"`` or ``"unsplit"``."""
    machines: int
    utilisation: Spread
    """The share of the run that a machine was computing."""
    moves: int
    """How often a machine of this pool changed to the mixed pool."""


class Speed(TypedDict):
    """How fast the simulator ran; the only part of a summary that differs between two runs of one seed."""

    wall_s: float
    events: int
    events_per_s: float


class Summary(TypedDict):
    """Everything a run tells in numbers."""

    config: dict[str, Any]
    """The options with every default filled in, by their names in `splitcore.simulate`."""
    requests: RequestCounts
    ttft_s: Distribution
    tbt_s: Distribution
    """Per request, as the SLOs of the cost model count it."""
    tpot_s: Distribution
    """Per request: (E2E - TTFT) / (output tokens - 1)."""
    e2e_s: Distribution
    gap_s: Gaps
    """Every gap between two tokens of a request."""
    slos: list[Slo]
    slos_met: bool
    attainment: float
    """The share of requests within all three limits."""
    transfers: Transfers
    pools: list[PoolUse]
    outside: dict[str, int]
    """Look-ups beyond the measured range of the cost model, by kind."""
    digest: str
    """Equal for equal runs, whatever the machine, process or number of threads."""
    speed: Speed
