"""The writing half: layers become one-sided writes, each with the message that it is here."""

import base64
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitcore._native import (
    Books,
    Completion,
    ConfigError,
    Grant,
    KvLayout,
    Pool,
    TransferError,
    TransferKey,
    TransferPlan,
)
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

__all__ = ["NixlLink"]

# One write takes 2 ms to prepare with this many ranges; more go in several.
_RANGES_MAX = 8192
# Layers of one receiver under way at once.
_FLIGHTS_MAX = 8
# How long a close waits for writes that are under way.
_CLOSE_S = 2.0


@dataclass(slots=True)
class _Flight:
    """A layer that is being written."""

    copies: NDArray[np.uint64]
    message: Message
    at: int = 0
    handles: list[Any] = field(default_factory=list)
    is_sealed: bool = False


@dataclass(slots=True)
class _Outgoing:
    """A transfer at its sender."""

    token: str
    held: dict[int, list[NDArray[np.uint64]]] = field(default_factory=dict)
    queue: deque[_Flight] = field(default_factory=deque)
    flights: list[_Flight] = field(default_factory=list)
    may_go: bool = False
    is_stopped: bool = False
    is_complete: bool = False
    end: tuple[str, str] = ("fenced", "")

    def give_up(self, kind: str = "fenced", why: str = "") -> None:
        """Write no more of it; it ends so when what is under way is over."""
        if not self.is_stopped:
            self.is_stopped, self.end = True, (kind, why)

    @property
    def is_busy(self) -> bool:
        """Whether something of it is to go on."""
        return bool(self.is_stopped or self.flights or self.queue or not self.may_go)


