"""A worker's session with its daemon, without a socket: bytes in, bytes and events out."""

import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from splitcore.client.errors import AnswerError, SessionError
from splitcore.client.reading import plain, read
from splitcore.client.worker.frames import Decoder, encode
from splitcore.client.worker.messages import Command, Descriptor, Identity, Key, PeerAddress, Registration, Welcome

__all__ = ["HANDSHAKE_LIMIT_S", "PROTOCOL", "WorkerProtocol", "prove"]

PROTOCOL = 2
HANDSHAKE_LIMIT_S = 5.0
"""From the connection to the welcome."""

_WITH_REQUEST = ("reserve", "compute", "keep")
_WITH_PEER = ("reserve", "send")


def prove(secret: bytes, who: str, challenge: str, hello: str, name: str) -> str:
    """Make the proof that one knows the secret.

    Args:
        secret: Shared; white space at its end does not count.
        who: ``"worker"`` or ``"daemon"``, and between workers ``"source"`` or ``"destination"``.
        challenge: The nonce of the challenge, in hexadecimal.
        hello: The nonce of the hello.
        name: Of the worker, and between workers ``index.incarnation`` of the one who proves.

    Returns:
        The proof in hexadecimal.
    """
    signed = f"splitcore 1 {who}\0".encode() + bytes.fromhex(challenge) + bytes.fromhex(hello) + name.encode()
    return hmac.new(secret.rstrip(), signed, hashlib.sha256).hexdigest()


