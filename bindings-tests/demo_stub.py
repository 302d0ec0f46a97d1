"""`splitcore demo` with workers in Python alone: ``python demo_stub.py HOW FOLDER OPTION...``.

HOW says how workers are: ``loading`` for ever, or ``serving``, with passes that take a while.
"""

import os
import signal
import sys
import time
from pathlib import Path

import splitcore.demo
from python_worker import PythonWorker, mine
from splitcore.launch import Launch
from splitcore.launched import die_with


class StubLaunch(Launch):
    """Starts this file as the workers."""

    def _command(self, arguments):
        if arguments[0] != "worker":
            # These workers do not hand over.
            return super()._command([*arguments, "--split-from-tokens", "1000000"])
        at = dict(zip(arguments[1::2], arguments[2::2], strict=False))
        return [sys.executable, __file__, f"{HOW}-worker", str(os.getpid()), at["--connect"], at["--name"]]


class SlowWorker(PythonWorker):
    """Takes a while for each pass, so that a load is under way for long."""

    def _pass(self, number):
        time.sleep(0.01)
        return super()._pass(number)


def work(how, launcher, connect, name):
    die_with(int(launcher))
    if how == "loading-worker":
        while True:
            time.sleep(3600)
    # As the real one ends, where this one would leave its session to be looked for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with SlowWorker(connect, mine(name, blocks=4096), None):
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    HOW = sys.argv[1]
    if HOW.endswith("-worker"):
        work(HOW, *sys.argv[2:])
    splitcore.demo.Launch = StubLaunch
    from splitcore.cli import main

    sys.argv = ["splitcore", "demo", "--model", str(Path(sys.argv[2])), "--prompt", "1", "--token", "1", *sys.argv[3:]]
    main()
