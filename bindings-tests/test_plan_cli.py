"""``splitcore capacity`` and ``splitcore plan``, run as a person runs them."""

import json
import signal
import subprocess
import sys
import textwrap
from typing import get_type_hints

import pytest

import splitcore.cli
from splitcore import plan_schema
from splitcore.units import OptionError, power

LAX = "ttft_s = { p90 = 2.0 }\ntpot_s = { p90 = 0.2 }\n"
SHORT = ("--slo", "lax.toml", "--duration", "20", "--seeds", "2", "--resolution", "0.1")
ONE = ("capacity", "--unsplit", "1xdgx-h100", *SHORT)
SIZES = ("plan", "--design", "unsplit=dgx-h100", "--design", "HA", "--rate", "4", "--machines-max", "3", *SHORT)


@pytest.fixture(autouse=True)
def objectives(tmp_path):
    """One set of objectives in the folder of each test."""
    (tmp_path / "lax.toml").write_text(LAX)


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lax.toml")


def test_capacity_tells_the_rate_and_what_fails(cli):
    done = cli(*ONE)
    assert done.stderr == ""
    for word in ("lax.toml", "highest rate", "95 % interval", "2 seeds", "for each GPU", "fails above", "p90", "runs"):
        assert word in done.stdout


def test_capacity_writes_what_python_gives(cli, tmp_path):
    done = cli(*ONE, "--json", "-")
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert set(found) == set(get_type_hints(plan_schema.Capacity))
    options = {"duration_s": 20.0, "seeds": 2, "resolution": 0.1, "slo": str(tmp_path / "lax.toml")}
    assert found == splitcore.capacity(unsplit="1xdgx-h100", **options)


def test_capacity_draws_and_writes_files_and_goes_on_from_its_cache(cli, tmp_path):
    outputs = ("--json", "found.json", "--plot", "load.png", "--cache", "runs.cache")
    first = cli(*ONE, *outputs)
    assert files(tmp_path) == ["found.json", "load.png", "runs.cache"]
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    kept = (tmp_path / "runs.cache").read_bytes()
    assert cli(*ONE, *outputs).stdout == first.stdout
    assert (tmp_path / "runs.cache").read_bytes() == kept


def test_plan_tells_the_cluster_its_price_and_what_it_has_to_spare(cli):
    done = cli(*SIZES)
    assert done.stderr == ""
    for word in ("cost", "$/h", "power", "kW", "space", "highest rate", "margin", "machine lost", "frontier", "runs"):
        assert word in done.stdout


def test_plan_writes_what_python_gives(cli, tmp_path):
    found = json.loads(cli(*SIZES, "--json", "-").stdout)
    options = {"duration_s": 20.0, "seeds": 2, "resolution": 0.1, "slo": str(tmp_path / "lax.toml")}
    designs = ["unsplit=dgx-h100", "HA"]
    assert found == splitcore.plan(designs=designs, rate=4.0, machines_max=3, **options)


