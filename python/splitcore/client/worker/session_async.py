"""A worker's session with its daemon, for asyncio."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from splitcore.client.errors import AnswerError, SessionError, UnreachableError
from splitcore.client.worker.messages import Command, Identity, Key, Registration, Welcome
from splitcore.client.worker.protocol import WorkerProtocol
from splitcore.client.worker.session import REGISTER_LIMIT_S
from splitcore.client.worker.stream import address

__all__ = ["AsyncWorkerSession"]

_READ_BYTES = 1 << 16


class AsyncWorkerSession:
    """One session, from the connection to its end, as `WorkerSession` in asyncio.

    It connects where its block begins, and a task of its own answers the heartbeat: whoever computes for long does so
    in a thread.
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
        """Say where to connect; nothing is done yet.

        Args:
            daemon: Where workers connect: ``host:port``, or ``unix:/path``.
            identity: Who connects.
            register: Says what is held, when the daemon has said who this worker is.
            secret: That the service shares with its workers.
            timeout_s: Until the worker is registered. From then on the silence limit of the welcome holds.
            tls: To speak TLS, and whom to trust; the host of `daemon` is the name that the certificate must be for.
        """
        self._daemon = daemon
        self._register = register
        self._timeout_s = timeout_s
        self._tls = tls
        self._protocol = WorkerProtocol(identity, secret=secret)
        self._commands: asyncio.Queue[Command | Exception] = asyncio.Queue()
        self._ended: Exception | None = None
        self._is_closed = False
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._task: asyncio.Task[None]

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

    async def connect(self) -> None:
        """Connect, prove, and register; the block does so.

        Raises:
            UnreachableError: If nobody answers, or not in time.
            SessionError: If the daemon refuses the worker; it says which `field` is wrong.
            AnswerError: If the daemon does not speak the protocol, or does not know the secret.
        """
        where = address(self._daemon)
        if self._tls is not None and isinstance(where, str):
            raise SessionError(f"tls: expected host:port as the address, got {self._daemon}")
        try:
            async with asyncio.timeout(self._timeout_s):
                if isinstance(where, str):
                    self._reader, self._writer = await asyncio.open_unix_connection(where)
                else:
                    self._reader, self._writer = await asyncio.open_connection(*where, ssl=self._tls)
                try:
                    await self._begin()
                except BaseException:
                    self._writer.close()
                    raise
        except TimeoutError as error:
            raise UnreachableError("the daemon did not register this worker in time") from error
        except OSError as error:
            raise UnreachableError(f"{self._daemon}: {error}") from error
        self._task = asyncio.create_task(self._read())

    async def _begin(self) -> None:
        asked = False
        while not self._protocol.is_registered:
            await self._receive()
            if self._protocol.welcome is not None and not asked:
                asked = True
                self._protocol.register(self._register(self._protocol.welcome))
                await self._flush()

    async def _receive(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise UnreachableError("the daemon hung up")
        try:
            for command in self._protocol.receive(data):
                self._commands.put_nowait(command)
        finally:
            await self._flush()

    async def _flush(self) -> None:
        # One write for all that there is, so that what several tasks say stays whole.
        self._writer.write(self._protocol.to_send())
        await self._writer.drain()

    async def _read(self) -> None:
        silence_s = self.welcome.silence_limit_ns / 1e9
        try:
            while True:
                async with asyncio.timeout(silence_s):
                    await self._receive()
        except TimeoutError:
            self._commands.put_nowait(UnreachableError("the daemon has been silent for too long"))
        except OSError as error:
            self._commands.put_nowait(UnreachableError(f"the connection broke: {error}"))
        except (AnswerError, SessionError, UnreachableError) as error:
            self._commands.put_nowait(error)

    async def next_command(self) -> Command | None:
        """Wait for a command.

        Returns:
            The next one; None after `close`.

        Raises:
            SessionError: If the daemon has ended the session.
            UnreachableError: If the connection is gone, or silent.
            AnswerError: If the daemon said what it may not.
        """
        if self._ended is None and not self._is_closed:
            got = await self._commands.get()
            if isinstance(got, Command):
                return got
            self._ended = got
        if self._is_closed or self._ended is None:
            return None
        raise self._ended

    async def __aiter__(self) -> AsyncIterator[Command]:
        """Give commands until `close`; another end is an error, as in `next_command`."""
        while (command := await self.next_command()) is not None:
            yield command

    async def notice(self, notice: Mapping[str, Any]) -> None:
        """Say something to the scheduler.

        Args:
            notice: As the action ``notify`` of `splitcore.Machine` has it, with its ``type``.

        Raises:
            UnreachableError: If the connection is gone.
        """
        self._protocol.notice(notice)
        await self._say()

    async def tokens(self, key: Key, start: int, ids: Sequence[int]) -> None:
        """Give output tokens.

        Args:
            key: Whose.
            start: The index of the first, counted from 0 over all output tokens of the request and all attempts.
            ids: The tokens.

        Raises:
            UnreachableError: If the connection is gone.
        """
        self._protocol.tokens(key, start, ids)
        await self._say()

    async def leave(self) -> None:
        """Say that the worker is to be stopped: it gets no new work, and what it has may go on elsewhere.

        It goes on with what it has until commands take that back. Once it holds nothing any more the daemon ends the
        session.

        Raises:
            UnreachableError: If the connection is gone.
        """
        self._protocol.leave()
        await self._say()

    async def _say(self) -> None:
        try:
            await self._flush()
        except OSError as error:
            raise UnreachableError(f"the connection broke: {error}") from error

    async def close(self, reason: str = "the worker ends") -> None:
        """End the session.

        Args:
            reason: That the daemon is told, for people.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._commands.put_nowait(SessionError("the session is closed"))
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._protocol.close(reason)
        with contextlib.suppress(OSError):
            await self._flush()
            self._writer.close()
            await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        """Connect and register."""
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session."""
        await self.close()
