"""`splitcore.swarm` and its command: random worlds full of faults."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import get_type_hints

import pytest

import splitcore
from splitcore import cli, schema

TEN = {"seeds": 10, "from_seed": 5}


def run(*arguments, folder, code=0):
    command = [sys.executable, "-m", "splitcore.cli", "swarm", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == code, done.stderr
    return done


def told(summary):
    """What is the same in each run."""
    return {name: value for name, value in summary.items() if name not in ("jobs", "wall_s")}


@pytest.fixture(scope="module")
def ten():
    return splitcore.swarm(**TEN, jobs=1)


def test_a_summary_has_the_shape_of_its_schema(ten):
    assert set(ten) == set(get_type_hints(schema.SwarmSummary))
    assert all(set(cell) == set(get_type_hints(schema.CellHits)) for cell in ten["cells"])
    assert (ten["seeds"], ten["from_seed"], ten["jobs"], ten["version"]) == (10, 5, 1, splitcore.__version__)
    assert ten["failed"] == []
    assert ten["events"] >= 10 * 100
    assert ten["counters"]["finished"] > 0
    assert 100 < len({(cell["state"], cell["failure"]) for cell in ten["cells"]}) == len(ten["cells"])
    assert sum(cell["hits"] for cell in ten["cells"]) > 100


def test_threads_and_processes_find_the_same(ten, tmp_path):
    assert told(splitcore.swarm(**TEN, jobs=3)) == told(ten)
    assert splitcore.swarm(seeds=10)["digest"] != ten["digest"]
    printed = run("--seeds", "10", "--from", "5", "--json", "-", folder=tmp_path).stdout
    assert told(json.loads(printed)) == told(ten)


def test_progress_ends_with_the_total_and_what_it_raises_ends_the_run():
    calls = []
    splitcore.swarm(seeds=20, progress=lambda *call: calls.append(call))
    assert calls[-1] == (20, 20)
    assert calls == sorted(set(calls))

    def refuse(*call):
        raise LookupError(call)

    with pytest.raises(LookupError):
        splitcore.swarm(seeds=10**9, progress=refuse)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"seeds": 0}, "seeds"),
        ({"seeds": -1}, "seeds"),
        ({"from_seed": -1}, "from_seed"),
        ({"from_seed": 2**64 - 1, "seeds": 2}, "from_seed"),
        ({"jobs": 0}, "jobs"),
        ({"jobs": 1025}, "jobs"),
    ],
)
def test_an_option_out_of_range_is_named(options, option):
    with pytest.raises(splitcore.ConfigError) as caught:
        splitcore.swarm(**options)
    assert caught.value.option == option


def test_the_last_seed_there_is_runs():
    assert splitcore.swarm(from_seed=2**64 - 1, seeds=1)["seeds"] == 1


def test_the_command_prints_a_table_and_writes_its_summary(tmp_path):
    printed = run("--seeds", "10", "--from", "5", "--json", "swarm.json", folder=tmp_path).stdout
    for word in ("10, from 5 to 14", "failing seeds", "none", "machine lost", "Cluster restart", "cells never hit"):
        assert word in printed
    assert "again:" not in printed
    assert json.loads((tmp_path / "swarm.json").read_text(encoding="utf-8"))["seeds"] == 10


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--from", "x"], ["--jobs", "0"], ["--json", "no/x.json"]])
def test_a_bad_option_is_one_line_and_status_2(arguments, tmp_path):
    told = run(*arguments, folder=tmp_path, code=2)
    assert told.stdout == ""
    assert len(told.stderr.splitlines()) == 1
    assert arguments[0] in told.stderr


def test_a_seed_that_failed_is_told_with_the_command_that_repeats_it(ten, monkeypatch, capsys, tmp_path):
    # No seed is known to fail, so this one is made up.
    failed = {"seed": 12, "what": "the books are wrong: [so] it is", "last_events": ["Tick", "  Command [x]"]}
    summary = {**ten, "commit": "abc1234", "failed": [failed]}
    monkeypatch.setattr(splitcore, "swarm", lambda **_: summary)
    monkeypatch.setattr(sys, "argv", ["splitcore", "swarm", "--json", str(tmp_path / "it.json")])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    for word in ("1: 12", "abc1234", failed["what"], "Command [x]", "splitcore swarm --from 12 --seeds 1"):
        assert word in printed
    assert json.loads((tmp_path / "it.json").read_text(encoding="utf-8"))["failed"] == [failed]


INTERRUPTED = """
    import os, signal
    from splitcore import cli, progress
    def interrupt(self, done, total):
        os.kill(os.getpid(), signal.SIGINT)
    progress.Bar.update = interrupt
    cli.main()
"""


def test_ctrl_c_ends_between_seeds_with_130_and_writes_nothing(tmp_path):
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(INTERRUPTED),
        "swarm",
        "--seeds",
        "1000000000",
        "--json",
        "it.json",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
