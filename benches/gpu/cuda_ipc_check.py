"""Checks transfers between two processes on one NVIDIA GPU, and prints a short table.

    python benches/gpu/cuda_ipc_check.py

Needs the installed package and numpy, neither torch nor another CUDA library. Takes under four minutes and 2 GiB of
GPU memory. Without a GPU it prints ``skip: <reason>`` and ends with 0; with one it ends with 1 if a check fails.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from splitcore import _native
from splitcore._native import TransferError

MODEL = "cuda-ipc-check"
LIMIT_S = 230
WITHIN_S = 30.0
LAYERS, HEADS, HEAD_DIM, BLOCK_TOKENS, BLOCKS = 32, 8, 128, 16, 256
LAYER_BLOCK = 2 * HEADS * HEAD_DIM * BLOCK_TOKENS * 2
POOL = LAYERS * BLOCKS * LAYER_BLOCK
GIB = 1 << 30


def new_pool() -> _native.CudaPool:
    layout = _native.KvLayout(
        layers=LAYERS, heads=HEADS, head_dim=HEAD_DIM, block_tokens=BLOCK_TOKENS, dtype="f16", order="NHD"
    )
    return _native.CudaPool(layout, BLOCKS, 0)


def pattern(seed: int, layers: int = LAYERS, blocks: int = BLOCKS) -> np.ndarray:
    """The bytes of a sender's pool: as ``[layer][block][byte]``."""
    return np.random.default_rng(seed).integers(0, 256, (layers, blocks, LAYER_BLOCK), np.uint8)


def rows(pairs: list[list[int]], layer: int) -> np.ndarray:
    """The ranges of whole blocks in one layer."""
    table = np.empty((len(pairs), 5), np.uint32)
    table[:, 0], table[:, 2] = np.array(pairs, np.uint32).T
    table[:, 1] = table[:, 3] = layer * LAYER_BLOCK
    table[:, 4] = LAYER_BLOCK
    return table


