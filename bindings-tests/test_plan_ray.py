"""The engine that spreads runs over a Ray cluster: here one of this machine, on loopback alone."""

import importlib.util
import json
import os
import secrets
import subprocess
import sys

import pytest

import splitcore
from splitcore import engines, planning, ray_engine

OPTIONS = {"unsplit": "1xdgx-h100", "duration_s": 20.0, "seeds": 2, "resolution": 0.1}


@pytest.fixture(scope="module")
def slo(tmp_path_factory):
    path = tmp_path_factory.mktemp("slo") / "lax.toml"
    path.write_text("ttft_s = { p90 = 2.0 }\ntpot_s = { p90 = 0.2 }\n")
    return str(path)


@pytest.fixture(scope="module")
def cluster():
    import ray

    with pytest.MonkeyPatch.context() as patch:
        # A token of its own is not kept in the home folder, and nobody is told of the tests.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        ray.init(address="local", num_cpus=2, log_to_driver=False, **local)
        yield ray
        ray.shutdown()


def text(answer):
    return json.dumps(answer, allow_nan=False)


def test_ray_finds_what_threads_find_byte_for_byte(cluster, slo, tmp_path):
    calls = []
    found = splitcore.capacity(
        **OPTIONS, slo=slo, engine="ray", cache=str(tmp_path / "runs.cache"), progress=lambda *call: calls.append(call)
    )
    assert text(found) == text(splitcore.capacity(**OPTIONS, slo=slo))
    assert calls[-1][0] == found["probes"]
    assert cluster.is_initialized(), "who was connected before stays so"
    kept = (tmp_path / "runs.cache").read_bytes()
    again = splitcore.capacity(**OPTIONS, slo=slo, engine="local", cache=str(tmp_path / "runs.cache"))
    assert text(again) == text(found)
    assert (tmp_path / "runs.cache").read_bytes() == kept, "one cache serves both engines"
    sizes = {"designs": ["unsplit=dgx-h100"], "rate": 4.0, "machines_max": 3, "duration_s": 20.0, "seeds": 2}
    plans = [splitcore.plan(**sizes, slo=slo, resolution=0.1, engine=name) for name in engines.ENGINES]
    assert text(plans[0]) == text(plans[1])


def test_the_command_joins_a_cluster_that_runs(cluster, slo, tmp_path):
    command = [sys.executable, "-m", "splitcore.cli", "capacity", "--unsplit", "1xdgx-h100", "--duration", "20"]
    command += ["--seeds", "2", "--resolution", "0.1", "--slo", slo, "--engine", "ray", "--json", "-"]
    env = os.environ | {"RAY_ADDRESS": cluster.get_runtime_context().gcs_address}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == splitcore.capacity(**OPTIONS, slo=slo)


def test_loads_are_judged_in_their_order(cluster, slo):
    del cluster
    spec = planning.capacity_spec(**OPTIONS, slo=slo)
    loads = [planning.load_curve(engines.engine(name, 2), spec, {}, [1.0, 2.0, 8.0]) for name in engines.ENGINES]
    assert text(loads[0]) == text(loads[1])


def test_an_error_on_a_node_is_the_one_that_threads_raise(cluster, slo):
    del cluster
    spec = planning.capacity_spec(**OPTIONS, slo=slo)
    spec["options"]["trace"] = "nowhere.csv"
    errors = []
    for name in engines.ENGINES:
        with pytest.raises(splitcore.SplitcoreError, match=r"nowhere\.csv") as caught:
            planning.load_curve(engines.engine(name), spec, {}, [1.0, 2.0])
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


def test_without_ray_it_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr(ray_engine, "find_spec", lambda _: None)
    with pytest.raises(splitcore.ConfigError, match=r"pip install 'splitcore\[ray\]'") as caught:
        splitcore.capacity(**OPTIONS, engine="ray")
    assert caught.value.option == "engine"


def test_ray_is_there_to_be_tested():
    assert importlib.util.find_spec("ray") is not None, "the tests need it: constraints.txt pins it"
