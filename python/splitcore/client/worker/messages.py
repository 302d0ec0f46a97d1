"""What a worker and its daemon tell each other, as far as Python gives it a shape.

Commands, notices, claims and reports are the scheduler's own and stay plain data, as `splitcore.Machine` takes and
gives them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Literal

__all__ = [
    "Command",
    "Descriptor",
    "Identity",
    "Key",
    "MachineId",
    "PeerAddress",
    "Registration",
    "Sampling",
    "Welcome",
]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One attempt of a request."""

    request: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MachineId:
    """A place in the service, and which start of a worker is in it."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where another worker is: both texts are empty if it is not there any more."""

    machine: MachineId
    peer: str
    """Where it takes connections of other workers."""
    transfer: str
    """Where its transports are, in their own words."""
    key: str = field(default="", repr=False)
    """What whoever dials it must show to know, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. The draw of output token *i* depends on the seed and *i* alone."""

    temperature: float
    """0 is greedy."""
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What an engine must know of a request."""

    name: str
    """The client's."""
    prompt: tuple[int, ...]
    """Token ids: the client's prompt, and behind it the output tokens of earlier attempts."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    note: str = ""
    """The daemon's own: it goes back as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a worker is."""

    name: str
    """Unique in the service."""
    incarnation: int
    """Higher with each start of a worker of this name: the seconds since 2026 will do."""
    model: str
    layout: Mapping[str, Any]
    """How KV lies in its blocks, as the protocol says it."""
    blocks: int
    peer: str
    """Where it takes connections of other workers: ``host:port``, or ``unix:/path``."""
    transfer: str
    """Where its transports are, in their own words."""
    context: int | None = None
    """Positions that its model takes, prompt and output together; None: it does not say."""
    key: str = field(default_factory=lambda: token_hex(32), repr=False)
    """What other workers that dial it must show to know, in hexadecimal: the daemon hands it out with the address."""
    index: int | None = None
    """The place that it was given in an earlier session."""
    epoch: int = 0
    """Of the newest service it has registered with; 0 for none."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The daemon takes the worker."""

    protocol: int
    machine: MachineId
    """Who it is from here on."""
    epoch: int
    ping_interval_ns: int
    silence_limit_ns: int
    frame_bytes_max: int
    proof: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a worker is and holds. `splitcore.Machine.report` and `splitcore.Machine.claims` say the last two."""

    role: Literal["prompt", "token", "mixed"]
    kv_capacity_tokens: int
    report: Mapping[str, Any]
    claims: Sequence[Mapping[str, Any]] = ()
    speed_weight: int = 1
    link: Mapping[str, Any] | None = None
    costs: Mapping[str, Any] | None = None
    descriptors: Mapping[Key, Descriptor] = field(default_factory=dict)
    """What each claim is about that is not ``"closing"``; sent where the service is not the one of the last session."""


@dataclass(frozen=True, slots=True)
class Command:
    """An order. `splitcore.Machine.handle` takes it as ``{"type": "command", "epoch", "seq", "command"}``."""

    epoch: int
    seq: int
    command: dict[str, Any]
    """With its ``type``: reserve, compute, send, start, abort, keep, release or confirm."""
    descriptor: Descriptor | None
    """Of reserve, compute and keep."""
    peer: PeerAddress | None
    """Of reserve and send: the other machine."""

    @property
    def event(self) -> dict[str, Any]:
        """The event that `splitcore.Machine.handle` takes."""
        return {"type": "command", "epoch": self.epoch, "seq": self.seq, "command": self.command}
