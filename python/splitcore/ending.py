"""Signals that ask a command to end: it tidies up first, as at Ctrl-C.

By default SIGTERM (``kill``, ``timeout``) and SIGHUP (a terminal that closes) end a process where it stands: its
children live on, and its terminal stays as it was drawn.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Ended", "ending", "run"]

_NUMBERS = (signal.SIGTERM, signal.SIGHUP)


class Ended(SystemExit):
    """A signal has asked for the end. Uncaught, it is the exit status that shells give such a process."""

    def __init__(self, number: int) -> None:
        """Take the exit status from the signal.

        Args:
            number: Of the signal.
        """
        super().__init__(128 + number)


class _Work:
    """What `run` runs, and the signal that has come meanwhile."""

    def __init__(self) -> None:
        self.task: asyncio.Task[object] | None = None
        self.ended: Ended | None = None


_work: _Work | None = None


def run(work: Coroutine[Any, Any, object]) -> None:
    """Run as `asyncio.run` does, and at SIGTERM and SIGHUP cancel the work as that does at Ctrl-C.

    An exception out of the signal would end any task that happens to run just then.

    Args:
        work: What is run.

    Raises:
        Ended: If a signal has come, within `ending`; the work is over by then.
    """
    global _work
    here = _Work()

    async def cancelled_by_signals() -> None:
        global _work
        here.task, _work = asyncio.current_task(), here
        await work

    before = _work
    try:
        asyncio.run(cancelled_by_signals())
    except asyncio.CancelledError:
        if here.ended is None:
            raise
    finally:
        _work = before
    if here.ended is not None:
        raise here.ended


def _end(number: int, _: FrameType | None) -> None:
    _leave_closed_terminals()
    ended = Ended(number)
    # The second one does not wait.
    if _work is None or _work.task is None or _work.ended is not None:
        raise ended
    _work.ended = ended
    _work.task.cancel()
    # So that the loop looks.
    _work.task.get_loop().call_soon_threadsafe(lambda: None)


def _leave_closed_terminals() -> None:
    """Write to nowhere from here on what can be written nowhere else, so that tidying up does not fail at it."""
    for output in (1, 2):
        try:
            os.write(output, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)


@contextmanager
def ending() -> Iterator[None]:
    """Raise `Ended` in this thread at SIGTERM and SIGHUP, within the block.

    A signal that has been given another meaning keeps it: ``nohup`` has SIGHUP ignored. So do all of them where the
    block is not run by the main thread, to which Python gives signals.
    """
    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in _NUMBERS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, _end)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
