"""Runs sides of a transfer as processes, each call bounded."""

import itertools
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

PEER = Path(__file__).with_name("kv_peer.py")

LAYOUT = {"layers": 3, "heads": 2, "head_dim": 8, "block_tokens": 4, "dtype": "f32"}
BLOCKS = 12
LIVES = itertools.count(1000)


class Told(Exception):  # noqa: N818
    """The other process answered with an error of splitcore."""

    def __init__(self, answer):
        super().__init__(answer["error"])
        self.kind = answer["kind"]


class Side:
    """A process with one side of a transfer."""

    def __init__(self, env=None):
        self._process = subprocess.Popen(
            [sys.executable, str(PEER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self._rest = b""

    def send(self, do, **arguments):
        """Send a command whose answer is taken later, if ever."""
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, within=20.0):
        """Take the next answer."""
        deadline = time.monotonic() + within
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self.kill()
                pytest.fail(f"no answer within {within} s")
            got = os.read(self._process.stdout.fileno(), 1 << 16)
            if not got:
                raise EOFError(f"the process ended with {self._process.wait(5)}")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Told(answer)
        return answer["ok"]

    def __call__(self, do, within=20.0, **arguments):
        """Run a command."""
        self.send(do, **arguments)
        return self.answer(within)

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """Kill -9, and see it gone."""
        self._process.kill()
        self._process.wait(10)

    def end(self):
        """End it as it would itself; its exit status."""
        self._process.stdin.close()
        try:
            return self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        finally:
            self._process.stdout.close()


@pytest.fixture
def sides():
    """Make processes; whatever is left of them at the end is killed."""
    made = []

    def make(env=None):
        side = Side(env)
        made.append(side)
        return side

    yield make
    for side in made:
        if side._process.poll() is None:
            side.kill()
        side._process.stdin.close()
        side._process.stdout.close()


def key_of(grant):
    """Take the transfer's name out of a grant."""
    key = json.loads(grant)["key"]
    return [key["request"], key["slot"], key["generation"]]


def pair(sides, env=None, *, source=LAYOUT, dest=LAYOUT, listen=None, backend=None, **connect):
    """Make a receiver and a sender that is connected to it; gives both and the sender's incarnation."""
    receiver, sender = sides(env), sides(env)
    receiver.send("pool_", layout=dest, blocks=BLOCKS)
    sender.send("pool_", layout=source, blocks=BLOCKS, seed=1)
    receiver.answer()
    endpoint = receiver("listen", **(listen or {}))
    sender.answer()
    return receiver, sender, join(receiver, sender, endpoint, backend=backend, **connect)


def join(receiver, sender, endpoint, *, backend, **options):
    """Connect a sender; its incarnation."""
    life = next(LIVES)
    sender.send("connect", endpoint=endpoint, backend=backend, incarnation=life, **options)
    state = receiver("joined", writer=life, timeout=5.0)
    _, used = sender.answer()
    assert (state, backend) in (("connected", used), ("connected", None))
    return life
