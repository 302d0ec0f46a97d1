"""`Cluster` by its calls: what they answer, raise and count."""

import copy
import gc
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import splitcore
from splitcore import Cluster

SECOND = 1_000_000_000


def cluster(prompt=2, token=2, mixed=0, **options):
    """A cluster of machines p0.., t0.., m0.. with 16,000 KV tokens each."""
    made = Cluster(**options)
    for role, count in (("prompt", prompt), ("token", token), ("mixed", mixed)):
        for index in range(count):
            made.add_machine(f"{role[0]}{index}", role=role, kv_blocks=1000, now_ns=0)
    return made


def row(made, name):
    return made.loads()[made.machine_names().index(name)]


def test_a_placement_tells_both_machines_and_how_they_were_found():
    made = cluster()
    placed = made.place(7, 1000, 100, now_ns=1)
    assert (placed.request_id, placed.prompt, placed.token, placed.attempt) == (7, "p0", "t0", 1)
    assert placed.transfer == "layer-wise"
    assert [(leg.machine, leg.start, leg.upto, leg.kv) for leg in placed.legs] == [
        ("p0", 0, 1000, None),
        ("t0", 1000, None, "p0"),
    ]
    why = placed.why
    assert (why.prompt_step, why.token_step, why.prompt_load, why.token_load) == ("own", "own", 0, 0)
    assert why.runner_up == "p1"
    assert repr(placed) == ("Placement(request_id=7, prompt='p0', token='t0', transfer='layer-wise', attempt=1)")


def test_a_prompt_machine_is_over_beyond_its_pending_tokens():
    made = cluster(prompt=1, token=1, mixed=1)
    made.place(1, 3000, 10)
    assert made.place(2, 5192, 10, dry_run=True).prompt == "p0"
    assert made.place(2, 5193, 10).prompt == "m0"


def test_a_token_machine_is_over_beyond_its_share_of_kv_tokens():
    made = cluster(prompt=1, token=1, mixed=1)
    made.place(1, 3000, 10)
    made.prefill_done(1)
    # 3,001 booked and 12,198 + 1 are 95 % of 16,000 less one.
    assert made.place(2, 12_198, 10, dry_run=True).token == "t0"
    assert made.place(2, 12_199, 10).why.token_step == "mixed"


def test_a_borrowed_machine_moves_to_mixed_and_comes_home():
    made = cluster(prompt=1, token=2)
    made.place(1, 8000, 10)
    placed = made.place(2, 8000, 10)
    assert (placed.prompt, placed.why.prompt_step) == ("t1", "opposite")
    assert row(made, "t1")["pool"] == 2
    made.prefill_done(2)
    assert row(made, "t1")["pool"] == 1
    assert (made.counters()["to_mixed"], made.counters()["to_home"]) == (1, 1)


def test_a_request_on_one_machine_has_one_leg_and_no_transfer():
    made = cluster(prompt=0, token=0, mixed=1, policy="jsq")
    placed = made.place(1, 10, 10)
    assert (placed.prompt, placed.token, placed.transfer) == ("m0", "m0", None)
    assert [(leg.start, leg.upto, leg.kv) for leg in placed.legs] == [(0, None, None)]


def test_the_transfer_follows_the_links_when_kv_size_is_known():
    made = Cluster(kv_bytes_per_token=1_000_000)
    for name, role in (("p", "prompt"), ("t", "token")):
        made.add_machine(name, role=role, kv_blocks=1000, link_bandwidth=100e9, transfer_fixed_cost_s=0.005)
    # 500 tokens take 5 ms, as long as the fixed cost.
    assert made.place(1, 499, 1).transfer == "serialized"
    assert made.place(2, 500, 1).transfer == "layer-wise"


def test_facts_move_the_books():
    made = cluster(prompt=1, token=1)
    made.place(1, 1000, 100)
    assert (row(made, "p0")["prompt_pending_tokens"], row(made, "t0")["booked_load"]) == (1000, 1)
    assert made.prefill_done(1) is True
    assert row(made, "p0")["prompt_pending_tokens"] == 0
    assert row(made, "p0")["kv_tokens"] == 1001
    assert made.source_released(1) is True
    assert row(made, "p0")["kv_tokens"] == 0
    assert made.progress(1, 3) is True
    assert row(made, "t0")["kv_tokens"] == 1004
    assert made.finish(1) is True
    made.check()
    assert not made.loads()[["booked_load", "kv_tokens", "requests"]].tolist()[0][0]
    assert made.counters()["finished"] == 1


