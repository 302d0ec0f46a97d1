"""The shapes of plain data: cost tables, and what runs tell, which is also the JSON that the command line writes.

Units stand last in names. Latencies are over all submitted requests, and one that did not finish counts as infinitely
late; ``None`` stands for infinity, and for no value at all.
"""

from typing import Literal, NotRequired, TypedDict

__all__ = [
    "METRICS",
    "OUTCOMES",
    "PERCENTILES",
    "Admission",
    "CellHits",
    "ClassUse",
    "CostKnot",
    "CostTable",
    "Distribution",
    "FailedSeed",
    "Faults",
    "Gaps",
    "Limits",
    "MachineUse",
    "Metric",
    "Moves",
    "Outcome",
    "Percentile",
    "Percentiles",
    "Recovery",
    "ReplayDifference",
    "Replayed",
    "ReplayedLog",
    "RequestCounts",
    "RequestLimits",
    "SloLimits",
    "Slos",
    "Slowdowns",
    "Summary",
    "SwarmSummary",
    "Transfers",
    "VisibleTime",
]

Percentile = Literal["p50", "p90", "p99"]
PERCENTILES: tuple[Percentile, ...] = ("p50", "p90", "p99")
Metric = Literal["ttft", "tbt", "e2e"]
METRICS: tuple[Metric, ...] = ("ttft", "tbt", "e2e")
Outcome = Literal["completed", "rejected", "failed", "cancelled", "unfinished"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "rejected", "failed", "cancelled", "unfinished")


class CostKnot(TypedDict):
    """One measured point."""

    at: int
    """Tokens or requests, as the list says."""
    ns: int
    """Nanoseconds that a pass of that size takes."""


class CostTable(TypedDict):
    """What the passes of a machine take: linear between knots, which ascend, and beyond the outermost two.

    A single knot is a constant; a list has 256 knots at most.
    """

    prefill: list[CostKnot]
    """A pass over prompts, by their tokens together."""
    decode: list[CostKnot]
    """A decode pass without its context, by requests."""
    context_ns_per_1024_tokens: int
    """What 1024 tokens of context add to a decode pass, all requests of the batch together."""
    pass_tokens_max: int
    """Prompt tokens of one pass at most; a longer prompt runs alone."""


class Percentiles(TypedDict):
    """Three percentiles, linear between values."""

    p50: float | None
    p90: float | None
    p99: float | None


class Distribution(Percentiles):
    """One latency, in the unit its key in `Summary` ends with."""

    mean: float | None
    max: float | None


class Gaps(Distribution):
    """The gaps between tokens, all requests together; percentiles to three digits."""

    count: int


class RequestCounts(TypedDict):
    """How the requests of a run ended; the five outcomes add up to `submitted`."""

    submitted: int
    completed: int
    rejected: int
    failed: int
    cancelled: int
    unfinished: int


class Slowdowns(TypedDict):
    """Ratios to the same request alone on an idle DGX-A100."""

    ttft: Percentiles
    tbt: Percentiles
    e2e: Percentiles


class Limits(TypedDict):
    """Strict limits on percentiles of a slowdown."""

    p50: float
    p90: float
    p99: float


class RequestLimits(TypedDict):
    """Strict limits on the slowdowns of one request."""

    ttft: float
    tbt: float
    e2e: float


class SloLimits(TypedDict):
    """All limits."""

    ttft: Limits
    tbt: Limits
    e2e: Limits
    attainment: RequestLimits


class Slos(TypedDict):
    """How a run stands against the nine objectives."""

    met: bool
    """Whether all nine percentiles lie below their limits."""
    slowdown: Slowdowns
    limits: SloLimits
    attainment: float | None
    """The share of requests that keep all three of `SloLimits.attainment`."""


class Admission(TypedDict):
    """What arrivals were held against, and who was turned away."""

    rule: str
    """``"bounds"``, ``"early"`` or ``"predicted"``."""
    slo_ttft_s: float | None
    slo_tbt_s: float | None
    attainment: float | None
    """The share of requests that finished and kept both limits; None without limits."""
    rejected: dict[str, int]
    """Arrivals turned away by reason, as `RejectedError.reason`; those that did not occur are left out."""


class VisibleTime(TypedDict):
    """The part of the transfers that prefill did not hide."""

    mean: float | None
    p50: float | None
    p99: float | None
    max: float | None


class Transfers(TypedDict):
    """The KV handoffs of a run."""

    count: int
    bytes: int
    serialized: int
    layer_wise: int
    visible_s: VisibleTime


class Moves(TypedDict):
    """How often machines changed pools."""

    to_mixed: int
    to_home: int


class Recovery(TypedDict):
    """What faults cost; a request that meets one is resumed, restarted or failed."""

    crashes: int
    lost_work_s: float
    """Machine seconds: passes cut short, and the shares of whole passes that computed `lost_tokens`."""
    lost_tokens: int
    """KV tokens that had been computed and were computed again, or for a request given up meanwhile."""
    resumed: int
    """Times a request went on elsewhere after the tokens its client has."""
    restarted: int
    """Times a request began again from its prompt."""
    failed: int
    """Requests given up after too many attempts."""
    attainment: float | None
    """As `Slos.attainment`."""
    extra_time_s: float | None
    """Mean seconds from a crash to the next token that is new to the client of a request it met; all live requests are
    met where the Cluster is lost."""
    cluster_restarts: int
    """Times the Cluster's state was lost and rebuilt."""
    adopted: int
    """Live requests that a new Cluster took over from what machines registered; others have ended meanwhile."""
    resubmitted: int
    """Live requests that no machine had, submitted again; each is also resumed or restarted."""


