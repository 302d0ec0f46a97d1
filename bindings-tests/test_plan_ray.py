"""The engine that spreads runs over a Ray cluster: here one of this machine, on loopback alone."""

import json
import os
import secrets
import subprocess
import sys
import textwrap

import pytest

import splitcore
from splitcore import engines, planning, ray_engine

OPTIONS = {"unsplit": "1xdgx-h100", "duration_s": 20.0, "seeds": 2, "resolution": 0.1}
SIZES = {"designs": ["unsplit=dgx-h100"], "rate": 4.0, "machines_max": 3, "duration_s": 20.0, "seeds": 2}
RATES = [1.0, 2.0, 8.0]

# Ray's processes belong to a process of their own: what it leaves for the interpreter to clear is no matter of pytest.
ON_RAY = """
    import json, ray, subprocess, sys, splitcore
    from splitcore import engines, planning
    OPTIONS, SIZES, RATES, slo = json.loads(sys.argv[1])
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
    )
    told = {"calls": []}
    progress = lambda *call: told["calls"].append(call)
    told["capacity"] = splitcore.capacity(**OPTIONS, slo=slo, engine="ray", cache="runs.cache", progress=progress)
    told["plan"] = splitcore.plan(**SIZES, slo=slo, engine="ray")
    spec = planning.capacity_spec(**OPTIONS, slo=slo)
    told["loads"] = planning.load_curve(engines.engine("ray", 2), spec, {}, RATES)
    spec["options"]["trace"] = "nowhere.csv"
    try:
        planning.load_curve(engines.engine("ray"), spec, {}, RATES)
    except Exception as error:
        told["error"] = [type(error).__name__, str(error)]
    told["stays"] = ray.is_initialized()
    # Another process joins the cluster that runs.
    command = [sys.executable, "-m", "splitcore.cli", "capacity", "--unsplit", "1xdgx-h100", "--duration", "20"]
    command += ["--seeds", "2", "--resolution", "0.1", "--slo", slo, "--engine", "ray", "--json", "-"]
    told["command"] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ray.shutdown()
    print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ray")
    (path / "lax.toml").write_text("ttft_s = { p90 = 2.0 }\ntpot_s = { p90 = 0.2 }\n")
    return path


@pytest.fixture(scope="module")
def slo(folder):
    return str(folder / "lax.toml")


@pytest.fixture(scope="module")
def on_ray(folder, slo):
    """What Ray finds. A token of its own is not kept in the home folder, and nobody is told of the tests."""
    env = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-c", textwrap.dedent(ON_RAY), json.dumps([OPTIONS, SIZES, RATES, slo])]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def text(answer):
    return json.dumps(answer, allow_nan=False)


# The first test waits for Ray to start, which takes its seconds.
@pytest.mark.timeout(180)
def test_ray_finds_what_threads_find_byte_for_byte(on_ray, slo):
    assert text(on_ray["capacity"]) == text(splitcore.capacity(**OPTIONS, slo=slo))
    assert text(on_ray["plan"]) == text(splitcore.plan(**SIZES, slo=slo))
    assert on_ray["calls"][-1][0] == on_ray["capacity"]["probes"]
    assert on_ray["stays"], "who was connected before stays so"


@pytest.mark.timeout(180)
def test_the_command_joins_a_cluster_that_runs(on_ray):
    assert text(on_ray["command"]) == text(on_ray["capacity"])


@pytest.mark.timeout(180)
def test_one_cache_serves_both_engines(on_ray, slo, folder):
    kept = (folder / "runs.cache").read_bytes()
    again = splitcore.capacity(**OPTIONS, slo=slo, cache=str(folder / "runs.cache"))
    assert text(again) == text(on_ray["capacity"])
    assert (folder / "runs.cache").read_bytes() == kept, "no run was made again"


@pytest.mark.timeout(180)
def test_loads_are_judged_in_their_order(on_ray, slo):
    spec = planning.capacity_spec(**OPTIONS, slo=slo)
    assert text(planning.load_curve(engines.engine("local", 2), spec, {}, RATES)) == text(on_ray["loads"])


@pytest.mark.timeout(180)
def test_an_error_on_a_node_is_the_one_that_threads_raise(on_ray, slo):
    spec = planning.capacity_spec(**OPTIONS, slo=slo)
    spec["options"]["trace"] = "nowhere.csv"
    with pytest.raises(splitcore.SplitcoreError, match=r"nowhere\.csv") as caught:
        planning.load_curve(engines.engine("local"), spec, {}, RATES)
    assert on_ray["error"] == [type(caught.value).__name__, str(caught.value)]


def test_without_ray_it_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr(ray_engine, "find_spec", lambda _: None)
    with pytest.raises(splitcore.ConfigError, match=r"pip install 'splitcore\[ray\]'") as caught:
        splitcore.capacity(**OPTIONS, engine="ray")
    assert caught.value.option == "engine"