def test_progress_counts_from_the_start_so_that_a_repeated_call_changes_nothing():
    made = cluster(prompt=1, token=1)
    made.place(1, 100, 100)
    made.progress(1, 5)
    made.progress(1, 5)
    made.progress(1, 4)
    assert row(made, "t0")["kv_tokens"] == 106


def test_the_first_progress_frees_the_source():
    made = cluster(prompt=1, token=1)
    made.place(1, 100, 100)
    made.prefill_done(1)
    made.progress(1, 1)
    assert row(made, "p0")["requests"] == 0
    assert made.source_released(1) is False


def test_late_calls_are_counted_and_answer_false():
    made = cluster()
    calls = (
        made.prefill_done,
        lambda *args, **options: made.progress(*args, 1, **options),
        made.finish,
        made.cancel,
        made.source_released,
    )
    assert [call(9) for call in calls] == [False] * 5
    made.place(9, 100, 10)
    assert [call(9, attempt=2) for call in calls] == [False] * 5
    assert made.counters()["late"] == 10
    assert made.cancel(9, attempt=1) is True
    assert made.cancel(9) is False
    assert made.counters()["cancelled"] == 1


def test_a_live_id_cannot_be_placed_again_and_an_ended_one_can():
    made = cluster()
    made.place(5, 10, 10)
    with pytest.raises(splitcore.DuplicateRequestError) as caught:
        made.place(5, 10, 10)
    assert caught.value.request_id == 5
    made.finish(5)
    assert made.place(5, 10, 10).attempt == 1


def test_a_rejection_names_its_reason_and_keeps_nothing():
    made = cluster(prompt=1, token=1, requests_max=1)
    with pytest.raises(splitcore.RejectedError) as caught:
        made.place(1, 15_000, 1_001)
    assert (caught.value.reason, caught.value.request_id) == ("too_large", 1)
    made.place(1, 15_000, 1_000)
    with pytest.raises(splitcore.RejectedError, match="request 2 is rejected: requests_max"):
        made.place(2, 1, 1)
    with pytest.raises(splitcore.RejectedError) as caught:
        Cluster().place(3, 1, 1)
    assert caught.value.reason == "no_machine"
    made.check()


@pytest.mark.parametrize(
    ("arguments", "option", "got"),
    [
        ((-1, 1, 1), "request_id", "-1"),
        ((2**64, 1, 1), "request_id", str(2**64)),
        ((1, 0, 1), "prompt_tokens", "0"),
        ((1, 2**32, 1), "prompt_tokens", str(2**32)),
        ((1, 1, 0), "max_new_tokens", "0"),
        ((1, 1, -5), "max_new_tokens", "-5"),
    ],
)
def test_a_count_out_of_range_names_the_argument(arguments, option, got):
    made = cluster()
    with pytest.raises(splitcore.ConfigError) as caught:
        made.place(*arguments)
    assert (caught.value.option, caught.value.got) == (option, got)
    assert caught.value.expected in str(caught.value)


def test_wrong_types_are_type_errors():
    made = cluster()
    with pytest.raises(TypeError, match="prompt_tokens"):
        made.place(1, "many", 1)
    with pytest.raises(TypeError, match="request_id"):
        made.finish(1.5)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"policy": "best"}, "policy"),
        ({"level": "full"}, "level"),
        ({"mixed_return": "never"}, "mixed_return"),
        ({"reserve": "late"}, "reserve"),
        ({"cut": "nowhere"}, "cut"),
        ({"transfer": "by hand"}, "transfer"),
        ({"kv_fill_max": 1.5}, "kv_fill_max"),
        ({"kv_fill_max": float("nan")}, "kv_fill_max"),
        ({"lease_s": 0.0}, "lease_s"),
        ({"lease_s": -1.0}, "lease_s"),
        ({"lease_s": 1.0, "level": "managed"}, "lease_s"),
        ({"requests_max": 0}, "requests_max"),
        ({"attempts_max": 0}, "attempts_max"),
        ({"prompt_pending_tokens_max": 0}, "prompt_pending_tokens_max"),
    ],
)
def test_an_option_out_of_range_is_named(options, option):
    with pytest.raises(splitcore.ConfigError) as caught:
        Cluster(**options)
    assert caught.value.option == option
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"role": "both"}, "role"),
        ({"kv_blocks": 0}, "kv_blocks"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"speed_weight": 0}, "speed_weight"),
        ({"link_bandwidth": 0.0}, "link_bandwidth"),
        ({"transfer_fixed_cost_s": -1.0}, "transfer_fixed_cost_s"),
    ],
)
def test_a_machine_out_of_range_is_not_added(options, option):
    made = Cluster()
    with pytest.raises(splitcore.ConfigError) as caught:
        made.add_machine("m", **({"role": "mixed", "kv_blocks": 1} | options))
    assert caught.value.option == option
    assert made.machine_names() == []


