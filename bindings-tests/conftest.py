"""What all binding tests share."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from kv_sides import sides

__all__ = ["cli", "data_dir", "root", "sides"]

ROOT = Path(__file__).resolve().parent.parent

# One profile explores, the other repeats: a failure on a build machine is a failure here.
settings.register_profile("dev", max_examples=50, stateful_step_count=30, deadline=None)
settings.register_profile("ci", max_examples=100, stateful_step_count=50, deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# A shell's background job ignores Ctrl-C and hands that down; the tests of interrupts need it heard.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Public traces and reference runs, which are not part of the project."""
    folder = Path(os.environ.get("SPLITCORE_DATA") or ROOT / "../shared/data")
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set SPLITCORE_DATA")
    return folder.resolve()


@pytest.fixture
def cli(tmp_path):
    """Runs ``splitcore`` in an empty folder, as a person would."""

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "splitcore.cli", *map(str, arguments)],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    return run
