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


KEY = bytes([5]) * 32
"""Of the source of the examples."""


def signed(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("who", "to", "message", "name"),
    [
        ("worker", "daemon", "hello", "token-0"),
        ("daemon", "worker", "welcome", "token-0"),
        ("destination", "peer", "prove", ""),
        ("source", "peer", "proved", ""),
        ("destination", "peer", "hello", "2.7 to 0.5"),
        ("source", "peer", "welcome", "0.5 to 2.7"),
    ],
)
def test_a_proof_is_what_the_page_says(who: str, to: str, message: str, name: str) -> None:
    if to == "peer":
        secret, greeted, answer = signed(SECRET, b"splitcore 1 key\0", KEY), "peer", body("peer", "prove")
    else:
        secret, greeted, answer = SECRET, "worker", body("daemon", "hello")
    nonces = bytes.fromhex(body(greeted, "challenge")["nonce"] + answer["nonce"])
    proof = signed(secret, f"splitcore 1 {who}\0".encode(), nonces, name.encode())
    assert body(to, message)["proof"] == proof.hex()


def test_the_name_of_a_key_is_what_the_page_says() -> None:
    assert body("peer", "prove")["key"] == signed(KEY, b"splitcore 1 name\0")[:16].hex()