def test_machines_are_known_by_name():
    made = cluster(prompt=1, token=1)
    with pytest.raises(splitcore.DuplicateMachineError) as caught:
        made.add_machine("p0", role="prompt", kv_blocks=1)
    assert caught.value.machine == "p0"
    for call in (made.drain_machine, made.lose_machine):
        with pytest.raises(splitcore.UnknownIdError) as caught:
            call("p9")
        assert (caught.value.kind, caught.value.id) == ("machine", "p9")
    made.lose_machine("p0")
    with pytest.raises(splitcore.UnknownIdError):
        made.lose_machine("p0")
    assert made.add_machine("p0", role="token", kv_blocks=1) == 0
    assert row(made, "p0")["incarnation"] == 2
    assert made.machine_names() == ["p0", "t0"]


def test_errors_survive_pickling():
    made = cluster()
    with pytest.raises(splitcore.UnknownIdError) as caught:
        made.drain_machine("x")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (type(again), again.kind, again.id, str(again)) == (
        splitcore.UnknownIdError,
        "machine",
        "x",
        "no machine has the name x",
    )


def test_a_pin_binds_the_token_side_only():
    made = cluster(prompt=2, token=3)
    placed = made.place(1, 100, 10, pin_token="t2")
    assert (placed.prompt, placed.token, placed.why.token_step) == ("p0", "t2", "pinned")
    with pytest.raises(splitcore.UnknownIdError) as caught:
        made.place(2, 100, 10, pin_token="t9")
    assert (caught.value.kind, caught.value.id) == ("machine", "t9")
    made.drain_machine("t2")
    with pytest.raises(splitcore.RejectedError, match="pin_unavailable"):
        made.place(2, 100, 10, pin_token="t2")


def test_a_dry_run_answers_as_the_call_and_books_nothing():
    made = cluster()
    before = made.loads()
    first = made.place(1, 100, 10, dry_run=True)
    assert (made.loads() == before).all()
    assert made.counters()["placed"] == 0
    assert repr(made.place(1, 100, 10)) == repr(first)
    with pytest.raises(splitcore.RejectedError):
        made.place(2, 10**6, 10, dry_run=True)


def test_a_session_and_prefix_hashes_are_taken_and_change_nothing():
    plain, given_both = cluster(), cluster()
    first = plain.place(1, 100, 10)
    second = given_both.place(1, 100, 10, session="chat", prefix_hashes=[1, 2], slo_class=3)
    assert repr(first) == repr(second)


def test_the_requests_of_a_lost_machine_run_elsewhere():
    made = cluster(prompt=2, token=2)
    for request in range(4):
        made.place(request, 100, 10, resumable=request != 2)
    made.progress(0, 7)
    recovery = made.lose_machine("t0")
    assert (recovery.placed, recovery.parked, recovery.failed) == ([0], [], [2])
    polled = made.poll()
    assert [(placed.request_id, placed.token, placed.attempt) for placed in polled.placements] == [(0, "t1", 2)]
    assert polled.placements[0].legs[0].upto == 107, "what the client has is part of the new prompt"
    assert made.poll().placements == []
    assert made.finish(0, attempt=1) is False
    assert made.finish(0) is True
    made.check()


def test_a_request_without_any_machine_is_parked_until_one_joins():
    made = cluster(prompt=0, token=0, mixed=1)
    made.place(1, 100, 10, now_ns=0)
    recovery = made.lose_machine("m0", now_ns=1)
    assert recovery.parked == [1]
    assert made.next_deadline_ns() is not None
    assert made.poll(now_ns=5 * SECOND).placements == []
    made.add_machine("m1", role="mixed", kv_blocks=1000, now_ns=6 * SECOND)
    (placed,) = made.poll(now_ns=6 * SECOND).placements
    assert (placed.request_id, placed.prompt, placed.attempt) == (1, "m1", 2)
    assert made.next_deadline_ns() is None
    made.check()


def test_parked_work_turns_away_its_own_class_only():
    made = cluster(prompt=0, token=0, mixed=1)
    made.add_machine("small", role="mixed", kv_blocks=5)
    made.place(1, 100, 10, slo_class=1)
    assert made.lose_machine("m0").parked == [1]
    with pytest.raises(splitcore.RejectedError) as caught:
        made.place(2, 10, 10, slo_class=1)
    assert caught.value.reason == "overloaded"
    assert made.place(3, 10, 10, slo_class=2).prompt == "small"


