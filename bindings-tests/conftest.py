"""What all binding tests share."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

import splitcore.cli
from kv_sides import sides

__all__ = ["cli", "command_line", "data_dir", "root", "sides"]

ROOT = Path(__file__).resolve().parent.parent

# The tests repeat their cases. `make properties` draws new ones, as many as it is asked for, from a seed that it
# prints.
CASES = int(os.environ.get("PROPTEST_CASES", "4000"))
settings.register_profile("fixed", max_examples=100, stateful_step_count=50, deadline=None, derandomize=True)
settings.register_profile("fresh", max_examples=max(100, CASES // 40), stateful_step_count=50, deadline=None)
settings.load_profile("fixed")

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


@pytest.fixture
def command_line(tmp_path, monkeypatch, capsys):
    """Runs ``splitcore`` in an empty folder and in this process: as `cli`, where only the arguments matter.

    With a code of None, however it ends.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["splitcore", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            splitcore.cli.main()
        written = capsys.readouterr()
        assert code in (None, ended.value.code or 0), written.err
        return SimpleNamespace(stdout=written.out, stderr=written.err)

    return run
