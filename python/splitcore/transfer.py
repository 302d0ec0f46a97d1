"""Moves the KV cache of a request from one machine's blocks to another's, layer by layer.

The machine that will decode registers a `KvPool` and listens with a `Receiver`; the machine that prefills connects its
own pool to it. The receiver opens a transfer, whose grant travels to the sender by any message::

    receiver = Receiver(KvPool(layout, 64), model="llama")                     # decoding machine
    sender = connect(KvPool(layout, 64), receiver.endpoint, model="llama")     # prefilling machine

    grant = receiver.open(writer=sender.incarnation, request=7, blocks=[3, 9], tokens=30)
    transfer = sender.begin(grant, table=[0, 1], tokens=30)
    for layer in range(layout.layers):
        ...                                                                    # compute it into the sender's pool
        sender.put_layer(transfer, layer)                                      # while the next one is computed

    receiver.wait_layer(grant, layer=0, timeout=1.0)                           # its bytes are in the receiver's pool

Bytes go by shared memory on one host, by NIXL where both sides have it, and else by TCP. Everything here is safe to use
from several threads, and what waits lets other Python threads run and hears Ctrl-C.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from splitcore import _native
from splitcore._native import (
    Arrival,
    Completion,
    Grant,
    HandshakeError,
    KvLayout,
    LayerSeal,
    TransferError,
    TransferKey,
    TransferPlan,
    new_incarnation,
    plan_transfer,
    senders,
)
from splitcore.errors import wrong
from splitcore.kv_pool import KvPool
from splitcore.nixl_transfer import NixlLink, NixlReceiver, available

__all__ = [
    "Arrival",
    "Backend",
    "Completion",
    "Endpoint",
    "Grant",
    "HandshakeError",
    "KvLayout",
    "KvPool",
    "LayerSeal",
    "Receiver",
    "Sender",
    "Transfer",
    "TransferError",
    "TransferKey",
    "TransferPlan",
    "connect",
    "new_incarnation",
    "plan_transfer",
    "senders",
]

Backend = Literal["cuda-ipc", "shm", "nixl", "tcp"]
"""What carries bytes."""

Endpoint = dict[str, Any]
"""How a receiver is reached: plain data, fit for JSON. Whoever holds it can connect."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer at its sender: the receiver's grant, and what is copied where."""

    grant: Grant
    plan: TransferPlan

    @property
    def key(self) -> TransferKey:
        """Its name."""
        return self.grant.key


def _key(transfer: Transfer | Grant | TransferKey) -> TransferKey:
    return transfer if isinstance(transfer, TransferKey) else transfer.key


