"""DistServe's placement from Python and on the command line."""

import json

import pytest

import splitcore

OPT = {"model": "opt-13b", "costs": "distserve", "slo": "distserve-chat-13b-90", "gpus_per_node": 2}
SHORT = {"duration_s": 20.0, "seeds": 1, "resolution": 0.2}


@pytest.mark.parametrize("affinity", ["high", "low"])
def test_instances_make_the_rate(affinity):
    found = splitcore.parallelism(rate=4.0, affinity=affinity, **OPT, **SHORT)
    assert found["prefill"]
    sizes = found["prefill"]["tp"] * found["prefill"]["pp"], found["decode"]["tp"] * found["decode"]["pp"]
    assert found["gpus"] == found["prefill_instances"] * sizes[0] + found["decode_instances"] * sizes[1]
    for side in ("prefill", "decode"):
        way = next(way for way in found["tried"] if way[side] == found[side])
        assert found[f"{side}_instances"] * way["goodput_rps"] >= 4.0
    assert {finding["objective"] for finding in found["findings"]} == {"attainment 90 %"}


def test_the_answer_does_not_hang_on_jobs():
    one, two = (splitcore.parallelism(rate=4.0, jobs=jobs, **OPT, **SHORT) for jobs in (1, 2))
    assert one == two


def test_command_tells_what_the_function_finds(cli):
    options = ("--rate", "4", "--gpus-per-node", "2", "--model", "opt-13b", "--costs", "distserve", "--duration", "20")
    options += ("--slo", "distserve-chat-13b-90", "--seeds", "1", "--resolution", "0.2")
    # Each phase alone makes the rate, and the instances together miss an objective of so short a run.
    found = json.loads(cli("parallelism", *options, "--json", "-", code=2).stdout)
    assert found["holds"] is False
    assert found == splitcore.parallelism(rate=4.0, **OPT, **SHORT)
    assert "together at 4/s" in cli("parallelism", *options, code=2).stdout


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"affinity": "middling"}, "affinity"),
        ({"nodes_max": 0}, "nodes_max"),
        ({"rate": 0.0}, "rate"),
        ({"node_bandwidth": -1.0}, "node_bandwidth"),
        ({"machine": "dgx-b200"}, "unsplit"),
        ({"model": "opt-175b"}, "model"),
        ({"slo": "nothing-known"}, "slo"),
    ],
)
def test_bad_options_name_themselves(changed, option):
    with pytest.raises(splitcore.ConfigError) as caught:
        splitcore.parallelism(**({"rate": 4.0} | OPT | SHORT | changed))
    assert caught.value.option == option


def test_phases_apart_need_a_limit_each(tmp_path):
    slo = tmp_path / "first.toml"
    slo.write_text("ttft_s = { p90 = 0.4 }\n")
    with pytest.raises(splitcore.ConfigError, match="one for each phase"):
        splitcore.parallelism(rate=4.0, **(OPT | {"slo": str(slo)}), **SHORT)


def test_objectives_that_no_cut_keeps_are_told(cli, tmp_path):
    slo = tmp_path / "never.toml"
    slo.write_text("ttft_s = { p90 = 0.001 }\ntpot_s = { p90 = 0.001 }\n")
    options = ("--rate", "4", "--gpus-per-node", "1", "--model", "opt-13b", "--costs", "distserve", "--duration", "20")
    done = cli("parallelism", *options, "--slo", str(slo), "--seeds", "1", "--resolution", "0.2", code=2)
    assert "no way to cut keeps the objectives" in done.stderr


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="unsplit"):
        splitcore.parallelism(rate=4.0, unsplit="1xdgx-a100", **OPT, **SHORT)


def test_instances_that_do_not_hold_together_end_with_status_2_and_what_they_miss(command_line, monkeypatch):
    finding = {"class": "all", "objective": "attainment 90 %", "limit": 0.9, "found": 0.85, "met": False}
    cut = {"tp": 1, "pp": 1}
    found = {
        "prefill": cut, "prefill_instances": 1, "decode": cut, "decode_instances": 1, "gpus": 2, "holds": False,
        "findings": [finding, finding | {"met": True}], "tried": [], "ruled_out": [], "probes": 1,
    }  # fmt: skip
    monkeypatch.setattr("splitcore.plan_cli._searched", lambda *_: found)
    options = ("--rate", "4", "--model", "opt-13b", "--costs", "distserve", "--slo", "distserve-chat-13b-90")
    done = command_line("parallelism", *options, code=2)
    assert done.stderr.startswith("splitcore: infeasible: the instances together miss at 4/s: attainment 90 %: 0.850;")
    assert "together at 4/s" in done.stdout
