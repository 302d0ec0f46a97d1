"""The socket of a worker's session, with TLS or without, which a thread reads from while others write."""

import contextlib
import socket
import ssl
import time

from splitcore.client.errors import SessionError

__all__ = ["Stream", "address"]

_READ_BYTES = 1 << 16


def address(text: str) -> tuple[str, int] | str:
    """Read an address.

    Args:
        text: ``host:port``, or ``unix:/path``.

    Returns:
        Host and port, or the path of a socket.

    Raises:
        SessionError: If it is neither.
    """
    if text.startswith("unix:"):
        return text.removeprefix("unix:")
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SessionError(f"address: expected host:port or unix:/path, got {text}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Stream:
    """A connection. What one thread has received another may take; all but `receive` are for one thread at a time.

    A socket of `ssl` is not for two threads, so TLS is between this and a plain one.
    """

    def __init__(self, daemon: str, tls: ssl.SSLContext | None, timeout_s: float | None) -> None:
        """Connect, with TLS if there is a context.

        Args:
            daemon: Where, as in `address`.
            tls: For TLS.
            timeout_s: For all of it.

        Raises:
            OSError: If nobody answers, or not as the context wants it; `TimeoutError` if not in time.
            SessionError: If the address is none, or none for TLS.
        """
        where = address(daemon)
        if tls is not None and isinstance(where, str):
            raise SessionError(f"tls: expected host:port as the address, got {daemon}")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._tls: ssl.SSLObject | None = None
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._socket = _connect(where, timeout_s)
        if tls is None:
            return
        try:
            self._tls = tls.wrap_bio(self._in, self._out, server_hostname=where[0])
            self._shake_hands(self._tls, deadline)
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self, tls: ssl.SSLObject, deadline: float | None) -> None:
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send_tls()
            except ssl.SSLError:
                # The other side is told why.
                with contextlib.suppress(OSError):
                    self._send_tls()
                raise
            else:
                self._send_tls()
                return
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError("no end of the TLS handshake in time")
            self._socket.settimeout(left_s)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the daemon hung up in the TLS handshake")
            self._in.write(data)

    def _send_tls(self) -> None:
        data = self._out.read()
        if data:
            self._socket.sendall(data)

    def settimeout(self, timeout_s: float | None) -> None:
        """Bound each `receive` and each `send`.

        Args:
            timeout_s: Seconds; None for no bound.
        """
        self._socket.settimeout(timeout_s)

    def receive(self) -> bytes:
        """Wait for bytes.

        Returns:
            What has come, for `take`; nothing at the end.
        """
        return self._socket.recv(_READ_BYTES)

    def take(self, data: bytes) -> bytes | None:
        """Read what has come.

        Args:
            data: From `receive`.

        Returns:
            What it says, which may be nothing yet; None when nothing more follows.
        """
        if not data:
            return None
        if self._tls is None:
            return data
        self._in.write(data)
        said = bytearray()
        try:
            while part := self._tls.read(_READ_BYTES):
                said += part
        except ssl.SSLWantReadError:
            # An answer of TLS itself, if it has one.
            self._send_tls()
            return bytes(said)
        except ssl.SSLZeroReturnError:
            pass
        # The end is told again to who asks again.
        return bytes(said) or None

    def send(self, data: bytes) -> None:
        """Send bytes.

        Args:
            data: All of them.
        """
        if self._tls is None:
            self._socket.sendall(data)
            return
        self._tls.write(data)
        self._send_tls()

    def end(self) -> None:
        """Say that nothing follows, and wake who waits in `receive`."""
        with contextlib.suppress(OSError):
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                self._send_tls()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def _connect(where: tuple[str, int] | str, timeout_s: float | None) -> socket.socket:
    if isinstance(where, str):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        try:
            made.connect(where)
        except OSError:
            made.close()
            raise
        return made
    made = socket.create_connection(where, timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