class Receiver:
    """The receiving half of a pool: it opens transfers, and tells which of their layers have landed.

    A context manager; closing it ends every connection, and what has not landed fails.
    """

    def __init__(
        self,
        pool: KvPool,
        *,
        model: str,
        incarnation: int | None = None,
        slots: int = 256,
        folder: str | None = None,
        local: bool = True,
        tcp: str | None = "127.0.0.1:0",
        nixl: bool = False,
        handshake_within: float = 5.0,
        connections_max: int = 4096,
        stall_limit: float = 10.0,
    ) -> None:
        """Listen for senders.

        Args:
            pool: Where they write.
            model: A name or hash of the model; senders must say the same.
            incarnation: A number for this life of the receiver, in 1 to 2^63 - 1; a random one by default.
            slots: Transfers at once.
            folder: Where the folder of the local socket is made, instead of the system's for temporary files.
            local: Whether senders on this host may write the pool directly; it must have memory of its own for that.
            tcp: Address and port for other senders, port 0 for any free one; None for no TCP.
            nixl: Whether senders may come by NIXL, which must be installed.
            handshake_within: Seconds that a sender may take to say who it is.
            connections_max: Connections at once.
            stall_limit: Seconds that a sender may be silent in the middle of a message.

        Raises:
            ConfigError: If an option is out of range.
            HandshakeError: If it cannot listen, or NIXL is not there.
        """
        self.pool = pool
        self._native = _native.Receiver(
            pool.native,
            model=model,
            incarnation=incarnation,
            slots=slots,
            folder=folder,
            local=local,
            tcp=tcp,
            handshake_within_s=handshake_within,
            connections_max=connections_max,
            stall_limit_s=stall_limit,
        )
        self._nixl: NixlReceiver | None = None
        if nixl:
            try:
                self._nixl = NixlReceiver(self._native, pool.native)
            except BaseException:
                self._native.close()
                raise

    @property
    def endpoint(self) -> Endpoint:
        """How it is reached, for `connect` in another process."""
        told: Endpoint = json.loads(self._native.endpoint if self._nixl is None else self._nixl.endpoint)
        return told

    @property
    def incarnation(self) -> int:
        """This life of the receiver."""
        return self._native.incarnation

    @property
    def in_use(self) -> int:
        """Slots taken by transfers that are not released."""
        return self._native.in_use

    def open(
        self,
        *,
        writer: int,
        request: int,
        blocks: Sequence[int] | NDArray[np.uint32],
        tokens: int | None = None,
        layer_bytes: int | None = None,
    ) -> Grant:
        """Let a sender write blocks.

        Args:
            writer: The sender's incarnation.
            request: The id of the request; it is only carried.
            blocks: The blocks, in position order. They must not be used until the transfer has landed or is fenced.
            tokens: How many tokens' KV the sender brings, if it brings all heads of this rank.
            layer_bytes: Bytes that it brings for each layer, where ``tokens`` does not say: those of its plan.

        Returns:
            The leave to write, for the sender.

        Raises:
            ConfigError: If not exactly one of tokens and layer_bytes is given.
            TransferError: If every slot is taken, a block is not in the pool, or the receiver is closed.
        """
        if (tokens is None) == (layer_bytes is None):
            raise wrong("tokens", "tokens or layer_bytes", "both" if tokens is not None else "neither")
        if layer_bytes is None:
            layout = self.pool.layout
            layer_bytes = (tokens or 0) * layout.layer_block_bytes // layout.block_tokens
        return self._native.open(writer=writer, request=request, blocks=blocks, layer_bytes=layer_bytes)

    def wait_layer(self, transfer: Transfer | Grant | TransferKey, layer: int, timeout: float) -> LayerSeal:
        """Wait until a layer is here; from then on its bytes may be read.

        Args:
            transfer: Which transfer.
            layer: Which layer, from 0.
            timeout: Seconds; 0 only looks.

        Returns:
            What the layer is said to hold.

        Raises:
            TransferError: Its ``kind`` is ``"timeout"``, ``"stopped"``, ``"peer-lost"``, ``"corrupt"``, ``"unknown"``
                or ``"no-such-layer"``.
        """
        waiting = self._native if self._nixl is None else self._nixl
        return waiting.wait_layer(_key(transfer), layer, timeout)

    def landed(self, transfer: Transfer | Grant | TransferKey) -> int:
        """Count the layers that are here, from layer 0 without a gap."""
        self._progress()
        return self._native.landed(_key(transfer))

    def stop(self, transfer: Transfer | Grant | TransferKey) -> None:
        """Give a transfer up. Its blocks stay untouchable until `poll` tells that it is fenced.

        Raises:
            TransferError: If it is not open.
        """
        self._native.stop(_key(transfer))
        self._progress()

    def release(self, transfer: Transfer | Grant | TransferKey) -> None:
        """Free the slot of a transfer that has landed or is fenced.

        Raises:
            TransferError: If it may still be written (``"not-fenced"``), or is not open (``"unknown"``).
        """
        self._native.release(_key(transfer))

    def poll(self) -> list[Arrival]:
        """Tell what has happened since the last call: layers here, transfers failed, transfers fenced."""
        self._progress()
        return self._native.poll()

    def wait(self, timeout: float) -> bool:
        """Wait until there is something to `poll`, at most so many seconds; says whether there is."""
        waiting = self._native if self._nixl is None else self._nixl
        return waiting.wait(timeout)

    def writer_state(self, writer: int) -> str:
        """Say what is known of a sender: ``"absent"``, ``"connected"``, ``"silent"`` or ``"lost"``."""
        self._progress()
        return self._native.writer_state(writer)

    def _progress(self) -> None:
        if self._nixl is not None:
            self._nixl.progress()

    def close(self) -> None:
        """End every connection. What has landed can still be read; closing twice does nothing."""
        if self._nixl is not None:
            self._nixl.close()
        self._native.close()

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Tell the incarnation and the slots in use."""
        return repr(self._native)


class Sender:
    """The writing half towards one receiver; `connect` makes it. A context manager."""

    def __init__(self, pool: KvPool, link: _native.Link | NixlLink) -> None:
        """Use a link that is connected."""
        self.pool = pool
        self._link = link
        self._ended: dict[TransferKey, Completion] = {}

    @property
    def incarnation(self) -> int:
        """This life of the sender, which the receiver must know to open a transfer."""
        return self._link.incarnation

    @property
    def backend(self) -> str:
        """What carries the bytes."""
        return self._link.backend

    @property
    def peer(self) -> str:
        """What is known of the receiver: ``"connected"`` or ``"lost"``."""
        return self._link.peer

    @property
    def remote(self) -> tuple[KvLayout, int]:
        """The receiver's layout and its blocks."""
        return self._link.remote

    def begin(
        self,
        grant: Grant | str,
        *,
        table: Sequence[int] | NDArray[np.uint32],
        tokens: int | tuple[int, int],
        dest_table: Sequence[int] | NDArray[np.uint32] | None = None,
    ) -> Transfer:
        """Begin a transfer, and plan it.

        Args:
            grant: The receiver's, or its JSON.
            table: This pool's blocks of the request, in position order from position 0.
            tokens: How many positions move, or the first and the one after the last.
            dest_table: The receiver's blocks in position order from position 0, where they are not just the granted
                ones.

        Raises:
            ConfigError: If there is no plan.
            TransferError: If the receiver is gone, or the grant is another's.
        """
        held = Grant.from_json(grant) if isinstance(grant, str) else grant
        layout, blocks = self.remote
        plan = plan_transfer(
            source=self.pool.layout,
            source_blocks=self.pool.blocks,
            source_table=table,
            dest=layout,
            dest_blocks=blocks,
            dest_table=held.blocks if dest_table is None else dest_table,
            tokens=tokens,
        )
        self._link.begin(held)
        return Transfer(held, plan)

    def put_layer(self, transfer: Transfer, layer: int) -> None:
        """Send a layer by the plan, and publish it. The pool's blocks must stay as they are until the transfer ends.

        Raises:
            TransferError: If it was stopped, the receiver is gone, or the plan leaves what was granted.
        """
        self._link.put_plan(transfer.key, layer, transfer.plan)
        self._link.publish(transfer.key, layer, transfer.plan.tokens)

    def put(self, transfer: Transfer | Grant | TransferKey, layer: int, ranges: NDArray[np.uint32]) -> None:
        """Send ranges of a layer: rows of block and offset here, block and offset there, and bytes.

        Raises:
            ConfigError: If it is no such array.
            TransferError: If a range may not be written; nothing of the call is then.
        """
        self._link.put(_key(transfer), layer, ranges)

    def publish(self, transfer: Transfer | Grant | TransferKey, layer: int, tokens: int) -> None:
        """Make a layer of so many tokens visible, after every byte put for it.

        Raises:
            TransferError: If bytes are missing, it was stopped, or the receiver is gone.
        """
        self._link.publish(_key(transfer), layer, tokens)

    def stop(self, transfer: Transfer | Grant | TransferKey) -> None:
        """Give a transfer up; its end follows."""
        self._link.stop(_key(transfer))

    def poll(self) -> list[Completion]:
        """Give the transfers that have ended since the last call, but not those that `finish` gave."""
        ended = [*self._ended.values(), *self._link.poll()]
        self._ended.clear()
        return ended

    def wait(self, timeout: float) -> bool:
        """Wait until there is an end to `poll`, at most so many seconds; says whether there is."""
        return bool(self._ended) or self._link.wait(timeout)

    def finish(self, transfer: Transfer | Grant | TransferKey, timeout: float) -> Completion:
        """Wait for the end of one transfer, whatever it is: then its blocks here may be reused.

        Args:
            transfer: Which.
            timeout: Seconds.

        Raises:
            TransferError: Of kind ``"timeout"``, if it has not ended.
        """
        key, deadline = _key(transfer), time.monotonic() + timeout
        while True:
            for completion in self._link.poll():
                self._ended[completion.key] = completion
            if key in self._ended:
                return self._ended.pop(key)
            left = deadline - time.monotonic()
            if left <= 0:
                error = TransferError(f"{key!r}: not ended within {timeout:g}s, peer {self.peer}")
                error.kind, error.key, error.layer = "timeout", key, None
                raise error
            self._link.wait(left)

    def close(self) -> None:
        """Disconnect; what is under way fails at the receiver. Closing twice does nothing."""
        self._link.close()

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Tell the backend and the incarnation."""
        return f"Sender(backend={self.backend!r}, incarnation={self.incarnation})"


def connect(
    pool: KvPool,
    endpoint: Mapping[str, Any],
    *,
    model: str,
    backend: Backend | None = None,
    incarnation: int | None = None,
    within: float = 5.0,
    checksums: bool | None = None,
    connections: int = 1,
    stall_limit: float = 10.0,
) -> Sender:
    """Connect a pool to a receiver.

    Args:
        pool: What is sent.
        endpoint: The receiver's.
        model: A name or hash of the model; the receiver must say the same.
        backend: What is to carry the bytes; the best that both have by default.
        incarnation: A number for this life of the sender, as of `new_incarnation`; a random one by default.
        within: Seconds that connecting may take.
        checksums: Whether layers carry a checksum; by default over TCP only. NIXL has none.
        connections: Streams at once, for TCP.
        stall_limit: Seconds that the receiver may take nothing before transfers fail.

    Raises:
        ConfigError: If an option is out of range.
        HandshakeError: If there is no backend for the two, no answer, or a field does not agree.
    """
    told = json.dumps(endpoint)
    nixl = (
        "nixl" in endpoint.get("backends", ()) and backend in (None, "nixl") and _has_nixl(required=backend == "nixl")
    )
    chosen = _native.choose_backend(pool.native, told, nixl=nixl, backend=backend)
    link: _native.Link | NixlLink
    if chosen == "nixl":
        link = NixlLink(
            pool.native,
            told,
            model=model,
            incarnation=new_incarnation() if incarnation is None else incarnation,
            within_s=within,
            stall_limit_s=stall_limit,
        )
    else:
        link = _native.connect(
            pool.native,
            told,
            model=model,
            incarnation=incarnation,
            backend=chosen,
            within_s=within,
            checksums=checksums,
            connections=connections,
            stall_limit_s=stall_limit,
        )
    return Sender(pool, link)


def _has_nixl(*, required: bool) -> bool:
    why = available()
    if why is not None and required:
        error = HandshakeError(why)
        error.kind, error.field = "no-backend", None
        raise error
    return why is None
