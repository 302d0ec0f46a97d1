"""The command line as a child that never outlives its launcher: ``python -m splitcore.launched PID ARGUMENT...``.

`splitcore.launch` starts its processes so. ``PID`` is the launcher's; standard input is a pipe of which it holds the
other end, so that the end of file tells of its end, whatever that was.
"""

import ctypes
import os
import signal
import sys
import threading

__all__ = ["die_with"]

_STDIN = 0
_PR_SET_PDEATHSIG = 1


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _watch() -> None:
    while True:
        if not os.read(_STDIN, 1):
            _kill()


def die_with(launcher: int) -> None:
    """Have this process killed when its launcher ends.

    Args:
        launcher: Its process id. Standard input is a pipe of which it alone holds the other end.
    """
    if sys.platform == "linux":
        # By the kernel, and so in the middle of native code too. It looks at the thread that started this process.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_watch, name="launcher", daemon=True).start()
    # It may have ended before the kernel was asked.
    if os.getppid() != launcher:
        _kill()


if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    from splitcore.cli import main

    main()
