"""The receiving half: who writes by NIXL, what they publish, and when they have stopped."""

import base64
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass, field

from splitcore._native import HandshakeError, LayerSeal, Pool, TransferError, TransferKey, WriterStops
from splitcore._native import Receiver as NativeReceiver
from splitcore.nixl_transfer.agent import (
    Agent,
    Alive,
    Gone,
    Message,
    Naps,
    handshake_error,
    key_of,
    numbers,
    shared_agent,
    transfer_error,
    where,
)

__all__ = ["NixlReceiver"]

_PING_S = 1.0
# How long a close waits for writers to stop.
_CLOSE_S = 2.0


@dataclass(slots=True)
class _Writer:
    """A sender, as its receiver sees it."""

    name: str
    stops: WriterStops
    alive: Alive
    is_silent: bool = False
    pinged: float = field(default_factory=time.monotonic)


class NixlReceiver:
    """The receiving half of a pool, with senders that come by NIXL besides those of the native half."""

    def __init__(self, native: NativeReceiver, pool: Pool) -> None:
        """Register the pool for NIXL.

        Raises:
            HandshakeError: If NIXL is not there, or cannot begin.
        """
        self._native = native
        self._agent: Agent | None = shared_agent(pool)
        self._life = native.incarnation
        self._writers: dict[int, _Writer] = {}
        self._refused: deque[tuple[float, str]] = deque()
        about = {
            **where(),
            "metadata": self._agent.metadata(),
            "base": pool.address,
            "layout": pool.layout.__getnewargs_ex__()[1],
            "blocks": pool.blocks,
        }
        told = json.loads(native.endpoint)
        told["nixl"] = base64.b64encode(json.dumps(about).encode()).decode("ascii")
        told["backends"] = sorted({*told["backends"], "nixl"}, key=["cuda-ipc", "shm", "nixl", "tcp"].index)
        self.endpoint = json.dumps(told)
        self._agent.join(self._life, self._hear, self._progress)

    def _hear(self, name: str, said: Message) -> None:
        if said["t"] == "hello":
            self._let_in(said)
            return
        life = int(said["from"])
        writer = self._writers.get(life)
        if writer is None or writer.name != name or self._agent is None:
            return
        if said["t"] == "bye":
            self._end(life, gone=True)
            return
        key = key_of(said)
        answer = {"to": life, "from": self._life, "key": said["key"]}
        match said["t"]:
            case "ask":
                admits = self._native.admits(life, key, str(said["token"]))
                self._agent.tell(name, answer | {"t": "go" if admits else "no"})
            case "layer" if not self._native.admits(life, key, str(said["token"])):
                self._agent.tell(name, answer | {"t": "nack", "why": "it is not open to this sender"})
            case "layer":
                try:
                    self._native.publish(life, key, said["layer"], tokens=said["tokens"], size=said["bytes"])
                except TransferError as error:
                    self._agent.tell(name, answer | {"t": "nack", "why": str(error)})
            case "over":
                # By its own will or at our word.
                self._native.stop(key)
                self._native.fenced(life, key)

    def _let_in(self, said: Message) -> None:
        if self._agent is None:
            return
        name = self._agent.meet(said["metadata"])
        life, answer = int(said["from"]), {"to": said["from"], "from": self._life}
        try:
            if life in self._writers or self._native.greeted(said["hello"]) != life:
                raise handshake_error("refused", f"incarnation {life} is connected, or not the sender's")
            stops = self._native.joined(life)
        except HandshakeError as error:
            self._refused.append((time.monotonic(), name))
            with contextlib.suppress(Gone):
                self._agent.tell(name, answer | {"t": "refused", "why": str(error)})
            return
        self._writers[life] = _Writer(name, stops, Alive(said))
        self._agent.tell(name, answer | {"t": "welcome"})

    def _progress(self) -> bool:
        now = time.monotonic()
        for life, writer in list(self._writers.items()):
            try:
                for key in writer.stops.take():
                    self._tell(writer, life, {"t": "stop", "key": numbers(key)})
                if now - writer.pinged >= _PING_S and not writer.is_silent:
                    writer.pinged = now
                    self._tell(writer, life, {"t": "ping"})
            except Gone:
                # It cannot be heard, and may write on.
                if not writer.is_silent and not writer.alive.look():
                    writer.is_silent = True
                    self._native.left(life, gone=False)
            if writer.alive.look() and self._agent is not None:
                self._agent.drain()
                self._end(life, gone=True)
        # Not at once, so that they hear why.
        while self._refused and now - self._refused[0][0] > _PING_S and self._agent is not None:
            self._agent.forget(self._refused.popleft()[1])
        return False

    def _tell(self, writer: _Writer, life: int, message: Message) -> None:
        if self._agent is not None:
            self._agent.tell(writer.name, {"to": life, "from": self._life} | message)

    def _end(self, life: int, *, gone: bool) -> None:
        writer = self._writers.pop(life, None)
        if writer is None:
            return
        writer.alive.close()
        self._native.left(life, gone)
        if self._agent is not None:
            self._agent.forget(writer.name)

    def progress(self) -> None:
        """Take in what has come by NIXL, and tell writers what they must know."""
        if self._agent is not None:
            self._agent.progress()

    def wait_layer(self, key: TransferKey, layer: int, timeout_s: float) -> LayerSeal:
        """Wait for a layer and make progress meanwhile, as the native half does for the other backends."""
        naps = Naps(timeout_s)
        while True:
            self.progress()
            nap = naps.next()
            try:
                return self._native.wait_layer(key, layer, nap or 0)
            except TransferError as error:
                if error.kind != "timeout":
                    raise
                if nap is None:
                    text = str(error).replace("within 0ns", f"within {timeout_s:g}s")
                    raise transfer_error(error.kind, text, error.key, error.layer) from None

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to poll."""
        naps = Naps(timeout_s)
        while True:
            self.progress()
            nap = naps.next()
            if self._native.wait(nap or 0):
                return True
            if nap is None:
                return False

    def close(self) -> None:
        """Have every writer stop, and deregister the memory.

        A writer on another host cannot write deregistered memory. One on this host could, if it does not answer within
        two seconds: it counts as silent then.
        """
        if self._agent is None:
            return
        naps = Naps(_CLOSE_S)
        for life, writer in list(self._writers.items()):
            with contextlib.suppress(Gone):
                self._tell(writer, life, {"t": "closed"})
        while any(not writer.is_silent for writer in self._writers.values()) and (nap := naps.next()) is not None:
            self.progress()
            time.sleep(nap)
        agent, self._agent = self._agent, None
        agent.leave(self._life)
        for writer in self._writers.values():
            agent.forget(writer.name)
        agent.close()
        for life, writer in self._writers.items():
            self._native.left(life, gone=writer.alive.look() or (not writer.alive.is_near and agent.uses == 0))
            writer.alive.close()
        self._writers.clear()
