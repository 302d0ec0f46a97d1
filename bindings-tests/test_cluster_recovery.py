"""`Cluster` when machines are lost, drained or come back, when requests wait, and when time runs out."""

import pytest

import splitcore
from clusters import SECOND, cluster, row


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


def test_parked_work_that_no_machine_can_hold_turns_nobody_away_and_comes_to_an_end():
    made = cluster(prompt=0, token=0, mixed=1)
    made.add_machine("small", role="mixed", kv_blocks=5)
    made.place(1, 100, 10, slo_class=1, now_ns=SECOND)
    assert made.lose_machine("m0", now_ns=SECOND).parked == [1]
    assert made.place(2, 10, 10, slo_class=1, now_ns=2 * SECOND).prompt == "small"
    assert made.poll(now_ns=61 * SECOND - 1).unplaceable == []
    polled = made.poll(now_ns=61 * SECOND)
    assert (polled.unplaceable, polled.expired) == ([1], [])
    assert "unplaceable=[1]" in repr(polled)


def test_an_arrival_behind_parked_work_of_its_class_is_told_so():
    made = cluster(prompt=0, token=0, mixed=1)
    made.place(1, 100, 10, slo_class=1)
    assert made.lose_machine("m0").parked == [1]
    for slo_class, reason in ((1, "overloaded"), (2, "no_machine")):
        with pytest.raises(splitcore.RejectedError) as caught:
            made.place(2, 10, 10, slo_class=slo_class)
        assert caught.value.reason == reason


def test_tokens_of_an_unsplit_request_say_that_its_prompt_is_done():
    made = cluster(prompt=0, token=0, mixed=1)
    made.place(1, 100, 10)
    made.progress(1, 1)
    assert made.loads()["booked_load"].tolist() == [1]
    assert made.prefill_done(1) is False


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
