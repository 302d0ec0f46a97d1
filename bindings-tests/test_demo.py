"""`splitcore demo` ends in order at every stage, whatever ends it, and leaves nothing behind.

Its workers are in Python alone here; `test_live.py` has the real ones.
"""

import json
import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from python_worker import model_folder
from terminal import children, terminal, wait_gone

STUB = str(Path(__file__).parent / "demo_stub.py")
KEPT = ("--requests", "2", "--rate", "50", "--output-max", "2", "--prompt-max", "20", "--keep")
LONG = ("--requests", "500", "--rate", "5", "--output-max", "20", "--prompt-max", "20")
STAGES = {
    "loading": ("loading", (), "starting a service"),
    "load": ("serving", LONG, "listening on"),
    "keep": ("serving", KEPT, "stays up until Ctrl-C"),
}
# How it is ended, and the status unless it stays up.
ENDS = {"ctrl-c": 130, "sigterm": 143, "closed": 129, "killed": -9}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "tiny"
    model_folder(folder)
    return str(folder)


def finished(said):
    """Requests that the service counts as finished."""
    url = re.findall(r"listening on (http\S+)", said)[0]
    with urllib.request.urlopen(f"{url}/v1/check", timeout=20) as answer:  # noqa: S310
        return json.load(answer)["counters"]["finished"]


def reach(run, stage):
    """Wait until the stage, and for all processes."""
    run.wait_for(STAGES[stage][2])
    while len(children(run.process.pid)) < 3:
        assert run.process.poll() is None, run.said
    # Past the two for each worker to warm up.
    while stage == "load" and finished(run.said) < 6:
        assert run.process.poll() is None, run.said


def end(run, how):
    if how == "ctrl-c":
        run.type(b"\x03")
    elif how == "closed":
        run.close()
    else:
        run.process.send_signal(signal.SIGTERM if how == "sigterm" else signal.SIGKILL)
    return run.end()


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("stage", STAGES)
def test_whatever_ends_it_at_whatever_stage_leaves_nothing_behind(stage, how, model, tmp_path):
    stub, options, _ = STAGES[stage]
    with terminal(STUB, stub, model, "--listen", "127.0.0.1:0", *options, TMPDIR=str(tmp_path)) as run:
        reach(run, stage)
        started = children(run.process.pid)
        status = end(run, how)
        wait_gone(started)
    stays = stage == "keep" and how != "killed"
    assert status == (0 if stays else ENDS[how]), run.said
    if how == "killed":
        # The folder is swept by the next one.
        assert len(list(tmp_path.iterdir())) == 1
        with terminal("-c", "from splitcore.launch import _Folder; _Folder().remove()", TMPDIR=str(tmp_path)) as other:
            assert other.end() == 0, other.said
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in run.said
    if how in ("ctrl-c", "sigterm"):
        assert "splitcore: error" not in run.said
        assert ("TTFT [ms]" in run.said) == (stage != "loading"), run.said
    if stage == "load" and how == "sigterm":
        sent, completed = re.findall(r"(\d+) requests: (\d+) completed", run.said)[0]
        # The load was cut short, and says how far it came.
        assert int(completed) <= int(sent) < 500
    if stage == "keep" and how == "ctrl-c":
        assert all(name in run.said for name in ("prompt-0:", "token-0:"))


def test_a_second_ctrl_c_ends_what_the_first_waits_for(model, tmp_path):
    with terminal(STUB, "serving", model, "--listen", "127.0.0.1:0", *KEPT, TMPDIR=str(tmp_path)) as run:
        reach(run, "keep")
        started = children(run.process.pid)
        for pid in started:
            os.kill(pid, signal.SIGSTOP)
        run.type(b"\x03")
        # It waits for the service, which stands still.
        while not _has_sigterm(started):
            assert run.process.poll() is None, run.said
        run.type(b"\x03")
        assert run.end() == 130, run.said
        wait_gone(started)
    assert list(tmp_path.iterdir()) == []


def _has_sigterm(pids):
    for pid in pids:
        pending = re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        if pending and int(pending[1], 16) >> (signal.SIGTERM - 1) & 1:
            return True
    return False


def test_it_listens_where_one_expects_it_or_says_where_else(model):
    # Whoever has the port already, be it us or another program of this machine.
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 8090))
            taken.listen()
        except OSError:
            pass
        with terminal(STUB, "serving", model, *KEPT[:-1]) as run:
            assert run.end() == 0, run.said
    assert "127.0.0.1:8090: Address already in use" in " ".join(run.said.split())
    assert re.search(r"listening on http://127.0.0.1:(?!8090)\d+", run.said)


def test_bad_input_is_one_clear_error(cli):
    for option in ("--prompt", "--token", "--requests"):
        assert cli("demo", option, "0", code=2).stderr == f"splitcore: error: {option}: expected at least 1, got 0\n"


def test_failed_requests_are_told_and_give_status_1(model):
    # The model has 512 positions.
    options = ("--listen", "127.0.0.1:0", "--requests", "12", "--rate", "50", "--prompt-max", "4000")
    with terminal(STUB, "serving", model, *options, "--output-max", "2", columns=200) as run:
        assert run.end() == 1, run.said
    assert re.search(r"12 requests: \d completed, \d+ failed", run.said), run.said
    assert "the first error: 400" in run.said
