"""The shapes of what the planner tells, which is also the JSON that the command line writes.

Units stand last in names; where there is none, a rate is in requests a second. ``None`` stands for no value.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

__all__ = [
    "GOALS",
    "THRESHOLDS",
    "Attainment",
    "Binding",
    "Candidate",
    "Capacity",
    "Cell",
    "Chosen",
    "ClassSlo",
    "ClusterOptions",
    "Design",
    "Failing",
    "Finding",
    "Goal",
    "Interval",
    "Plan",
    "Price",
    "Probe",
    "RunOptions",
    "SeedCapacity",
    "SloSet",
    "Spare",
    "TrafficClass",
    "Verdict",
]

Goal = Literal["min-cost", "min-power", "min-space", "max-throughput"]
GOALS: tuple[Goal, ...] = ("min-cost", "min-power", "min-space", "max-throughput")


class Thresholds(TypedDict, total=False):
    """Keywords of `splitcore.simulate` for what the schedulers hold things against; None is as they have it."""

    prompt_pending_tokens_max: int | None
    kv_fill_max: float | None
    mixed_hold_s: float | None
    priority_ageing_s: float | None
    attempts_max: int | None
    retry_interval_s: float | None
    park_limit_s: float | None
    rejoin_limit_s: float | None
    batch_tokens_max: int | None
    batch_requests_max: int | None
    prefill_chunk_tokens: int | None
    sit_out_max: int | None
    evictions_max: int | None
    block_tokens: int | None
    handoff_floor_blocks: int | None
    quarantine_limit: float | None
    report_interval_s: float | None
    sends_max: int | None
    receives_max: int | None


THRESHOLDS = tuple(Thresholds.__annotations__)


class RunOptions(Thresholds, total=False):
    """Keywords of `splitcore.simulate` that `splitcore.plan` takes too."""

    machines: str | None
    model: str
    trace: str
    duration_s: float | None
    arrivals: str | None
    cv: float
    sampling: str
    seed: int
    policy: str | None
    costs: str
    profile: str | None
    transfer: str
    link_bandwidth: float | None
    contention: bool
    mixed_return: str
    reserve: str
    cut: str
    ties: str
    message_delay_s: float
    max_in_flight: int | None
    admission: str
    slo_ttft_s: float | None
    slo_tbt_s: float | None
    recovery_headroom: float
    split_from: int
    kv_limit: bool
    requests: int | None
    classes: str | Sequence[Mapping[str, Any]] | None
    invalid_rows: str
    missing_output: int | None
    later_turns: str
    tokenizer: str | None
    faults: str | None
    check: bool


class ClusterOptions(RunOptions, total=False):
    """Keywords of `splitcore.simulate` that `splitcore.capacity` takes too: also the machines."""

    prompt: str | None
    token: str | None
    mixed: str | None
    unsplit: str | None
    only: str | None


class TrafficClass(TypedDict):
    """One kind of traffic."""

    name: str
    share: float
    """Its part of the rate, in any unit."""
    priority: int
    """Where accepted requests wait, the higher goes first."""


class Attainment(TypedDict):
    """A share of requests that must keep several limits at once."""

    share: float
    limits: list[tuple[str, float]]


class ClassSlo(TypedDict):
    """The objectives of one class of traffic."""

    traffic: TrafficClass
    limits: list[dict[str, Any]]
    attainments: list[Attainment]


class SloSet(TypedDict):
    """A set of objectives: all must hold."""

    name: str
    classes: list[ClassSlo]


class Probe(TypedDict):
    """A run and what it is held against: plain data, to be judged in any process."""

    options: dict[str, Any]
    slo: SloSet
    whole: bool
    """Whether it runs to its end although an objective is lost already."""


# A word that cannot be the name of an attribute.
_OfClass = TypedDict("_OfClass", {"class": str})


class Finding(_OfClass):
    """What came of one objective of a class of traffic."""

    objective: str
    """As ``"ttft_slowdown p90"``."""
    limit: float
    found: float | None
    """None where it is infinite, or not known as the run was cut short."""
    met: bool | None


class Verdict(TypedDict):
    """What came of a probe."""

    met: bool
    findings: list[Finding]
    requests: int
    completed: int
    events: int
    cut_short: bool
    """Whether the run ended as soon as an objective was lost for certain."""
    out_of_range_lookups: int
    """Look-ups beyond the measured range of the cost model."""


class Interval(TypedDict):
    """A confidence interval."""

    low: float
    high: float


class Failing(_OfClass):
    """An objective that ends the rate of a class of traffic."""

    objective: str
    limit: float
    seeds: int
    """Seeds whose failing rate misses it."""


class SeedCapacity(TypedDict):
    """The highest rate of one workload."""

    seed: int
    max_rate: float
    """The highest rate found to hold; 0 if none did."""
    failing_rate: float | None
    """The lowest rate above it found not to hold; None if every rate tried did."""
    failing: list[Finding]
    """What was not met there."""
    out_of_range_lookups: int
    """Look-ups beyond the measured range of the cost model, at `max_rate`."""


class Capacity(TypedDict):
    """The highest rate at which a cluster keeps its objectives."""

    max_rate: float
    """Mean over seeds."""
    ci: Interval | None
    """The 95 % interval of that mean (Student's t); None of a single seed."""
    failing: list[Failing]
    """What fails just above, most seeds first."""
    gpus: int
    max_rate_per_gpu: float
    """The goodput, where the objectives are an attainment."""
    seeds: list[SeedCapacity]
    slo: str
    probes: int
    """Runs made or taken from the cache."""
    notes: list[str]
    """What a reader should know of how the answer came about, each a sentence."""


class Price(TypedDict):
    """What a machine or a cluster takes."""

    cost_per_hour: float
    """Dollars."""
    power_w: float
    """Provisioned."""
    rack_units: float


class Design(TypedDict):
    """A kind of cluster whose pool sizes are to be found: a prompt and a token machine, or an unsplit one."""

    name: str
    prompt: str | None
    token: str | None
    unsplit: str | None
    prompt_price: Price
    """Of a prompt machine, or an unsplit one."""
    token_price: Price


class Candidate(TypedDict):
    """A cluster."""

    design: str
    prompt: int
    """Prompt machines, or all of an unsplit cluster."""
    token: int
    total: Price


class Cell(TypedDict):
    """Whether a cluster of the map holds the rate."""

    candidate: Candidate
    judged: bool | None
    """None where no run was made because others already told."""
    holds: bool


class Spare(TypedDict):
    """What is left when a machine is lost."""

    lost: str
    """``"prompt"``, ``"token"`` or ``"unsplit"``."""
    holds: bool
    failing: list[Finding]


class Chosen(TypedDict):
    """The best cluster."""

    candidate: Candidate
    capacity: Capacity
    margin: float | None
    """Its highest rate over the rate asked for, less one; None without one."""
    spare: list[Spare]
    """With one machine of each pool lost, at the rate asked for or else at its highest."""


class Binding(TypedDict):
    """A limit that leaves nothing."""

    constraint: str
    """``"cost_per_hour"``, ``"power_w"``, ``"rack_units"``, ``"machines_max"`` or ``"slo"``."""
    limit: float
    needed: float | None
    """What the best cluster would need with this limit lifted; None if even that does not help."""
    text: str


class Plan(TypedDict):
    """Which cluster for which traffic."""

    best: Chosen | None
    """None if no cluster keeps objectives and limits."""
    designs: list[Candidate | None]
    """The best of each design, in the order asked."""
    design_rates: list[float | None]
    """The highest rate of each design's best; only of ``"max-throughput"``."""
    frontier: list[Candidate]
    """Clusters that hold the rate such that none that does takes less of everything, by cost."""
    map: list[Cell]
    """Every pair of pool sizes that was judged or follows from one; empty of ``"max-throughput"``."""
    binding: list[Binding]
    """Why there is no best."""
    probes: int
    """Runs made or taken from the cache."""
