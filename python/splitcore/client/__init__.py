"""Clients: of the placement service, and of the protocol that workers speak with a daemon (`splitcore.client.worker`).

`PlacementClient` and `AsyncPlacementClient` have a method for each call of the service, give frozen dataclasses, and
raise children of `splitcore.SplitcoreError`. They need httpx2 (``pip install splitcore[client]``).
"""

from splitcore.client.errors import AnswerError, ServiceError, SessionError, UnreachableError
from splitcore.client.placements import PlacementClient
from splitcore.client.placements_async import AsyncPlacementClient
from splitcore.client.results import (
    Ask,
    BatchResult,
    Books,
    CostKnot,
    Costs,
    Counters,
    Decision,
    Event,
    Events,
    Handoff,
    Limits,
    Live,
    Load,
    Lost,
    MachineBlocks,
    MachineRef,
    MachineReport,
    MachineRow,
    NewMachine,
    Overview,
    Placement,
    PoolView,
    Refusal,
    Reported,
    Spread,
    Why,
)

__all__ = [
    "AnswerError",
    "Ask",
    "AsyncPlacementClient",
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
    "PlacementClient",
    "PoolView",
    "Refusal",
    "Reported",
    "ServiceError",
    "SessionError",
    "Spread",
    "UnreachableError",
    "Why",
]