def test_plan_draws_into_a_folder(cli, tmp_path):
    cli(*SIZES, "--plot", "pictures", "--json", "plan.json")
    assert files(tmp_path) == ["pictures", "plan.json"]
    assert files(tmp_path / "pictures") == ["load.png", "map.png", "price.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "pictures").iterdir())


def test_plan_draws_into_a_folder_that_is_there(cli, tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "mine.txt").write_text("mine")
    (tmp_path / "pictures" / "map.png").write_text("old")
    cli(*SIZES, "--plot", "pictures")
    assert files(tmp_path) == ["pictures"]
    assert files(tmp_path / "pictures") == ["load.png", "map.png", "mine.txt", "price.png"]
    assert (tmp_path / "pictures" / "map.png").read_bytes().startswith(b"\x89PNG")


def test_what_binds_is_told_line_by_line_and_the_json_is_written(cli, tmp_path):
    done = cli(*SIZES, "--cost-limit", "1", "--json", "plan.json", code=2)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("splitcore: infeasible: cost_per_hour: ")
    assert "38 $ an hour" in lines[0]
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["best"] is None
    helping = [binding for binding in found["binding"] if binding["needed"] is not None]
    assert lines == [f"splitcore: infeasible: {binding['text']}" for binding in helping]
    assert len(helping) < len(found["binding"]), "more machines alone do not help"


def test_power_is_read_with_its_unit(cli):
    done = cli(*SIZES, "--power-limit", "1kW", "--json", "-", code=2)
    assert json.loads(done.stdout)["binding"][0]["limit"] == 1000.0


@pytest.mark.parametrize(
    ("text", "watts"), [("250kW", 250e3), ("1.2MW", 1.2e6), ("6500 W", 6500.0), ("6500", 6500.0), ("1e3", 1000.0)]
)
def test_powers_are_watts(text, watts):
    assert power(text) == pytest.approx(watts, rel=1e-15)


@pytest.mark.parametrize("text", ["", "much", "kW", "-1kW", "0", "250kw", "250 k", "1e999", "nan", "5GW", "5kW/h"])
def test_other_powers_are_refused(text):
    with pytest.raises(OptionError, match=r"^--power-limit: expected a power"):
        power(text)


BAD = {
    "rate to search from": ((*ONE, "--rate", "4"), "--rate"),
    "unknown objectives": ((*ONE[:3], "--slo", "fast"), "--slo: expected a file or one of splitwise"),
    "malformed objectives": ((*ONE[:3], "--slo", "bad.toml"), "bad.toml:2: tbt_s"),
    "no seeds": ((*ONE[:7], "--seeds", "0"), "--seeds: expected 1 to"),
    "resolution of zero": ((*ONE[:7], "--resolution", "0"), "--resolution: expected 0.0001 to"),
    "step below zero": ((*ONE, "--step", "-1"), "--step"),
    "no jobs": ((*ONE, "--jobs", "0"), "--jobs"),
    "unknown engine": ((*ONE, "--engine", "slurm"), "--engine"),
    "no cluster": (("capacity", *SHORT), "expected"),
    "plot of an unknown kind": ((*ONE, "--plot", "load.gif"), "--plot"),
    "unknown design": ((*SIZES, "--design", "HX"), "--design: expected one of baseline-a100"),
    "unsplit beside prompt": (
        (*SIZES, "--design", "unsplit=dgx-h100,prompt=dgx-h100"),
        "--design: expected unsplit=NAME alone, or both",
    ),
    "unknown machine of a design": ((*SIZES, "--design", "unsplit=abacus"), "--design"),
    "unknown goal": ((*SIZES, "--goal", "best"), "--goal: expected min-cost, min-power"),
    "least cost of nothing": (("plan", "--goal", "min-cost"), "--rate"),
    "most of anything": ((*SIZES, "--goal", "max-throughput"), "--cost-limit: expected a limit on cost, power"),
    "power that is a word": ((*SIZES, "--power-limit", "much"), "--power-limit"),
    "cost of zero": ((*SIZES, "--cost-limit", "0"), "--cost-limit"),
    "unknown prices": ((*SIZES, "--prices", "table-ii"), "--prices"),
    "machines that are none": ((*SIZES, "--machines", "none.toml"), "none.toml"),
    "malformed machines": ((*SIZES, "--machines", "bad.toml"), "expected [machine.NAME]"),
    "machines that are given": ((*SIZES, "--prompt", "2xdgx-h100"), "--prompt"),
    "folder in no folder": ((*SIZES, "--plot", "none/pictures"), "--plot: expected a folder in an existing folder"),
    "file for a folder": ((*SIZES, "--plot", "lax.toml"), "--plot: expected a folder"),
    "largest pool of none": ((*SIZES, "--machines-max", "0"), "--machines-max"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD)
def test_a_bad_option_is_named_in_one_line_and_nothing_is_written(monkeypatch, capsys, tmp_path, arguments, named):
    (tmp_path / "lax.toml").write_text(LAX)
    (tmp_path / "bad.toml").write_text("ttft_s = { p90 = 2.0 }\ntbt_s = { p90 = 0.2 }\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["splitcore", *arguments, "--json", "found.json"])
    with pytest.raises(SystemExit) as caught:
        splitcore.cli.main()
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("splitcore: error: ")
    assert named in err
    assert files(tmp_path) == ["bad.toml"]


INTERRUPTED = """
    import os, signal
    from splitcore import cli, progress
    def interrupt(self, done, total):
        os.kill(os.getpid(), signal.SIGINT)
    progress.Bar.update = interrupt
    cli.main()
"""


@pytest.mark.parametrize("arguments", [ONE, SIZES], ids=["capacity", "plan"])
def test_ctrl_c_ends_a_search_with_130_and_writes_nothing(tmp_path, arguments):
    (tmp_path / "lax.toml").write_text(LAX)
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), *arguments, "--json", "found.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == []


def test_a_machine_type_of_ones_own_is_simulated(cli, tmp_path):
    (tmp_path / "boxes.toml").write_text('[machine.my-box]\nlike = "dgx-a100"\n')
    run = ("simulate", "--rate", "2", "--duration", "10", "--json", "-")
    own = json.loads(cli(*run, "--unsplit", "1xmy-box", "--machines", "boxes.toml").stdout)
    built_in = json.loads(cli(*run, "--unsplit", "1xdgx-a100").stdout)
    assert own["e2e_s"] == built_in["e2e_s"]
    assert own["machines"][0]["hardware"] != built_in["machines"][0]["hardware"]


def test_objectives_that_never_bind_end_with_a_statement(cli, tmp_path):
    (tmp_path / "lax.toml").write_text("ttft_s = { p50 = 1e9 }\n")
    options = ("--slo", "lax.toml", "--requests-limit", "20", "--seeds", "1")
    done = cli("capacity", "--unsplit", "1xdgx-h100", *options, "--json", "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["max_rate"], found["seeds"][0]["failing_rate"]) == (2048.0, None)
    (note,) = found["notes"]
    assert "they do not bind, and the highest rate is not known" in note
    assert "note: the objectives are kept at every rate up to 2048/s" in " ".join(done.stdout.split())
