"""`Cluster` by the many: loads, snapshots, `place_many`, events as dicts, bursts of threads."""

import copy
import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import splitcore
from clusters import cluster
from splitcore import Cluster


def test_loads_are_rows_in_the_order_of_the_names():
    made = cluster(prompt=1, token=1, mixed=1)
    loads = made.loads()
    assert loads.dtype.names == (
        "machine",
        "incarnation",
        "role",
        "pool",
        "state",
        "prompt_pending_tokens",
        "requests",
        "booked_load",
        "kv_tokens",
        "kv_capacity_tokens",
    )
    formats = ["u4", "u4", "u1", "u1", "u1", "u8", "u4", "u8", "u8", "u8"]
    assert [loads.dtype[name].str[-2:] for name in loads.dtype.names] == formats
    assert made.machine_names() == ["p0", "t0", "m0"]
    assert loads["machine"].tolist() == [0, 1, 2]
    assert loads["role"].tolist() == loads["pool"].tolist() == [0, 1, 2]
    assert loads["kv_capacity_tokens"].tolist() == [16_000] * 3


def test_loads_are_read_only_and_outlive_their_cluster():
    made = cluster()
    made.place(1, 100, 10)
    loads = made.loads()
    view = loads["kv_tokens"]
    del made
    gc.collect()
    assert view.tolist() == [101, 0, 101, 0]
    assert copy.deepcopy(loads)["kv_tokens"].tolist() == view.tolist()
    with pytest.raises(ValueError, match="read-only"):
        loads["kv_tokens"] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        loads.flags.writeable = True


def test_a_restored_cluster_gives_the_same_answers():
    made = cluster()
    for request in range(10):
        made.place(request, 500 + request, 10, now_ns=request)
    snapshot = made.snapshot()
    made.add_machine("p9", role="prompt", kv_blocks=1000, now_ns=20)

    def answers(of):
        placed = [repr(of.place(request, 700, 10, now_ns=request)) for request in range(10, 20)]
        recovery = of.lose_machine("p0", now_ns=30)
        return placed, recovery.placed, of.loads().tolist(), of.machine_names(), of.counters()

    other = Cluster()
    other.restore(snapshot)
    made.restore(snapshot)
    assert answers(other) == answers(made)
    made.check()
    other.check()


def test_a_restored_cluster_is_owed_what_the_saved_one_was():
    made = cluster(prompt=2, token=1)
    made.place(1, 100, 10)
    made.lose_machine("p0")
    other = Cluster()
    other.restore(made.snapshot())
    assert [placed.prompt for placed in other.poll().placements] == ["p1"]
    assert [placed.prompt for placed in made.poll().placements] == ["p1"]


def test_a_snapshot_of_a_machine_is_not_a_clusters():
    machine = splitcore.Machine(kv_blocks=1)
    with pytest.raises(splitcore.SplitcoreError, match="machine's"):
        Cluster().restore(machine.snapshot())
    with pytest.raises(splitcore.SplitcoreError, match="cluster's"):
        machine.restore(Cluster().snapshot())


# place_many


def spread(made):
    """A placement as `place_many` tells it."""
    names = made.machine_names()

    def rows(request, prompt, cap):
        try:
            placed = made.place(request, prompt, cap, now_ns=0)
        except splitcore.RejectedError:
            return -1, -1, 0
        return names.index(placed.prompt), names.index(placed.token), placed.attempt

    return rows


@given(
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 2_000)), max_size=40),
    st.sampled_from(["splitwise", "jsq", "least-requests", "round-robin", "power-of-two"]),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 2),
)
def test_place_many_equals_the_same_calls_in_order(sizes, policy, prompt, token, mixed):
    one, many = (cluster(prompt, token, mixed, policy=policy, requests_max=30) for _ in range(2))
    expected = [spread(one)(request, *size) for request, size in enumerate(sizes)]
    placed = many.place_many(range(len(sizes)), [size[0] for size in sizes], [size[1] for size in sizes], now_ns=0)
    assert list(zip(placed.prompt.tolist(), placed.token.tolist(), placed.attempt.tolist(), strict=True)) == expected
    assert (one.loads() == many.loads()).all()
    assert one.counters() == many.counters()
    many.check()


