"""What the placement service is asked and answers. Units stand last in names."""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Ask",
    "BatchResult",
    "Books",
    "CostKnot",
    "Costs",
    "Counters",
    "Decision",
    "Event",
    "Events",
    "Handoff",
    "Limits",
    "Live",
    "Load",
    "Lost",
    "MachineBlocks",
    "MachineRef",
    "MachineReport",
    "MachineRow",
    "NewMachine",
    "Overview",
    "Placement",
    "PoolView",
    "Refusal",
    "Reported",
    "Spread",
    "Why",
]

Role = Literal["prompt", "token", "mixed"]
State = Literal["up", "away", "quarantined", "draining", "lost"]
Step = Literal["own", "mixed", "opposite", "least-of-all", "pinned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request to be placed."""

    prompt_tokens: int
    max_new_tokens: int
    request_id: int | None = None
    """Unique among live requests; the service gives one where it is None."""
    priority: int = 0
    class_: int = 0
    """Of the service objective; `PlacementClient.set_class` gives it limits."""
    resumable: bool = True
    """Whether it may go on elsewhere after a fault."""
    pin_token: str | None = None
    """The machine that must decode it."""


@dataclass(frozen=True, slots=True)
class MachineRef:
    """A machine as engines know it."""

    name: str
    url: str | None


@dataclass(frozen=True, slots=True)
class Why:
    """Why it is this pair: where each was found, its load before, and who would have been next."""

    prompt_step: Step
    token_step: Step
    prompt_load: int
    token_load: int
    runner_up: str | None


@dataclass(frozen=True, slots=True)
class Placement:
    """A pair of machines for one attempt of a request."""

    request_id: int
    attempt: int
    """Take a new one as a new order: what is told of an older one is late."""
    prompt: MachineRef
    token: MachineRef
    transfer: str | None
    """``"serialized"`` or ``"layer-wise"``; None on one machine."""
    lease_s: float | None
    why: Why

    @property
    def is_whole(self) -> bool:
        """Whether one machine does it all."""
        return self.prompt.name == self.token.name


@dataclass(frozen=True, slots=True)
class Refusal:
    """What went wrong with one of many."""

    message: str
    type: str
    param: str | None
    code: str


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one of many would have been answered alone."""

    status: int
    placement: Placement | None = None
    error: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """Where a live request is."""

    request_id: int
    state: Literal["placed", "parked"]
    delivered: int
    """Output tokens that its client has."""
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened without a call."""

    seq: int
    type: Literal["placed", "parked", "expired", "failed", "drained"]
    placement: Placement | None = None
    request_id: int | None = None
    reason: str | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """Some of them, in order."""

    events: tuple[Event, ...]
    next: int
    """Ask since this one."""
    missed: int
    """How many are no longer kept."""


@dataclass(frozen=True, slots=True)
class CostKnot:
    """One measured point."""

    at: int
    ns: int


@dataclass(frozen=True, slots=True)
class Costs:
    """What passes take, as `splitcore.schema.CostTable`."""

    prefill: tuple[CostKnot, ...]
    decode: tuple[CostKnot, ...]
    context_ns_per_1024_tokens: int
    pass_tokens_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMachine:
    """A machine that joins."""

    name: str
    role: Role
    kv_blocks: int
    url: str | None = None
    block_tokens: int = 16
    speed_weight: int = 1
    link_bytes_per_s: int | None = None
    transfer_fixed_cost_s: float = 0.005
    costs: Costs | None = None


@dataclass(frozen=True, slots=True)
class MachineBlocks:
    """KV blocks by a machine's last report."""

    total: int
    free: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine that is here."""

    name: str
    url: str | None
    role: Role
    pool: Role
    state: State
    legs: int
    prompt_pending_tokens: int
    kv_tokens: int
    kv_capacity_tokens: int
    blocks: MachineBlocks | None = None
    """Of a service with workers of its own."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A live request."""

    request_id: int
    state: Literal["placed", "parked"]
    attempt: int | None
    prompt: str | None
    """The machine of its prompt."""
    token: str | None
    """The machine of its output."""
    transfer: str | None
    output_tokens: int
    name: str | None = None
    """What the client calls it; this and the next ones of a service with workers of its own."""
    prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    age_ms: int | None = None
    """Since it is known to this service."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Some of the live requests."""

    live: int
    """How many there are in all."""
    requests: tuple[RequestRow, ...]
    """By their ids."""
    next: int | None
    """The id to go on from, where there are more."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is booked on a machine."""

    machine: str
    pool: Role
    state: State
    legs: int
    prompt_pending_tokens: int
    kv_tokens: int
    kv_capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Lost:
    """What became of the requests of a machine that was lost."""

    placed: tuple[int, ...]
    parked: tuple[int, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """What a machine holds now."""

    machine: str
    kv_tokens: int | None = None
    accepts: bool = True
    """Whether it wants new work."""


@dataclass(frozen=True, slots=True)
class Reported:
    """How many reports were of machines that are here, and the names of the others."""

    applied: int
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a class; None is no limit."""

    class_: int
    ttft_s: float | None
    tbt_s: float | None


@dataclass(frozen=True, slots=True)
class Counters:
    """What the service has counted since its start."""

    placed: int
    rejected: int
    finished: int
    cancelled: int
    failed: int
    parked: int
    faults: int
    to_mixed: int
    to_home: int
    late: int
    refused: int = 0
    relieved: int = 0
    resent: int = 0
    adopted: int = 0


@dataclass(frozen=True, slots=True)
class Books:
    """A recount of everything."""

    ok: bool
    fault: str | None
    live: int
    parked: int
    counters: Counters


@dataclass(frozen=True, slots=True)
class Spread:
    """One number over the machines of a pool."""

    mean: float
    max: float
    std_dev: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool in numbers."""

    pool: Role
    machines: int
    """That take work."""
    queue_tokens: Spread
    kv_usage: Spread
    """Share of KV tokens in use."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A placement, or a request turned away (`rejected`), and why."""

    age_ms: int
    request_id: int
    name: str | None = None
    """What the client calls it; of a service with workers of its own."""
    attempt: int | None = None
    prompt: str | None = None
    token: str | None = None
    transfer: str | None = None
    prompt_step: Step | None = None
    token_step: Step | None = None
    prompt_load: int | None = None
    token_load: int | None = None
    runner_up: str | None = None
    rejected: str | None = None


@dataclass(frozen=True, slots=True)
class Handoff:
    """KV on its way between workers of the service."""

    request_id: int
    from_: str
    to: str
    transfer: str | None
    prompt_tokens: int
    stage: str
    prefill_ms: float | None
    exposed_ms: float | None
    """What the transfer took beyond the prefill."""
    name: str | None = None
    """What the client calls the request."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page shows."""

    live: int
    parked: int
    """Of these, those that wait for a machine."""
    pools: tuple[PoolView, ...]
    machines: tuple[MachineRow, ...]
    """The first 200: those that something is the matter with, then the rest. Lost ones are left out."""
    decisions: tuple[Decision, ...]
    """The last ones, newest first."""
    counters: Counters
    handoffs: tuple[Handoff, ...] | None = None
    """The last ones, newest first; of a service with workers of its own."""
    machines_total: int | None = None
    """How many machines there are, lost ones left out."""
    epoch: int | None = None
    """Higher than that of any earlier start of a service with workers of its own."""
    uptime_ms: int | None = None
    """Since its start."""
    output_tokens: int | None = None
    """Given to clients so far; of a service with workers of its own."""
