"""The benchmark of NIXL, which lives in Python: bandwidth and notify latency, as of the other transports.

Run as a module it is the receiving process.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from select import select
from statistics import quantiles
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from splitcore._native import SplitcoreError
from splitcore.transfer import Grant, KvLayout, KvPool, Receiver, Sender, connect

if TYPE_CHECKING:
    from splitcore.bench_transfer import Bandwidth, Measured

__all__ = ["measure"]

_MODEL = "bench"
_LAYERS = 32
_PATIENCE_S = 60.0
# Long enough for a receiver that has just seen a layer to sleep again.
_PAUSE_S = 300e-6
_NOTIFIES_MAX = 500
_TURN_S = 0.01


def _layout(block_bytes: int, layers: int = _LAYERS) -> KvLayout:
    """Make a layout of blocks of so many bytes in each layer: 4,096 for each token."""
    return KvLayout(layers=layers, heads=8, head_dim=128, block_tokens=block_bytes // 4096, dtype="f16")


def _tell(to: IO[str], what: Any) -> None:
    to.write(f"{json.dumps(what)}\n")
    to.flush()


class _Pair:
    """This process, which sends, and a child, which receives."""

    def __init__(self, block_bytes: int, blocks: int, layers: int) -> None:
        self.layout, self.blocks = _layout(block_bytes, layers), blocks
        # Through the loopback interface only: UCX would also take others.
        environment = {"UCX_NET_DEVICES": "lo"} | os.environ
        command = [sys.executable, "-m", "splitcore.bench_nixl", str(block_bytes), str(blocks), str(layers)]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)  # noqa: S603
        self._to, self._from = cast(IO[str], self._child.stdin), cast(IO[str], self._child.stdout)
        self._stack = ExitStack()
        self._stack.callback(self._end)
        pool = KvPool(self.layout, blocks)
        self.pool = pool
        self.sender: Sender = self._stack.enter_context(connect(pool, self.hear(), model=_MODEL, backend="nixl"))

    def _end(self) -> None:
        self._child.communicate(timeout=10)

    def __enter__(self) -> "_Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, *words: Any) -> None:
        _tell(self._to, words)

    def hear(self) -> Any:
        line = self._from.readline()
        if not line:
            raise SplitcoreError("the receiving process ended early")
        return json.loads(line)

    def transfer(self, source: Sequence[int], dest: Sequence[int], pause_s: float = 0.0) -> tuple[int, list[int], Any]:
        """Send all layers; gives when that began, when each was published, and when each was seen."""
        tokens = len(dest) * self.layout.block_tokens
        self.say(self.sender.incarnation, list(dest), tokens)
        transfer = self.sender.begin(Grant.from_json(self.hear()), table=source, tokens=tokens)
        begun, published = time.monotonic_ns(), []
        for layer in range(self.layout.layers):
            if pause_s:
                time.sleep(pause_s)
            published.append(time.monotonic_ns())
            self.sender.put_layer(transfer, layer)
            if pause_s:
                # Nobody else drives it: UCX moves while somebody waits.
                self.sender.wait(pause_s)
        self.sender.finish(transfer, _PATIENCE_S)
        return begun, published, self.hear()


def _memcpy(source: NDArray[np.uint8], dest: NDArray[np.uint8], blocks: Sequence[int], into: Sequence[int]) -> int:
    """Copy the same blocks in one thread; gives nanoseconds."""
    begun = time.monotonic_ns()
    for layer in range(_LAYERS):
        for at, to in zip(blocks, into, strict=True):
            dest[layer, to] = source[layer, at]
    return time.monotonic_ns() - begun


def _bandwidth(block_bytes: int, transfer_bytes: int, repetitions: int) -> "Bandwidth":
    blocks = max(1, transfer_bytes // _LAYERS // block_bytes)
    draw = np.random.default_rng(1)
    plain = [np.ones((_LAYERS, blocks, block_bytes), np.uint8) for _ in range(2)]
    took, at_best = [], []
    with _Pair(block_bytes, blocks, _LAYERS) as pair:
        # The first of each touches every page and does not count.
        for _ in range(repetitions + 1):
            source, dest = (draw.permutation(blocks).tolist() for _ in range(2))
            begun, _, seen = pair.transfer(source, dest)
            took.append(seen[-1] - begun)
            at_best.append(_memcpy(plain[0], plain[1], source, dest))
    total = blocks * block_bytes * _LAYERS * 1e9
    return {
        "block_bytes": block_bytes,
        "bytes_per_second": total / min(took[1:]),
        "ceiling_bytes_per_second": total / min(at_best[1:]),
    }


def measure(
    *,
    block_bytes: Sequence[int],
    transfer_bytes: int,
    repetitions: int,
    notifies: int,
    progress: Callable[[int, int], object] | None,
) -> "Measured":
    """Measure bandwidth and notify latency of NIXL; see `splitcore.bench_transfer.measure`."""
    steps = len(block_bytes) + 1
    bandwidth = []
    for done, size in enumerate(block_bytes):
        if progress is not None:
            progress(done, steps)
        bandwidth.append(_bandwidth(size, transfer_bytes, repetitions))
    if progress is not None:
        progress(steps - 1, steps)
    layers = min(notifies, _NOTIFIES_MAX)
    with _Pair(4096, 1, layers) as pair:
        _, published, seen = pair.transfer([0], [0], _PAUSE_S)
    took = sorted(max(0, there - here) for there, here in zip(seen, published, strict=True))
    cuts = quantiles(took, n=100) if len(took) > 1 else took * 99
    return {
        "backend": "nixl",
        "bandwidth": bandwidth,
        "notify": {"p50_ns": round(cuts[49]), "p99_ns": round(cuts[98])},
    }


def _line(receiver: Receiver) -> str:
    """Read a line; meanwhile senders may come in, which they do only while the receiver is called."""
    while not select([sys.stdin], [], [], 0)[0]:
        receiver.wait(_TURN_S)
        receiver.poll()
    return sys.stdin.readline()


def _receive(block_bytes: int, blocks: int, layers: int) -> None:
    """Be the receiving process: each line asks to open a transfer and to say when each layer was seen."""
    with Receiver(KvPool(_layout(block_bytes, layers), blocks), model=_MODEL, nixl=True) as receiver:
        _tell(sys.stdout, receiver.endpoint)
        while line := _line(receiver):
            writer, dest, tokens = json.loads(line)
            grant = receiver.open(writer=writer, request=1, blocks=dest, tokens=tokens)
            _tell(sys.stdout, grant.to_json())
            seen = []
            for layer in range(layers):
                receiver.wait_layer(grant, layer, _PATIENCE_S)
                seen.append(time.monotonic_ns())
            receiver.release(grant)
            _tell(sys.stdout, seen)


if __name__ == "__main__":
    _receive(*map(int, sys.argv[1:]))
