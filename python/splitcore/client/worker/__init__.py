"""The protocol that workers speak with a daemon (`docs/protocol.md`), so that a worker can be written in Python alone.

`WorkerSession` and `AsyncWorkerSession` keep a session over a socket; `WorkerProtocol` is the same without one.
`splitcore.Machine` is the scheduler that belongs behind it: it takes the commands and gives the notices.
"""

from splitcore.client.worker.frames import Decoder, encode
from splitcore.client.worker.messages import (
    Command,
    Descriptor,
    Identity,
    Key,
    MachineId,
    PeerAddress,
    Registration,
    Sampling,
    Welcome,
)
from splitcore.client.worker.protocol import WorkerProtocol, prove
from splitcore.client.worker.session import WorkerSession, waits
from splitcore.client.worker.session_async import AsyncWorkerSession

__all__ = [
    "AsyncWorkerSession",
    "Command",
    "Decoder",
    "Descriptor",
    "Identity",
    "Key",
    "MachineId",
    "PeerAddress",
    "Registration",
    "Sampling",
    "Welcome",
    "WorkerProtocol",
    "WorkerSession",
    "encode",
    "prove",
    "waits",
]
