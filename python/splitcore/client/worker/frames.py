"""Frames of the worker protocol: a length and a message in MessagePack. `docs/protocol.md` is the page about them."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

try:
    import msgpack
except ImportError as error:
    raise ImportError("the worker protocol needs msgpack: pip install 'splitcore[client]'") from error

from splitcore.client.errors import AnswerError

__all__ = ["DEPTH_MAX", "FRAME_BYTES_MAX", "HANDSHAKE_BYTES_MAX", "Decoder", "encode"]

HANDSHAKE_BYTES_MAX = 16 << 10
"""Bytes of a frame before the welcome."""
FRAME_BYTES_MAX = 16 << 20
"""Bytes of a frame from then on, unless the welcome says otherwise."""
DEPTH_MAX = 24
"""How deep maps and arrays may lie in one another."""

_LENGTH = struct.Struct("<I")


def encode(name: str, body: Mapping[str, Any]) -> bytes:
    """Make the frame of a message.

    Args:
        name: Of the message.
        body: Its fields.

    Returns:
        The bytes to send.
    """
    packed: bytes = msgpack.packb({name: body})
    return _LENGTH.pack(len(packed)) + packed


class Decoder:
    """Takes bytes as they come and gives the messages in them."""

    def __init__(self, bytes_max: int = HANDSHAKE_BYTES_MAX) -> None:
        """Start at the begin of a frame.

        Args:
            bytes_max: Of a frame; may be changed between messages.
        """
        self.bytes_max = bytes_max
        self._buffer = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no frame has begun and not ended."""
        return not self._buffer

    def feed(self, data: bytes) -> None:
        """Take bytes in.

        Args:
            data: That have come.
        """
        self._buffer += data

    def messages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give the messages that are whole.

        Yields:
            Name and fields.

        Raises:
            AnswerError: If what has come is no frame; nothing is to be read after that.
        """
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not 1 <= length <= self.bytes_max:
                raise AnswerError(f"a frame of {length} bytes, where 1 to {self.bytes_max} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _read(frame)


def _read(frame: bytes) -> tuple[str, dict[str, Any]]:
    try:
        message = msgpack.unpackb(frame)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise AnswerError(f"a frame that is no MessagePack: {error}") from None
    if not isinstance(message, dict) or len(message) != 1:
        raise AnswerError("a frame that is not a map of one message")
    ((name, body),) = message.items()
    if not isinstance(name, str) or not isinstance(body, dict):
        raise AnswerError("a message that is not a name and a map of its fields")
    if _depth(message) > DEPTH_MAX:
        raise AnswerError(f"a message that is more than {DEPTH_MAX} deep")
    return name, body


def _depth(value: object) -> int:
    """How deep maps and arrays lie in one another; what is too deep is not followed to its end."""
    depth, level = 0, [value]
    while level and depth <= DEPTH_MAX:
        inner = [part for part in level if isinstance(part, dict | list)]
        level = [item for part in inner for item in (part.values() if isinstance(part, dict) else part)]
        depth += bool(inner)
    return depth
