"""The worker protocol from another language: the published frames, read and written with msgpack alone."""

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

FRAMES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "docs" / "protocol" / "frames.json").read_text())
SECRET = b"correct horse battery staple"


def name_of(example: dict[str, Any]) -> str:
    return f"{example['to']}-{example['name']}"


def body(to: str, name: str) -> dict[str, Any]:
    """The fields of the first example of a message."""
    message = next(frame["message"] for frame in FRAMES if (frame["to"], frame["name"]) == (to, name))
    fields: dict[str, Any] = message[name]
    return fields


@pytest.mark.parametrize("example", FRAMES, ids=name_of)
def test_a_frame_is_a_length_and_the_message(example: dict[str, Any]) -> None:
    frame = bytes.fromhex(example["frame"])
    (length,) = struct.unpack("<I", frame[:4])
    assert length == len(frame) - 4
    message = msgpack.unpackb(frame[4:])
    assert message == example["message"]
    assert list(message) == [example["name"]]


@pytest.mark.parametrize("example", FRAMES, ids=name_of)
def test_what_msgpack_writes_is_the_same_frame(example: dict[str, Any]) -> None:
    packed = msgpack.packb(example["message"])
    assert struct.pack("<I", len(packed)) + packed == bytes.fromhex(example["frame"])


@pytest.mark.parametrize(
    ("who", "to", "message", "name"),
    [
        ("worker", "daemon", "hello", "token-0"),
        ("daemon", "worker", "welcome", "token-0"),
        ("destination", "peer", "hello", "2.7"),
        ("source", "peer", "welcome", "0.5"),
    ],
)
def test_a_proof_is_what_the_page_says(who: str, to: str, message: str, name: str) -> None:
    greeted, hello = ("peer", "peer") if to == "peer" else ("worker", "daemon")
    nonces = body(greeted, "challenge")["nonce"] + body(hello, "hello")["nonce"]
    signed = f"splitcore 1 {who}\0".encode() + bytes.fromhex(nonces) + name.encode()
    assert body(to, message)["proof"] == hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
