"""Options and events as plain data: a value is what it is, and a key that nothing reads is an error."""

from pathlib import Path

import numpy as np
import pytest

import splitcore
from splitcore import Cluster, ConfigError, _native

RUN = {"prompt": "2xdgx-h100", "token": "1xdgx-h100", "rate": 4.0, "requests": 5}


def digest(**options):
    return splitcore.simulate(**RUN | options).summary["digest"]


@pytest.mark.parametrize("option", ["contention", "kv_limit", "check"])
@pytest.mark.parametrize("value", ["off", "on", "", "False", 0, 1, 0.0, [], None])
def test_a_switch_is_true_or_false_and_nothing_that_could_be_taken_for_it(option, value):
    if value is None:
        # The default, as everywhere.
        assert digest(**{option: value}) == digest()
        return
    with pytest.raises(ConfigError, match=f"{option}: expected True or False, got {value!r}".replace("[]", r"\[\]")):
        splitcore.simulate(**RUN | {option: value})


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("rate", "5", "a number"),
        ("link_bandwidth", "200GiB/s", "a number"),
        ("slo_ttft_s", "0.4", "a number"),
        ("rate", True, "a number"),
        ("rate", [5], "a number"),
        ("rate", float("nan"), "a finite number"),
        ("duration_s", float("inf"), "a finite number"),
        ("seed", "0", "a whole number from 0 to 2^64 - 1"),
        ("seed", -1, "a whole number from 0 to 2^64 - 1"),
        ("seed", 1.5, "a whole number from 0 to 2^64 - 1"),
        ("seed", True, "a whole number from 0 to 2^64 - 1"),
        ("seed", 2**64, "a number in range"),
        ("requests", "5", "a whole number"),
        ("max_in_flight", 2**32, "a whole number from 0 to 2^32 - 1"),
        ("prompt", 5, "a text"),
        ("model", b"bloom-176b", "a text"),
        ("policy", True, "a text"),
        ("park_limit_s", "30", "a number"),
        ("attempts_max", 0.5, "a whole number from 0 to 2^32 - 1"),
    ],
)
def test_a_value_of_another_kind_is_told_with_what_was_expected(option, value, expected):
    with pytest.raises(ConfigError) as caught:
        splitcore.simulate(**RUN | {option: value})
    assert (caught.value.option, caught.value.got) == (option, repr(value))
    assert caught.value.expected.startswith(expected)


def test_numbers_of_numpy_and_paths_are_what_they_say(tmp_path):
    assert digest(rate=np.float32(4), seed=np.int64(0), contention=np.True_, requests=np.uint8(5)) == digest()
    assert digest(rate=4) == digest(rate=4.0)
    trace = tmp_path / "t.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n1,5,6\n")
    assert splitcore.simulate(unsplit="1xdgx-h100", trace=trace).summary["requests"]["completed"] == 1
    assert isinstance(trace, Path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"whole_map": "off"}, "whole_map"),
        ({"seeds": "3"}, "seeds"),
        ({"seeds": True}, "seeds"),
        ({"resolution": "0.1"}, "resolution"),
        ({"rate": "5"}, "rate"),
        ({"cost_limit": "5"}, "cost_limit"),
        ({"cost_limit": True}, "cost_limit"),
        ({"power_limit": float("nan")}, "power_limit"),
        ({"machines_max": 1.5}, "machines_max"),
        ({"contention": "off"}, "contention"),
    ],
)
def test_the_planner_reads_its_options_alike(options, named):
    with pytest.raises(ConfigError) as caught:
        splitcore.plan(**{"designs": ["HA"], "rate": 5.0, "duration_s": 5.0} | options)
    assert caught.value.option == named


ARRIVE = {"type": "arrive", "request": 1, "prompt_tokens": 10, "max_new_tokens": 10}
JOIN = {
    "type": "join",
    "machine": {"index": 0, "incarnation": 1},
    "role": "mixed",
    "kv_capacity_tokens": 1000,
    "speed_weight": 1,
    "link": None,
}


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (ARRIVE | {"resumabel": False}, "unknown key resumabel"),
        (ARRIVE | {"resumable": "no"}, "expected True or False"),
        (ARRIVE | {"prompt_tokens": "10"}, "expected a whole number"),
        (ARRIVE | {"prompt_tokens": 10.0}, "expected a whole number"),
        (JOIN | {"machine": {"index": 0, "incarnation": 1, "name": "a"}}, "unknown key machine.name"),
        (JOIN | {"speed": 1}, "unknown key speed"),
        ({"type": "tick", "now": 5}, "unknown key now"),
        (
            {"type": "fact", "notice": {"type": "prefill_done", "key": {"request": 1, "attempt": 1}, "sampled": 1}},
            "True",
        ),
    ],
)
def test_an_event_with_a_key_or_a_value_that_nothing_reads_is_an_error(event, told):
    cluster = Cluster(level="managed")
    handled = cluster.handle([event])
    ((index, error),) = handled.errors
    assert (index, type(error)) == (0, splitcore.EventError)
    assert told in str(error)
    assert handled.actions == []


def test_what_a_machine_is_told_is_read_alike():
    machine = splitcore.Machine(kv_blocks=10)
    handled = machine.handle([{"type": "tick", "late": True}, {"type": "tick"}])
    assert [(index, "unknown key late" in str(error)) for index, error in handled.errors] == [(0, True)]


def test_a_machine_has_a_name():
    with pytest.raises(ConfigError, match="name: expected a name of at least one character"):
        Cluster().add_machine("", role="mixed", kv_blocks=10)


def test_objects_show_what_they_are():
    cluster = Cluster(policy="jsq")
    cluster.add_machine("m", role="mixed", kv_blocks=10)
    assert repr(cluster.place_many([1, 2], [10, 10**6])) == "<PlacedMany: 1 placed, 1 rejected>"
    assert repr(cluster) == "<Cluster: jsq, 1 machines, 1 live requests, epoch 1>"
    assert repr(cluster.handle([{"type": "nothing"}])) == "<Handled: 0 actions, 1 errors, 0 late>"


def test_all_that_the_native_module_gives_can_be_shown():
    for name in ("Cluster", "Handled", "PlacedMany", "Placement", "Polled", "Recovery", "Report", "Why", "Leg"):
        assert getattr(_native, name).__repr__ is not object.__repr__, name
