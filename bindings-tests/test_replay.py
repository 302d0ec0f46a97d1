"""Recorded logs are replayed, and what differs or is damaged is told."""

import json
import shutil

import pytest

import splitcore


@pytest.fixture
def logs(root, tmp_path):
    """Logs that a test of the recorder has made, to be damaged: one that replays alike, and one that does not."""
    return shutil.copytree(root / "bindings-tests/replay", tmp_path / "logs")


def test_a_log_that_replays_alike_is_counted(logs):
    told = []
    found = splitcore.replay(logs / "same", progress=lambda done, total: told.append((done, total)))
    assert found["agrees"]
    (log,) = found["logs"]
    shown = {name: log[name] for name in ("name", "run", "what", "first_event", "segments", "events", "end")}
    assert shown == {
        "name": "cluster", "run": 1, "what": "cluster", "first_event": 0, "segments": 2, "events": 6, "end": "closed",
    }  # fmt: skip
    assert log["difference"] is None
    assert log["begun_s"] > 1.7e9
    assert told[-1] == (2, 2)


def test_the_first_difference_is_told(logs):
    found = splitcore.replay(logs / "other")
    assert not found["agrees"]
    (log,) = found["logs"]
    difference = log["difference"]
    assert (log["name"], log["events"], difference["event"], difference["part"]) == ("m 1", 2, 2, "action 0")
    assert difference["recorded"] == "nothing"
    assert json.loads(difference["replayed"])["type"] == "placed"
    assert json.loads(difference["happened"])["request"] == 2


def test_what_a_callback_raises_ends_it(logs):
    def stop(done, total):
        raise RuntimeError(f"{done} of {total}")

    with pytest.raises(RuntimeError, match=r"\d of 2"):
        splitcore.replay(logs / "same", progress=stop)


def test_the_command_prints_a_table_and_exits_with_0_if_all_is_alike(cli, logs):
    done = cli("replay", logs / "same")
    row = next(line for line in done.stdout.splitlines() if "cluster" in line)
    assert ("alike" in row, "closed" in row, done.stderr) == (True, True, "")


def test_the_command_exits_with_1_if_something_differs(cli, logs):
    done = cli("replay", logs / "other", code=1)
    assert "otherwise" in done.stdout
    assert "m 1 run 1, event 2 at 5,000 ns: action 0 differs" in " ".join(done.stdout.split())
    found = json.loads(cli("replay", logs / "other", "--json", "-", code=1).stdout)
    assert found == splitcore.replay(logs / "other")


def test_the_command_exits_with_2_on_what_is_no_log(cli, logs, tmp_path):
    assert "expected folders with logs in them" in cli("replay", tmp_path, code=2).stderr
    assert "missing: No such file" in cli("replay", tmp_path / "missing", code=2).stderr
    path = sorted((logs / "same/cluster").iterdir())[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert "expected the segment of event 3, got that of event 4" in cli("replay", logs / "same", code=2).stderr
    path.write_bytes(b"x" + path.read_bytes()[1:])
    error = " ".join(cli("replay", logs / "same", code=2).stderr.split())
    assert f"{path} at byte 0: expected the start of a log of version 1, got byte 78" in error


def test_a_log_that_just_stops_is_no_error(logs):
    path = sorted((logs / "same/cluster").iterdir())[-1]
    path.write_bytes(path.read_bytes()[:-60])
    (log,) = splitcore.replay(logs / "same")["logs"]
    assert (log["end"], log["events"], log["difference"]) == ("open", 5, None)