class Child:
    """What the sender's process does, one command a line."""

    def __init__(self) -> None:
        self.pool = new_pool()
        self.stream = self.pool.stream()
        self.links: list[_native.Link] = []

    @property
    def link(self) -> _native.Link:
        return self.links[-1]

    def fill(self, seed: int) -> None:
        self.pool.write(0, pattern(seed).tobytes())

    def fill_eight(self, seed: int) -> None:
        self.pool.write(0, pattern(seed, 1, 8).tobytes())

    def connect(self, endpoint: str, writer: int) -> str:
        self.links = [_native.connect(self.pool.pool, endpoint, model=MODEL, incarnation=writer)]
        return self.link.backend

    def busy(self, times: int) -> None:
        """Give the compute stream work that takes a while, and let the link wait for it.

        The last of it copies the first eight blocks of layer 0 to the eight from block 200.
        """
        half = POOL // 2
        for _ in range(times):
            self.stream.copy(half, half + half // 2, half // 2)
        self.stream.copy(0, 200 * LAYER_BLOCK, 8 * LAYER_BLOCK)
        self.link.after(self.stream.raw)

    def send(self, grant: str, pairs: list[list[int]]) -> None:
        """Put and publish every layer, and leave the copies running."""
        leave = _native.Grant.from_json(grant)
        self.link.begin(leave)
        for layer in range(LAYERS):
            self.link.put(leave.key, layer, rows(pairs, layer))
            self.link.publish(leave.key, layer, len(pairs) * BLOCK_TOKENS)

    def done(self) -> str:
        """Wait for the end of one transfer."""
        if not self.link.wait(WITHIN_S):
            return "no end"
        return ",".join(end.kind for end in self.link.poll())

    def timed(self, grant: str, pairs: list[list[int]]) -> list[object]:
        begin = time.perf_counter()
        self.send(grant, pairs)
        return [self.done(), time.perf_counter() - begin]

    def alone(self, piece: int) -> float:
        """Time copies within this process' pool, of one half to the other."""
        half = POOL // 2
        begin = time.perf_counter()
        for offset in range(0, half, piece):
            self.stream.copy(offset, half + offset, piece)
        self.stream.synchronize()
        return time.perf_counter() - begin

    def lost(self) -> bool:
        """Wait until the link knows that its receiver is gone."""
        until = time.monotonic() + WITHIN_S
        while self.link.peer != "lost" and time.monotonic() < until:
            time.sleep(0.01)
        return self.link.peer == "lost"

    def close(self) -> None:
        self.link.close()

    def serve(self) -> None:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            print(json.dumps(getattr(self, name)(*arguments)), flush=True)


class Sender:
    """The sender's process, from here."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--sender"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = cast("IO[str]", self.process.stdout)
        self.writer = _native.new_incarnation()

    def ask(self, name: str, *arguments: object) -> Any:
        self.tell(name, *arguments)
        return self.hear()

    def tell(self, name: str, *arguments: object) -> None:
        print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)

    def hear(self) -> Any:
        line = self.lines.readline()
        if not line:
            raise RuntimeError(f"the sender has ended with {self.process.wait()}, see its errors above")
        return json.loads(line)

    def connect(self, receiver: _native.Receiver) -> None:
        backend = self.ask("connect", receiver.endpoint, self.writer)
        if backend != "cuda-ipc":
            raise RuntimeError(f"connected by {backend}, not by cuda-ipc")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Side:
    """The receiving side."""

    def __init__(self) -> None:
        self.pool = new_pool()
        self.receiver = _native.Receiver(self.pool.pool, model=MODEL)
        self.stream = self.pool.stream()
        self.request = 0

    def open(self, writer: int, pairs: list[list[int]]) -> _native.Grant:
        self.request += 1
        blocks = [to for _, to in pairs]
        size = len(pairs) * LAYER_BLOCK
        return self.receiver.open(writer=writer, request=self.request, blocks=blocks, layer_bytes=size)

    def bytes(self) -> np.ndarray:
        whole = np.frombuffer(self.pool.read(0, POOL), np.uint8)
        return whole.reshape(LAYERS, BLOCKS, LAYER_BLOCK)

    def take(self, sender: Sender, pairs: list[list[int]]) -> float:
        """Move blocks, wait until they are in place, and free the slot; gives the sender's time."""
        grant = self.open(sender.writer, pairs)
        end, seconds = sender.ask("timed", grant.to_json(), pairs)
        if end != "local-done":
            raise RuntimeError(f"the transfer ended as {end}")
        self.receiver.settled(grant.key, WITHIN_S)
        self.receiver.release(grant.key)
        return float(seconds)

    def drop(self) -> None:
        self.receiver.close()
        del self.receiver, self.stream, self.pool


def scattered(seed: int, count: int) -> list[list[int]]:
    draws = np.random.default_rng(seed)
    sources, targets = draws.permutation(BLOCKS)[:count], draws.permutation(BLOCKS)[:count]
    return [[int(source), int(target)] for source, target in zip(sources, targets, strict=True)]


def differing(found: np.ndarray, expected: np.ndarray) -> str:
    wrong = int(np.count_nonzero(found != expected))
    if wrong:
        raise RuntimeError(f"{wrong} of {expected.size} bytes are wrong")
    return f"{expected.size / GIB:.2f} GiB equal"


def every_byte(side: Side, sender: Sender, seed: int) -> str:
    """Scattered blocks are right, and the blocks between them untouched."""
    sender.ask("fill", seed)
    pairs = scattered(seed, 150)
    expected = side.bytes().copy()
    side.take(sender, pairs)
    source, targets = pattern(seed), [to for _, to in pairs]
    expected[:, targets] = source[:, [start for start, _ in pairs]]
    return differing(side.bytes(), expected)


def bandwidth(side: Side, sender: Sender) -> str:
    half = POOL // 2
    parts = []
    for name, piece, pairs in (
        ("scattered", LAYER_BLOCK, scattered(5, BLOCKS // 2)),
        ("in a row", BLOCKS // 2 * LAYER_BLOCK, [[block, block] for block in range(BLOCKS // 2)]),
    ):
        alone = half / min(sender.ask("alone", piece) for _ in range(5)) / 1e9
        moved = half / min(side.take(sender, pairs) for _ in range(5)) / 1e9
        parts.append(f"{name} {moved:.0f} GB/s, in one process {alone:.0f}")
    return "; ".join(parts)


def order(side: Side, sender: Sender, rounds: int = 10) -> str:
    """A stream that waits for a layer reads what the sender's busy stream made, every time."""
    ahead = 0
    scratch = (BLOCKS - 8) * LAYER_BLOCK
    pairs = [[200 + block, block] for block in range(8)]
    for attempt in range(rounds):
        sender.ask("fill_eight", 100 + attempt)
        side.pool.write(0, bytes(8 * LAYER_BLOCK))
        sender.ask("busy", 200)
        grant = side.open(sender.writer, pairs)
        sender.tell("send", grant.to_json(), pairs)
        side.receiver.wait_layer(grant.key, 0, WITHIN_S)
        try:
            side.receiver.settled(grant.key, 0.0)
        except TransferError as error:
            if error.kind != "timeout":
                raise
            ahead += 1
        side.receiver.hold_stream(grant.key, 0, side.stream.raw)
        side.stream.copy(0, scratch, 8 * LAYER_BLOCK)
        side.stream.synchronize()
        found = np.frombuffer(side.pool.read(scratch, 8 * LAYER_BLOCK), np.uint8)
        differing(found, pattern(100 + attempt, 1, 8).reshape(-1))
        sender.hear()
        side.receiver.settled(grant.key, WITHIN_S)
        side.receiver.release(grant.key)
        if (end := sender.ask("done")) != "local-done":
            raise RuntimeError(f"the transfer ended as {end}")
    return f"{rounds} rounds right, in {ahead} the word came before the copies were done"


def closing(side: Side, sender: Sender) -> str:
    """A receiver that goes is let go of, and new memory, perhaps at the same address, is another."""
    address = side.pool.device_ptr
    side.drop()
    if not sender.ask("lost"):
        raise RuntimeError("the sender does not see that its receiver is gone")
    sender.ask("close")
    again = Side()
    sender.writer = _native.new_incarnation()
    sender.connect(again.receiver)
    place = "the same address" if again.pool.device_ptr == address else "another address"
    text = every_byte(again, sender, 7)
    sender.ask("close")
    again.drop()
    return f"let go of; new memory at {place}: {text}"


def death(sender: Sender) -> str:
    """A sender that is killed while its copies run ends its transfer, and frees the blocks."""
    side = Side()
    sender.writer = _native.new_incarnation()
    sender.connect(side.receiver)
    pairs = [[block, block] for block in range(BLOCKS)]
    sender.ask("busy", 400)
    grant = side.open(sender.writer, pairs)
    sender.tell("send", grant.to_json(), pairs)
    side.receiver.wait_layer(grant.key, LAYERS - 1, WITHIN_S)
    sender.kill()
    begin = time.perf_counter()
    try:
        side.receiver.settled(grant.key, WITHIN_S)
        seen = "its copies were done already"
    except TransferError as error:
        if error.kind != "peer-lost":
            raise
        seen = f"seen after {(time.perf_counter() - begin) * 1e3:.0f} ms"
    side.receiver.release(grant.key)
    another = Sender()
    try:
        another.connect(side.receiver)
        text = every_byte(side, another, 8)
    finally:
        another.kill()
    return f"{seen}; the next sender: {text}"


def main() -> int:
    try:
        devices = _native.cuda_devices()
    except TransferError as error:
        print(f"skip: {error}")
        return 0
    # A hang ends here, with the traceback of neither side but within the limit.
    signal.alarm(LIMIT_S)
    begin = time.perf_counter()
    side, sender = Side(), Sender()
    failed = False

    def check(name: str, run: Callable[[], str]) -> None:
        nonlocal failed
        start = time.perf_counter()
        try:
            result, text = "ok", run()
        except (RuntimeError, TransferError) as error:
            result, text, failed = "FAILED", str(error), True
        print(f"{name:<28} {result:<7} {time.perf_counter() - start:6.1f} s  {text}", flush=True)

    try:
        sender.connect(side.receiver)
        print(f"device 0 of {devices}: {side.pool.description}, {side.pool.device}")
        print(f"pools of {POOL / GIB:.2f} GiB: {LAYERS} layers of {BLOCKS} blocks of {LAYER_BLOCK >> 10} KiB")
        check("every byte, scattered", lambda: every_byte(side, sender, 1))
        check("bandwidth", lambda: bandwidth(side, sender))
        check("event order under load", lambda: order(side, sender))
        check("closing order", lambda: closing(side, sender))
        check("killed sender", lambda: death(sender))
    finally:
        sender.kill()
    print(f"{'FAILED' if failed else 'ok'} in {time.perf_counter() - begin:.0f} s")
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:] == ["--sender"]:
        Child().serve()
    else:
        sys.exit(main())
