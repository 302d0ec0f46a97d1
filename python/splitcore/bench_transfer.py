"""Measures the transports of KV between two processes, beside what the machine can do at best.

Run as a module it is the receiving process.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Literal, NotRequired, TypedDict, cast

from splitcore import _native, bench_nixl

__all__ = ["BACKENDS", "Backend", "Bandwidth", "Exposed", "Measured", "Notify", "Queued", "measure"]

Backend = Literal["shm", "tcp", "nixl"]
BACKENDS: tuple[Backend, ...] = ("shm", "tcp", "nixl")


class Bandwidth(TypedDict):
    """Bytes a second of scattered blocks, from the first put until the receiver has seen the last layer."""

    block_bytes: int
    bytes_per_second: float
    ceiling_bytes_per_second: float
    """The same blocks by one thread's memcpy, or by one plain socket; both are the best of the repetitions."""


class Notify(TypedDict):
    """How soon a published layer is seen by a receiver that sleeps, one way."""

    p50_ns: int
    p99_ns: int


class Exposed(TypedDict):
    """How long a decode waits for KV after its prefill, over a throttled link."""

    prefill_ns: int
    transfer_ns: int
    layer_wise_ns: int
    serialized_ns: int


class Queued(TypedDict):
    """Completions a second of the first and the last tenth of many queued transfers."""

    transfers: int
    first_per_second: float
    last_per_second: float


class Measured(TypedDict):
    """All of one transport."""

    backend: Backend
    bandwidth: list[Bandwidth]
    notify: Notify
    exposed: NotRequired[Exposed]
    queued: NotRequired[Queued]


def measure(
    backend: Backend,
    *,
    block_bytes: Sequence[int] = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20),
    transfer_bytes: int = 256 << 20,
    repetitions: int = 5,
    notifies: int = 2000,
    queued: int = 10_000,
    throttle_bits_per_second: int = 10_000_000_000,
    progress: Callable[[int, int], object] | None = None,
) -> Measured:
    """Measure one transport between this process and a child.

    Args:
        backend: Which.
        block_bytes: Bytes of a block in one layer, for each measurement of bandwidth.
        transfer_bytes: Bytes of a whole transfer.
        repetitions: Of each transfer; the best counts, since other load can only slow it down.
        notifies: Layers published to a receiver that sleeps.
        queued: Transfers queued at once; NIXL is measured without this and the next.
        throttle_bits_per_second: Of the link for which layer-wise and serialized transfers are compared.
        progress: Called with the steps done and all steps.

    Returns:
        What was measured.

    Raises:
        SplitcoreError: A process or a transport failed.
    """
    if backend == "nixl":
        return bench_nixl.measure(
            block_bytes=block_bytes,
            transfer_bytes=transfer_bytes,
            repetitions=repetitions,
            notifies=notifies,
            progress=progress,
        )
    plan = {
        "block_bytes": list(block_bytes),
        "transfer_bytes": transfer_bytes,
        "repetitions": repetitions,
        "notifies": notifies,
        "queued": queued,
        "throttle_bits_per_second": throttle_bits_per_second,
    }
    child = [sys.executable, "-m", "splitcore.bench_transfer"]
    return cast(Measured, _native.bench_transfer(plan, backend, child, progress))


if __name__ == "__main__":
    _native.bench_transfer_receive()