def test_a_placement_that_ended_before_the_poll_is_not_returned():
    made = cluster(prompt=2, token=1)
    made.place(1, 100, 10)
    made.lose_machine("p0")
    made.cancel(1)
    assert made.poll().placements == []


def test_a_request_fails_after_its_last_attempt():
    made = cluster(prompt=3, token=1, attempts_max=2)
    made.place(1, 100, 10)
    assert made.lose_machine("p0").placed == [1]
    assert made.lose_machine("p1").failed == [1]


def test_a_lease_runs_out_unless_a_call_touches_it():
    made = cluster(lease_s=2.0)
    for request in (1, 2, 3, 4):
        made.place(request, 100, 10, now_ns=0)
    made.prefill_done(1, now_ns=SECOND)
    assert made.renew([2, 77], now_ns=SECOND) == 1
    made.finish(4, now_ns=SECOND)
    assert made.next_deadline_ns() == 2 * SECOND
    assert made.poll(now_ns=2 * SECOND - 1).expired == []
    assert made.poll(now_ns=2 * SECOND).expired == [3]
    assert made.finish(3, now_ns=2 * SECOND) is False
    assert sorted(made.poll(now_ns=3 * SECOND).expired) == [1, 2]
    assert made.loads()["booked_load"].sum() == 0
    made.check()


def test_what_is_due_happens_before_the_call():
    made = cluster(prompt=1, token=1, lease_s=1.0)
    made.place(1, 8000, 10, now_ns=0)
    # The lease of 1 is over, so the same id is free and its machine idle.
    placed = made.place(1, 8000, 10, now_ns=SECOND)
    assert placed.why.prompt_load == 0
    assert made.poll(now_ns=SECOND).expired == [1]


def test_a_time_before_the_last_is_raised_to_it():
    made = cluster(lease_s=1.0)
    made.place(1, 100, 10, now_ns=5 * SECOND)
    made.place(2, 100, 10, now_ns=0)
    assert made.poll(now_ns=6 * SECOND - 1).expired == []
    assert sorted(made.poll(now_ns=6 * SECOND).expired) == [1, 2]


def test_drained_machines_get_nothing_new_and_finish_what_they_have():
    made = cluster(prompt=2, token=1)
    made.place(1, 100, 10)
    made.drain_machine("p0")
    made.drain_machine("p0")
    assert row(made, "p0")["state"] == 1
    assert made.place(2, 100, 10).prompt == "p1"
    assert made.prefill_done(1)
    made.check()


def test_old_facts_do_not_touch_a_machine_that_came_back():
    # S7: m7 with five requests goes and comes back under its name.
    made = cluster(prompt=0, token=0)
    made.add_machine("m7", role="mixed", kv_blocks=1000)
    for request in range(5):
        made.place(request, 100, 10)
    assert made.lose_machine("m7").parked == [0, 1, 2, 3, 4]
    for request in range(5):
        made.cancel(request)
    made.add_machine("m7", role="mixed", kv_blocks=1000)
    made.place(9, 300, 10)
    for request in range(5):
        assert made.prefill_done(request, attempt=1) is False
        assert made.finish(request, attempt=1) is False
    (load,) = made.loads()
    assert (load["incarnation"], load["requests"], load["prompt_pending_tokens"]) == (2, 1, 300)
    made.check()


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
    assert commands == ["reserve", "start", "compute", "send"]
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


def test_answers_show_what_they_hold():
    cluster = splitcore.Cluster()
    for name, role in (("p0", "prompt"), ("p1", "prompt"), ("t0", "token")):
        cluster.add_machine(name, role=role, kv_blocks=1000)
    placement = cluster.place(1, 600, 10)
    assert repr(placement) == "Placement(request_id=1, prompt='p0', token='t0', transfer='layer-wise', attempt=1)"
    assert repr(placement.legs) == (
        "(Leg(machine='p0', start=0, upto=600, kv=None), Leg(machine='t0', start=600, upto=None, kv='p0'))"
    )
    assert repr(placement.why) == (
        "Why(prompt_step='own', token_step='own', prompt_load=0, token_load=0, runner_up='p1')"
    )
    assert repr(cluster.lose_machine("p0")) == "Recovery(placed=[1], parked=[], failed=[])"
    again = "Placement(request_id=1, prompt='p1', token='t0', transfer='layer-wise', attempt=2)"
    assert repr(cluster.poll()) == f"Polled(placements=[{again}], expired=[])"