def test_place_many_takes_any_integers_and_gives_read_only_rows():
    made = cluster()
    placed = made.place_many(np.array([3, 4], np.int8), (10, 10**4), np.array([5, 5], np.uint64)[::1])
    assert (placed.prompt.dtype, placed.token.dtype, placed.attempt.dtype) == (np.int64, np.int64, np.uint32)
    assert placed.attempt.tolist() == [1, 1]
    assert not placed.prompt.flags.writeable
    big = [2**64 - 1, np.uint64(2**63)]
    assert made.place_many(big, np.array([1, 2, 3, 4])[::2], None).attempt.tolist() == [1, 1]
    assert made.place_many([], [], []).prompt.shape == (0,)


def test_place_many_works_above_the_size_from_which_it_lets_threads_run():
    made = cluster(prompt=8, token=8)
    placed = made.place_many(np.arange(5000), np.full(5000, 10))
    assert (placed.attempt == 1).all()
    assert np.bincount(placed.prompt, minlength=8)[:8].tolist() == [625] * 8


@pytest.mark.parametrize(
    ("arguments", "option", "got"),
    [
        (([1, -2], [1, 1]), "request_ids", "-2 at index 1"),
        (([1, 2], [1, 2**32]), "prompt_tokens", f"{2**32} at index 1"),
        (([1, 2], np.array([2**32, 1], np.uint64)), "prompt_tokens", f"{2**32} at index 0"),
        (([1, 2**64], [1, 1]), "request_ids", f"{2**64} at index 1"),
        (([1, 2], [1, 0]), "prompt_tokens", "0 at index 1"),
        (([1, 2], [1, 1], [0, 1]), "max_new_tokens", "0 at index 0"),
        (([1, 2], [1]), "prompt_tokens", "1"),
        (([1, 2], [1, 1], [1, 1, 1]), "max_new_tokens", "3"),
        (([1, 2], [1.5, 1.0]), "prompt_tokens", "1.5 at index 0"),
        (([[1, 2]], [1, 1]), "request_ids", "2"),
        ((7, [1]), "request_ids", "0"),
    ],
)
def test_place_many_names_what_is_out_of_range_and_places_nothing(arguments, option, got):
    made = cluster()
    with pytest.raises(splitcore.ConfigError) as caught:
        made.place_many(*arguments)
    assert (caught.value.option, caught.value.got) == (option, got)
    assert made.counters()["placed"] == 0


@pytest.mark.parametrize("ids", [[1, 2, 9, 3], [1, 2, 1], [4, 3, 2, 3]])
def test_place_many_with_a_duplicate_places_nothing(ids):
    made = cluster()
    made.place(9, 1, 1)
    with pytest.raises(splitcore.DuplicateRequestError) as caught:
        made.place_many(ids, [1] * len(ids))
    assert caught.value.request_id in ids
    assert made.counters()["placed"] == 1


# handle


def test_events_as_dicts_do_what_the_calls_do():
    made, other = cluster(), cluster()
    called = made.place(1, 1000, 10, now_ns=1)
    handled = other.handle([{"type": "arrive", "request": 1, "prompt_tokens": 1000, "max_new_tokens": 10}], now_ns=1)
    (action,) = handled.actions
    assert (action["type"], action["request"], action["attempt"]) == ("placed", 1, called.attempt)
    assert action["legs"][0]["machine"] == {"fixed": {"index": 0, "incarnation": 1}}
    key = {"request": 1, "attempt": 1}
    handled = other.handle(
        [
            {"type": "fact", "notice": {"type": "prefill_done", "key": key, "sampled": True}},
            {"type": "fact", "notice": {"type": "finished", "key": key, "tokens": 3}},
            {"type": "fact", "notice": {"type": "finished", "key": key, "tokens": 3}},
        ]
    )
    assert handled.actions == [{"type": "ended", "request": 1, "outcome": "finished"}]
    assert (handled.errors, handled.late) == ([], 1)
    assert other.poll().placements == []