class WorkerProtocol:
    """Who may say what when, as `docs/protocol.md` says.

    Feed it what comes (`receive`), send what it has to say (`to_send`), and answer its `welcome` with `register`.
    """

    def __init__(self, identity: Identity, *, secret: bytes | None = None) -> None:
        """Begin with a connection on which nothing has come.

        Args:
            identity: Who connects.
            secret: That the service shares with its workers.
        """
        self.identity = identity
        self.welcome: Welcome | None = None
        self.is_registered = False
        self._secret = secret
        self._nonce = secrets.token_hex(16)
        self._challenge: str | None = None
        self._asked = False
        self._seq = 0
        self._decoder = Decoder()
        self._out = bytearray()

    def to_send(self) -> bytes:
        """Take what is to be sent."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes) -> Iterator[Command]:
        """Take bytes in. Pings are answered; the welcome and the registration show in the attributes.

        Args:
            data: That have come.

        Yields:
            Commands.

        Raises:
            SessionError: If the daemon ends the session, or refuses the worker.
            AnswerError: If what came is not what may come; `to_send` then tells the daemon so.
        """
        self._decoder.feed(data)
        try:
            for name, body in self._decoder.messages():
                command = self._take(name, body)
                if command is not None:
                    yield command
        except AnswerError as error:
            self.close(str(error))
            raise

    def _take(self, name: str, body: dict[str, Any]) -> Command | None:
        if name == "close":
            raise SessionError(f"the daemon ends the session: {body.get('reason', '')}")
        if name == "ping" and self.welcome is not None:
            self._send("pong", {"number": read(int, body.get("number"), "ping.number")})
        elif name == "refused" and self.welcome is None:
            field, ours, theirs = (str(body.get(part, "")) for part in ("field", "ours", "theirs"))
            message = f"the daemon refuses this worker: {field}: expected {ours}, got {theirs}"
            permanent = body.get("permanent") is True
            raise SessionError(message, field=field, ours=ours, theirs=theirs, permanent=permanent)
        elif name == "challenge" and self._challenge is None:
            self._greet(body)
        elif name == "welcome" and self._challenge is not None and self.welcome is None:
            self._enter(read(Welcome, body, "welcome"))
        elif name == "registered" and self.welcome is not None and self._asked and not self.is_registered:
            if body.get("epoch") != self.welcome.epoch:
                raise AnswerError("registered: it names another epoch than the welcome did")
            self.is_registered = True
            self.identity = dataclasses.replace(self.identity, epoch=self.welcome.epoch)
        elif name == "enough" and self.is_registered:
            # An output may end here. Who goes on computes for nothing until the abort comes, and no more than that.
            pass
        elif name == "command" and self.is_registered and self.welcome is not None:
            return self._command(self.welcome.epoch, body)
        else:
            raise AnswerError(f"unexpected {name}")
        return None

    def _greet(self, body: Mapping[str, Any]) -> None:
        if body.get("protocol") != PROTOCOL:
            self._refuse("protocol", str(PROTOCOL), str(body.get("protocol")))
        if bool(body.get("secret")) != (self._secret is not None):
            ours, theirs = ("no secret", "a secret")[:: 1 if self._secret is None else -1]
            self._refuse("secret", ours, theirs)
        challenge = read(str, body.get("nonce"), "challenge.nonce")
        self._challenge = _nonce(challenge)
        hello = plain(self.identity) | {"protocol": PROTOCOL, "nonce": self._nonce, "proof": None}
        if self.identity.context is None:
            del hello["context"]
        if self._secret is not None:
            hello["proof"] = prove(self._secret, "worker", challenge, self._nonce, self.identity.name)
        self._send("hello", hello)

    def _enter(self, welcome: Welcome) -> None:
        if welcome.protocol != PROTOCOL:
            self._refuse("protocol", str(PROTOCOL), str(welcome.protocol))
        if self._secret is not None:
            right = prove(self._secret, "daemon", self._challenge or "", self._nonce, self.identity.name)
            if not hmac.compare_digest(right.encode(), (welcome.proof or "").encode()):
                self._refuse("proof", "the same secret", "a proof by another")
        if welcome.epoch < self.identity.epoch:
            raise AnswerError(f"welcome: epoch {welcome.epoch} has been replaced by {self.identity.epoch}")
        index = welcome.machine.index if self.identity.index is None else self.identity.index
        if (welcome.machine.index, welcome.machine.incarnation) != (index, self.identity.incarnation):
            raise AnswerError("welcome: it names another machine than the hello did")
        if welcome.silence_limit_ns <= welcome.ping_interval_ns:
            raise AnswerError("welcome: silence_limit is not above ping_interval")
        self.welcome = welcome
        self.identity = dataclasses.replace(self.identity, index=welcome.machine.index)
        self._decoder.bytes_max = welcome.frame_bytes_max

    def _command(self, epoch: int, body: Mapping[str, Any]) -> Command:
        seq = read(int, body.get("seq"), "command.seq")
        command = read(dict[str, Any], body.get("command"), "command.command")
        kind = command.get("type")
        descriptor = read(Descriptor | None, body.get("descriptor"), "command.descriptor")  # type: ignore[arg-type]
        peer = read(PeerAddress | None, body.get("peer"), "command.peer")  # type: ignore[arg-type]
        if seq <= self._seq:
            raise AnswerError(f"command: number {seq} after {self._seq}")
        if (kind in _WITH_REQUEST) != (descriptor is not None) or (kind in _WITH_PEER) != (peer is not None):
            raise AnswerError(f"command: {kind} without what goes with it, or with more")
        self._seq = seq
        return Command(epoch, seq, command, descriptor, peer)

    def _refuse(self, field: str, ours: str, theirs: str) -> None:
        raise AnswerError(f"{field}: this worker has {ours}, the daemon {theirs}")

    def register(self, registration: Registration) -> None:
        """Say what is held; to be said once, after the welcome.

        Args:
            registration: What is held.

        Raises:
            SessionError: If it is not to be said now.
        """
        welcome = self.welcome
        if welcome is None or self._asked:
            raise SessionError("a worker registers once, after the welcome")
        if welcome.epoch != self.identity.epoch:
            for key, descriptor in sorted(registration.descriptors.items()):
                self._send("describe", {"key": plain(key), "descriptor": plain(descriptor)})
        join = {
            "machine": plain(welcome.machine),
            "role": registration.role,
            "kv_capacity_tokens": registration.kv_capacity_tokens,
            "speed_weight": registration.speed_weight,
            "link": plain(registration.link),
            "costs": plain(registration.costs),
        }
        held = {"report": plain(registration.report), "claims": plain(registration.claims)}
        self._send("register", {"join": join, "epoch": self.identity.epoch, **held})
        self._asked = True

    def notice(self, notice: Mapping[str, Any]) -> None:
        """Say something to the scheduler.

        Args:
            notice: As the action ``notify`` of `splitcore.Machine` has it, with its ``type``.

        Raises:
            SessionError: If the worker is not registered: what would be said is said again after the next registration.
        """
        self._say("notice", plain(notice))

    def tokens(self, key: Key, start: int, ids: Sequence[int]) -> None:
        """Give output tokens.

        Args:
            key: Whose.
            start: The index of the first, counted from 0 over all output tokens of the request and all attempts.
            ids: The tokens.

        Raises:
            SessionError: If the worker is not registered.
        """
        self._say("tokens", {"key": plain(key), "from": start, "ids": [int(token) for token in ids]})

    def leave(self) -> None:
        """Say that the worker is to be stopped: it gets no new work, and what it has may go on elsewhere.

        It goes on with what it has until commands take that back. Once it holds nothing any more the daemon ends the
        session.

        Raises:
            SessionError: If the worker is not registered.
        """
        self._say("leave", {})

    def close(self, reason: str) -> None:
        """Say that the session ends.

        Args:
            reason: For people.
        """
        self._send("close", {"reason": reason})

    def _say(self, name: str, body: Mapping[str, Any]) -> None:
        if not self.is_registered:
            raise SessionError("the worker is not registered")
        self._send(name, body)

    def _send(self, name: str, body: Mapping[str, Any]) -> None:
        self._out += encode(name, body)


def _nonce(text: str) -> str:
    try:
        if len(bytes.fromhex(text)) == 16:
            return text
    except ValueError:
        pass
    raise AnswerError("challenge: expected a nonce of 16 bytes in hexadecimal")
