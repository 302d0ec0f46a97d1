"""A worker's session with its daemon over a socket; a thread answers the heartbeat whatever the worker does."""

import contextlib
import queue
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from splitcore.client.errors import AnswerError, SessionError, UnreachableError
from splitcore.client.worker.messages import Command, Identity, Key, Registration, Welcome
from splitcore.client.worker.protocol import WorkerProtocol
from splitcore.client.worker.stream import Stream

__all__ = ["REGISTER_LIMIT_S", "WorkerSession", "waits"]

REGISTER_LIMIT_S = 30.0
"""From the connection to `registered`."""


def waits(first_s: float = 0.1, most_s: float = 2.0) -> Iterator[float]:
    """Give the seconds to wait before each next try to connect, as the protocol asks.

    Args:
        first_s: Before the second try; it doubles.
        most_s: At most.

    Yields:
        Seconds, without end.
    """
    wait_s = first_s
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, most_s)


class WorkerSession:
    """One session, from the connection to its end. When it ends, begin another, as the `identity` of this one.

    For example::

        with WorkerSession("10.0.0.1:8091", identity, register) as session:
            for command in session:
                machine.handle([command.event])
    """

    def __init__(
        self,
        daemon: str,
        identity: Identity,
        register: Callable[[Welcome], Registration],
        *,
        secret: bytes | None = None,
        timeout_s: float | None = REGISTER_LIMIT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect, prove, and register.

        Args:
            daemon: Where workers connect: ``host:port``, or ``unix:/path``.
            identity: Who connects.
            register: Says what is held, when the daemon has said who this worker is. It should not take long: the
                heartbeat waits for it.
            secret: That the service shares with its workers.
            timeout_s: Until the worker is registered. From then on the silence limit of the welcome holds.
            tls: To speak TLS, and whom to trust; the host of `daemon` is the name that the certificate must be for.

        Raises:
            UnreachableError: If nobody answers, or not in time.
            SessionError: If the daemon refuses the worker; it says which `field` is wrong.
            AnswerError: If the daemon does not speak the protocol, or does not know the secret.
        """
        self._protocol = WorkerProtocol(identity, secret=secret)
        self._commands: queue.SimpleQueue[Command | Exception] = queue.SimpleQueue()
        self._ended: Exception | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._stream = Stream(daemon, tls, timeout_s)
        except OSError as error:
            raise UnreachableError(f"{daemon}: {error}") from error
        try:
            self._begin(register, deadline)
        except BaseException:
            self._stream.close()
            raise
        self._thread = threading.Thread(target=self._read, name="splitcore-session", daemon=True)
        self._thread.start()

    @property
    def identity(self) -> Identity:
        """Who the worker is by now: with its place and the epoch of the service."""
        return self._protocol.identity

    @property
    def welcome(self) -> Welcome:
        """What the daemon has said."""
        welcome = self._protocol.welcome
        if welcome is None:
            raise SessionError("the worker is not welcome yet")
        return welcome

    def _begin(self, register: Callable[[Welcome], Registration], deadline: float | None) -> None:
        protocol = self._protocol
        asked = False
        while not protocol.is_registered:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise UnreachableError("the daemon did not register this worker in time")
            self._stream.settimeout(left)
            try:
                data = self._stream.receive()
            except TimeoutError as error:
                raise UnreachableError("the daemon did not register this worker in time") from error
            except OSError as error:
                raise UnreachableError(f"the connection broke: {error}") from error
            self._receive(data)
            if protocol.welcome is not None and not asked:
                asked = True
                protocol.register(register(protocol.welcome))
                self._flush()
        self._stream.settimeout(self.welcome.silence_limit_ns / 1e9)

    def _receive(self, data: bytes) -> None:
        """Take bytes in, and send what follows from them, also where they end the session."""
        with self._lock:
            try:
                said = self._stream.take(data)
            except OSError as error:
                raise UnreachableError(f"the connection broke: {error}") from error
            if said is None:
                raise UnreachableError("the daemon hung up")
            try:
                for command in self._protocol.receive(said):
                    self._commands.put(command)
            finally:
                self._flush()

    def _flush(self) -> None:
        data = self._protocol.to_send()
        if data:
            try:
                self._stream.send(data)
            except OSError as error:
                raise UnreachableError(f"the connection broke: {error}") from error

    def _read(self) -> None:
        try:
            while True:
                try:
                    data = self._stream.receive()
                except TimeoutError:
                    raise UnreachableError("the daemon has been silent for too long") from None
                except OSError as error:
                    raise UnreachableError(f"the connection broke: {error}") from error
                self._receive(data)
        except (AnswerError, SessionError, UnreachableError) as error:
            self._commands.put(error)

    def next_command(self, timeout_s: float | None = None) -> Command | None:
        """Wait for a command.

        Args:
            timeout_s: How long; None waits until the session ends.

        Returns:
            The next one; None if the time is over, or after `close`.

        Raises:
            SessionError: If the daemon has ended the session.
            UnreachableError: If the connection is gone, or silent.
            AnswerError: If the daemon said what it may not.
        """
        if self._ended is None and not self._is_closed:
            try:
                got = self._commands.get(timeout=timeout_s)
            except queue.Empty:
                return None
            if isinstance(got, Command):
                return got
            self._ended = got
        if self._is_closed or self._ended is None:
            return None
        raise self._ended

    def __iter__(self) -> Iterator[Command]:
        """Give commands until `close`; another end is an error, as in `next_command`."""
        while (command := self.next_command()) is not None:
            yield command

    def notice(self, notice: Mapping[str, Any]) -> None:
        """Say something to the scheduler.

        Args:
            notice: As the action ``notify`` of `splitcore.Machine` has it, with its ``type``.

        Raises:
            UnreachableError: If the connection is gone.
        """
        with self._lock:
            self._protocol.notice(notice)
            self._flush()

    def tokens(self, key: Key, start: int, ids: Sequence[int]) -> None:
        """Give output tokens.

        Args:
            key: Whose.
            start: The index of the first, counted from 0 over all output tokens of the request and all attempts.
            ids: The tokens.

        Raises:
            UnreachableError: If the connection is gone.
        """
        with self._lock:
            self._protocol.tokens(key, start, ids)
            self._flush()

    def leave(self) -> None:
        """Say that the worker is to be stopped: it gets no new work, and what it has may go on elsewhere.

        It goes on with what it has until commands take that back. Once it holds nothing any more the daemon ends the
        session.

        Raises:
            UnreachableError: If the connection is gone.
        """
        with self._lock:
            self._protocol.leave()
            self._flush()

    def close(self, reason: str = "the worker ends") -> None:
        """End the session.

        Args:
            reason: That the daemon is told, for people.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # Whoever waits for a command hears of it.
        self._commands.put(SessionError("the session is closed"))
        with self._lock, contextlib.suppress(UnreachableError):
            self._protocol.close(reason)
            self._flush()
        with self._lock:
            self._stream.end()
        self._thread.join()
        self._stream.close()

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session."""
        self.close()