def test_each_bad_event_is_an_error_at_its_index_and_the_next_goes_on():
    made = cluster()
    arrive = {"type": "arrive", "request": 1, "prompt_tokens": 10, "max_new_tokens": 10}
    handled = made.handle(
        [
            {"type": "arive"},
            arrive,
            arrive,
            {"type": "lose", "machine": {"index": 99, "incarnation": 1}},
            {"type": "arrive", "request": 2},
            7,
            arrive | {"request": 3, "prompt_tokens": 0},
            arrive | {"request": 4},
        ]
    )
    kinds = [(index, type(error)) for index, error in handled.errors]
    assert kinds == [
        (0, splitcore.EventError),
        (2, splitcore.DuplicateRequestError),
        (3, splitcore.UnknownIdError),
        (4, splitcore.EventError),
        (5, splitcore.EventError),
        (6, splitcore.EventError),
    ]
    assert "max_new_tokens" in str(handled.errors[3][1]) or "prompt_tokens" in str(handled.errors[3][1])
    assert [action["request"] for action in handled.actions] == [1, 4]
    made.check()


def test_a_machine_that_joins_by_event_gets_a_name():
    made = cluster(prompt=1, token=0)
    join = {"role": "token", "kv_capacity_tokens": 100, "speed_weight": 1, "link": None}
    made.handle([{"type": "join", "machine": {"index": 1, "incarnation": 1}, **join}])
    assert made.machine_names() == ["p0", "machine-1"]
    assert made.place(1, 10, 10).token == "machine-1"


def test_at_the_managed_level_commands_wait_for_handle():
    made = cluster(prompt=1, token=1, level="managed")
    made.place(1, 1000, 10)
    handled = made.handle([])
    commands = [action["command"]["type"] for action in handled.actions if action["type"] == "command"]
    assert commands == ["reserve", "compute", "send"]
    assert made.handle([]).actions == []


# threads


def test_a_burst_from_many_threads_spreads_evenly():
    # S1: 256 placements from 16 threads over four idle prompt machines.
    made = Cluster()
    for index in range(4):
        made.add_machine(f"p{index}", role="prompt", kv_blocks=10_000)
    made.add_machine("t0", role="token", kv_blocks=100_000)
    chosen = [[] for _ in range(16)]
    together = threading.Barrier(16)

    def burst(thread):
        together.wait()
        for at in range(16):
            chosen[thread].append(made.place(16 * thread + at, 100, 10).prompt)

    threads = [threading.Thread(target=burst, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [name for each in chosen for name in each]
    assert len(every) == 256
    assert all(abs(every.count(f"p{index}") - 64) <= 1 for index in range(4))
    made.check()


def test_limits_and_cost_tables_come_as_events():
    cluster = splitcore.Cluster(level="managed")
    costs = {
        "prefill": [{"at": 128, "ns": 40_000_000}, {"at": 8192, "ns": 1_500_000_000}],
        "decode": [{"at": 1, "ns": 30_000_000}],
        "context_ns_per_1024_tokens": 150_000,
        "pass_tokens_max": 2048,
    }
    join = {
        "type": "join",
        "machine": {"index": 0, "incarnation": 1},
        "role": "mixed",
        "kv_capacity_tokens": 1000,
        "speed_weight": 1,
        "link": None,
    }
    limits = {"type": "set_slo", "class": 0, "slo": {"ttft_ns": 10**9, "tbt_ns": 10**8}}
    wrong = [
        join | {"costs": costs | {"decode": []}},
        limits | {"slo": {"ttft_ns": 0, "tbt_ns": 1}},
    ]
    handled = cluster.handle([limits, limits | {"slo": None}, *wrong, join | {"costs": costs}], now_ns=0)
    told = [(index, type(error), str(error)) for index, error in handled.errors]
    assert [index for index, _, _ in told] == [2, 3]
    assert "decode knots: expected at least one" in told[0][2]
    assert told[1][1:] == (splitcore.EventError, "class 0: expected limits above zero")
    assert len(cluster.loads()) == 1
    assert splitcore.Cluster(level="managed").handle([join], now_ns=0).errors == []