class Faults(Recovery):
    """The run itself, whose requests resume, and beside it the same faults with restarts from scratch."""

    restart: Recovery


class MachineUse(TypedDict):
    """What one machine did."""

    name: str
    role: str
    """Its home pool: ``"prompt"``, ``"token"`` or ``"mixed"``; machines of an unsplit cluster are mixed."""
    hardware: NotRequired[str]
    utilisation: float | None
    """The share of the run that it was computing."""
    passes: int
    prompt_tokens: int
    decode_tokens: int
    batch_decodes_mean: float | None
    batch_decodes_max: int
    batch_prompt_tokens_mean: float | None
    peak_kv_tokens: int


class ClassUse(TypedDict):
    """What became of one class of traffic."""

    name: str
    priority: int
    slo_ttft_s: float | None
    slo_tbt_s: float | None
    attainment: float | None
    """The share of its requests that finished and kept both limits; None without limits."""
    requests: RequestCounts
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution


class Summary(TypedDict):
    """Everything a run tells in numbers."""

    requests: RequestCounts
    ttft_s: Distribution
    tbt_s: Distribution
    """Per request, as the SLOs of the cost model count it."""
    tpot_s: Distribution
    """Per request: (E2E - TTFT) / (output tokens - 1)."""
    e2e_s: Distribution
    slo: Slos
    transfer: Transfers
    admission: Admission
    classes: NotRequired[list[ClassUse]]
    """Only of runs with classes."""
    gaps_s: Gaps
    """Every gap between two tokens of a request."""
    pools: Moves
    faults: NotRequired[Faults]
    """Only of runs with faults."""
    machines: list[MachineUse]
    out_of_range_lookups: int
    """Look-ups beyond the measured range of the cost model."""
    cost_model: str
    policy: str
    model: str
    trace: str
    notes: list[str]
    """What was done with trace files that a reader should know, each a sentence."""
    transfer_mode: str
    rate_rps: float | None
    """Mean arrivals a second; None where all come at once."""
    seed: int
    evictions: int
    """Requests that lost their KV blocks and were computed again."""
    pauses: int
    """Decodes that sat out a pass."""
    events: int
    duration_s: float
    """Simulated time from 0 to the last end."""
    wall_s: float | None
    """What the run took; all else is the same for the same options."""
    digest: str
    """Equal for equal runs, whatever the machine, process or number of threads."""


class CellHits(TypedDict):
    """One cell of the table in ``docs/failures.md``."""

    state: str
    """Of a leg, as the table names it."""
    failure: str
    """What the leg met."""
    hits: int


class FailedSeed(TypedDict):
    """A seed whose world broke an invariant."""

    seed: int
    what: str
    """What did not hold, and where that is written."""
    last_events: list[str]
    """The last events and the actions that followed each."""


class SwarmSummary(TypedDict):
    """Everything a swarm tells; all but `jobs` and `wall_s` is the same for the same seeds and code."""

    version: str
    commit: str | None
    """Of the sources that were built, ``-dirty`` where they differ from it; None where that is not known."""
    from_seed: int
    """The first seed."""
    seeds: int
    jobs: int
    """Threads."""
    wall_s: float
    events: int
    """Events of the seeds that went well."""
    events_median: int
    faults_median: int
    digest: str
    """Equal where every action of every seed was."""
    counters: dict[str, int]
    """What happened in all worlds together, each by its name."""
    cells: list[CellHits]
    """Every cell that can be met."""
    failed: list[FailedSeed]
    """By seed."""


class ReplayDifference(TypedDict):
    """Where a replay and its log part."""

    file: str
    """The segment."""
    event: int
    """The event's number in the run, from 0; at the start of a segment, that of its first."""
    now_ns: int
    """The time that the event was given with."""
    happened: str
    """The event, as JSON; empty where the state at the start of a segment differs."""
    part: str
    """``"state"``, ``"answer"``, or as ``"action 3"``, counted from 0."""
    recorded: str
    """What the log has."""
    replayed: str
    """What came of it now."""


class ReplayedLog(TypedDict):
    """One log: what one process wrote of one cluster or machine."""

    name: str
    run: int
    """Which of those under the name, from 1: each start of a process begins one."""
    what: Literal["cluster", "machine"] | None
    """None where the log stops before it says so."""
    version: str
    """That wrote it."""
    begun_s: float
    """Seconds since 1970."""
    first_event: int
    """The number of the first event that is still there."""
    segments: int
    events: int
    """Events that were replayed."""
    actions: int
    """Actions that were compared."""
    end: Literal["closed", "open", "early"]
    """``"closed"`` by its writer; ``"open"`` where it just stops, since the process was killed or still runs;
    ``"early"`` where its writer gave up."""
    ended_early: str | None
    """Why it gave up."""
    difference: ReplayDifference | None
    """The first; what comes after it is not looked at."""


class Replayed(TypedDict):
    """What came of a folder of logs."""

    agrees: bool
    """Whether nothing differs anywhere."""
    logs: list[ReplayedLog]
    """By name and run."""