class NixlLink:
    """The writing half towards one receiver, with the methods of the native `Link`."""

    backend = "nixl"

    def __init__(
        self, pool: Pool, endpoint: str, *, model: str, incarnation: int, within_s: float, stall_limit_s: float
    ) -> None:
        """Connect to a receiver.

        Raises:
            HandshakeError: If the two do not fit, or there is no answer in time.
        """
        self.incarnation = incarnation
        told = json.loads(endpoint)
        try:
            about = json.loads(base64.b64decode(told["nixl"]))
            layout = KvLayout(**about["layout"])
            self._base, self._to = int(about["base"]), int(told["incarnation"])
            blocks, metadata = int(about["blocks"]), str(about["metadata"])
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise handshake_error("malformed", f"the endpoint's NIXL part is not one: {error}") from error
        self._books = Books(pool, endpoint, model=model, incarnation=incarnation, layout=layout, blocks=blocks)
        self._stall_limit_s = stall_limit_s
        self._transfers: dict[TransferKey, _Outgoing] = {}
        self._stopped: dict[int, int] = {}
        self._ended: list[Completion] = []
        self._answer: str | None = None
        self._is_closing = False
        self._moved = time.monotonic()
        self._alive = Alive(about)
        self._agent: Agent | None = None
        agent = shared_agent(pool)
        try:
            self._name = agent.meet(metadata)
        except Gone as error:
            agent.close()
            raise handshake_error("malformed", f"the endpoint's NIXL part is not one: {error}") from error
        agent.join(incarnation, self._hear, self._progress)
        self._agent = agent
        try:
            self._greet(within_s)
        except BaseException:
            self.close()
            raise
        agent.work()

    def _greet(self, within_s: float) -> None:
        agent = self._live()
        hello = {"t": "hello", "hello": self._books.hello, "metadata": agent.metadata(), **where()}
        try:
            self._tell(hello)
        except Gone as error:
            raise handshake_error("io", f"the receiver cannot be reached by NIXL: {error}") from error
        naps = Naps(within_s)
        while self._answer is None:
            agent.progress()
            nap = naps.next()
            if nap is None or self._alive.look():
                raise handshake_error("timeout", f"no answer to the handshake by NIXL within {within_s:g}s")
            time.sleep(nap)
        if self._answer:
            raise handshake_error("refused", f"refused by the peer: {self._answer}")

    def _live(self) -> Agent:
        if self._agent is None:
            raise transfer_error("closed", "the link is closed")
        return self._agent

    def _tell(self, message: Message) -> None:
        self._live().tell(self._name, {"to": self._to, "from": self.incarnation} | message)

    @property
    def peer(self) -> str:
        """What is known of the receiver."""
        return self._books.peer

    @property
    def remote(self) -> tuple[KvLayout, int]:
        """The receiver's layout and its blocks."""
        return self._books.remote

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._agent is None

    def begin(self, grant: Grant) -> None:
        """Begin a transfer, and ask whether the grant still holds."""
        agent, key = self._live(), grant.key
        with agent.lock:
            self._books.begin(grant)
            self._transfers[key] = _Outgoing(grant.token)
            self._moved = time.monotonic()
            if self._stopped.get(key.slot, 0) == key.generation:
                self._transfers[key].give_up()
            else:
                self._said({"t": "ask", "key": numbers(key), "token": grant.token})
        agent.work()

    def put(self, key: TransferKey, layer: int, ranges: NDArray[np.uint32] | TransferPlan) -> None:
        """Book ranges of a layer; they go when the layer is published."""
        agent = self._live()
        with agent.lock:
            copies = self._books.put(key, layer, ranges)
            self._transfers[key].held.setdefault(layer, []).append(copies)

    put_plan = put

    def publish(self, key: TransferKey, layer: int, tokens: int) -> None:
        """Write a layer; the receiver hears of it after its last byte."""
        agent = self._live()
        with agent.lock:
            if key in self._transfers and self._transfers[key].is_stopped:
                text = f"request {key.request}, slot {key.slot}, generation {key.generation}, layer {layer}: stopped"
                raise transfer_error("stopped", text, key, layer)
            size, is_last = self._books.publish(key, layer)
            outgoing = self._transfers[key]
            message = {"to": self._to, "from": self.incarnation, "t": "layer", "key": numbers(key)}
            message |= {"layer": layer, "tokens": tokens, "bytes": size, "token": outgoing.token}
            outgoing.queue.append(_Flight(np.concatenate(outgoing.held.pop(layer)), message))
            outgoing.is_complete = is_last
            self._moved = time.monotonic()
            self._progress()
        agent.work()

    def stop(self, key: TransferKey) -> None:
        """Stop a transfer; its end follows when no write of it is under way."""
        agent = self._live()
        with agent.lock:
            outgoing = self._transfers.get(key)
            if outgoing is not None:
                outgoing.give_up()
                self._progress()
        agent.work()

    def poll(self) -> list[Completion]:
        """Give the transfers that have ended since the last call."""
        self._live().progress()
        ended, self._ended = [*self._ended, *self._books.poll()], []
        return ended

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is an end to poll."""
        naps = Naps(timeout_s)
        while not self._ended:
            self._live().progress()
            self._ended += self._books.poll()
            nap = None if self._ended else naps.next()
            if nap is None:
                break
            time.sleep(nap)
        return bool(self._ended)

    def close(self) -> None:
        """Stop what is under way, take leave and disconnect."""
        agent = self._agent
        if agent is None:
            return
        with agent.lock:
            for outgoing in self._transfers.values():
                outgoing.give_up()
        naps = Naps(_CLOSE_S)
        while self._transfers and (nap := naps.next()) is not None:
            agent.progress()
            time.sleep(nap)
        with agent.lock:
            if not self._transfers and self._books.peer != "lost":
                self._said({"t": "bye"})
            self._lose()
            agent.leave(self.incarnation)
            agent.forget(self._name)
            self._alive.close()
            self._agent = None
        agent.close()

    def _said(self, message: Message) -> None:
        try:
            self._tell(message)
        except Gone:
            self._lose()

    def _hear(self, name: str, said: Message) -> None:
        if name != self._name or said["from"] != self._to:
            return
        if said["t"] in ("welcome", "refused"):
            self._answer = said.get("why", "")
            return
        if said["t"] == "closed":
            self._is_closing = True
            for every in self._transfers.values():
                every.give_up("denied", "it has closed")
            return
        if said["t"] == "ping":
            return
        key = key_of(said)
        outgoing = self._transfers.get(key)
        match said["t"]:
            case "go" if outgoing is not None:
                outgoing.may_go = True
                self._moved = time.monotonic()
            case "stop" | "no":
                self._stopped[key.slot] = key.generation
                if outgoing is not None:
                    outgoing.give_up()
                else:
                    self._said({"t": "over", "key": said["key"]})
            case "nack" if outgoing is not None:
                outgoing.give_up("denied", str(said["why"]))

    def _bury(self, outgoing: _Outgoing) -> None:
        for flight in outgoing.flights:
            for handle in flight.handles:
                self._live().bury(handle)

    def _lose(self) -> None:
        """Take the receiver for gone: what is under way fails."""
        self._books.lose()
        for outgoing in self._transfers.values():
            self._bury(outgoing)
        self._transfers.clear()
        self._live().forget(self._name)

    def _progress(self) -> bool:
        if self._books.peer == "lost":
            return False
        if self._alive.look():
            self._lose()
            return False
        for key, outgoing in list(self._transfers.items()):
            try:
                self._advance(key, outgoing)
            except TransferError as error:
                outgoing.give_up("failed", str(error))
            except Gone:
                self._lose()
                return False
        if self._is_closing and not self._transfers:
            self._said({"t": "bye"})
            self._lose()
            return False
        is_busy = any(outgoing.is_busy for outgoing in self._transfers.values())
        if is_busy and time.monotonic() - self._moved > self._stall_limit_s:
            # Cut off first: only then is nothing read here any more.
            self._live().forget(self._name, cut=True)
            for key in list(self._transfers):
                self._books.end(key, "stalled", waited_s=self._stall_limit_s)
            self._lose()
            return False
        return is_busy

    def _advance(self, key: TransferKey, outgoing: _Outgoing) -> None:
        if outgoing.is_stopped:
            outgoing.queue.clear()
        while outgoing.may_go and outgoing.queue and len(outgoing.flights) < _FLIGHTS_MAX:
            outgoing.flights.append(outgoing.queue.popleft())
        outgoing.flights = [flight for flight in outgoing.flights if not self._fly(flight, outgoing.is_stopped)]
        if outgoing.flights or outgoing.queue:
            return
        if outgoing.is_stopped:
            del self._transfers[key]
            self._books.end(key, *outgoing.end)
            self._said({"t": "over", "key": numbers(key)})
        elif outgoing.is_complete:
            del self._transfers[key]
            self._books.end(key, "local-done")

    def _fly(self, flight: _Flight, is_stopped: bool) -> bool:
        """Go on with a layer; says whether it is over, written or given up."""
        agent = self._live()
        flying = []
        for handle in flight.handles:
            if agent.is_done(handle):
                agent.bury(handle)
                self._moved = time.monotonic()
            else:
                flying.append(handle)
        flight.handles = flying
        if flying:
            return False
        if flight.is_sealed or is_stopped:
            return True
        # What is said at the end is behind the bytes of its own write only, so all others are over by then.
        rest = flight.copies[flight.at : flight.at + _RANGES_MAX]
        flight.at += len(rest)
        flight.is_sealed = flight.at == len(flight.copies)
        message = flight.message if flight.is_sealed else None
        flight.handles.append(agent.write(self._name, self._base, rest, message))
        return False
