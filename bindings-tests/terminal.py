"""A command in a terminal of its own, as a person has it: what is drawn, keys, and the terminal that closes."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 50
_LOOK_S = 0.02


class Terminal:
    """A process at its terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self._said = b""
        self._changed = threading.Condition()
        self._over = self._closes = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The last process at a terminal that ends ends it.
        with contextlib.suppress(OSError):
            while not self._closes:
                if not select.select([self._master], [], [], _LOOK_S)[0]:
                    continue
                piece = os.read(self._master, 65536)
                with self._changed:
                    self._said += piece
                    self._changed.notify_all()
        os.close(self._master)
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def said(self) -> str:
        """All that was drawn."""
        with self._changed:
            return self._said.decode(errors="replace")

    def wait_for(self, text: str, since: int = 0) -> int:
        """Wait until something is drawn; return where it ends."""
        with self._changed:
            found = self._changed.wait_for(lambda: text.encode() in self._said[since:] or self._over, LIMIT_S)
            at = self._said.find(text.encode(), since)
        assert found, f"{text!r} is not drawn: {self.said}"
        assert at >= 0, f"it ended before {text!r} was drawn: {self.said}"
        return at + len(text.encode())

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        """Close the terminal, as its window's button does: who is at it gets SIGHUP."""
        self._closes = True
        self._reader.join(LIMIT_S)

    def end(self) -> int:
        """Wait for the end of the process; return its status, and have all that it drew."""
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return status


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def terminal(*command: str, columns: int = 80, **environment: str) -> Iterator[Terminal]:
    """Run a command of Python in a terminal until the block ends."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    paths = [str(Path(__file__).parent.parent / "python"), str(Path(__file__).parent)]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TERM": "xterm", "COLUMNS": "", "LINES": ""}
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_take_terminal,
        env=given | environment,
    )
    os.close(slave)
    run = Terminal(process, master)
    try:
        yield run
    finally:
        process.kill()
        process.wait(LIMIT_S)
        run.close()


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return found


def wait_gone(pids: list[int]) -> None:
    """Wait until none of these processes lives."""
    deadline = time.monotonic() + LIMIT_S
    left = pids
    while left:
        left = [pid for pid in left if _lives(pid)]
        assert time.monotonic() < deadline, f"they live on: {left}"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
