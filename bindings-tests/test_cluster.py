"""`Cluster` by its calls: what they answer, raise and count."""

import pickle

import pytest

import splitcore
from clusters import cluster, row
from splitcore import Cluster

COSTS = {
    # A prompt of 1000 tokens takes a second, a decode pass 10 ms and 1 ms for each request more.
    "prefill": [{"at": 0, "ns": 0}, {"at": 1000, "ns": 10**9}],
    "decode": [{"at": 1, "ns": 10**7}, {"at": 11, "ns": 2 * 10**7}],
    "context_ns_per_1024_tokens": 0,
    "pass_tokens_max": 2048,
}


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
    assert made.place(1, 499, 2).transfer == "serialized"
    assert made.place(2, 500, 2).transfer == "layer-wise"


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
        ({"ties": "any"}, "ties"),
        ({"admission": "late"}, "admission"),
        ({"recovery_headroom": 0.9995}, "recovery_headroom"),
        ({"recovery_headroom": -0.1}, "recovery_headroom"),
        ({"priority_ageing_s": 0.0}, "priority_ageing_s"),
        ({"retry_interval_s": 0.0}, "retry_interval_s"),
        ({"park_limit_s": float("inf")}, "park_limit_s"),
        ({"rejoin_limit_s": -5.0}, "rejoin_limit_s"),
        ({"hedge_after_s": 0.0}, "hedge_after_s"),
        ({"grace_s": -1.0}, "grace_s"),
        ({"grace_s": float("nan")}, "grace_s"),
        ({"mixed_hold_s": 1e-12}, "mixed_hold_s"),
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
        ({"costs": {}}, "costs"),
        ({"costs": COSTS | {"prefill": []}}, "costs"),
        ({"costs": COSTS | {"decode": [{"at": 2, "ns": 1}, {"at": 2, "ns": 1}]}}, "costs"),
        ({"costs": COSTS | {"pass_tokens_max": 0}}, "costs"),
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
    assert repr(cluster.poll()) == f"Polled(placements=[{again}], expired=[], unplaceable=[])"


def test_a_class_with_limits_turns_away_what_would_come_too_late():
    made = Cluster(admission="early")
    for name, role in (("p0", "prompt"), ("t0", "token")):
        made.add_machine(name, role=role, kv_blocks=1000, costs=COSTS)
    made.set_slo(1, ttft_s=1.5, tbt_s=0.0105)
    made.place(1, 1000, 10, slo_class=1)
    with pytest.raises(splitcore.RejectedError) as caught:
        made.place(2, 1000, 10, slo_class=1)
    assert caught.value.reason == "ttft_slo"
    assert made.place(2, 1000, 10).attempt == 1, "another class has no limits"
    for request in (1, 2):
        made.prefill_done(request)
        made.progress(request, 1)
    made.set_slo(1, tbt_s=0.0105)
    with pytest.raises(splitcore.RejectedError) as caught:
        made.place(3, 1000, 10, slo_class=1)
    assert caught.value.reason == "tbt_slo"
    made.set_slo(1)
    assert made.place(3, 1000, 10, slo_class=1).attempt == 1
    made.check()


@pytest.mark.parametrize("option", ["ttft_s", "tbt_s"])
def test_a_limit_is_above_zero(option):
    with pytest.raises(splitcore.ConfigError) as caught:
        Cluster().set_slo(0, **{option: 0.0})
    assert caught.value.option == option


def test_headroom_is_kept_from_arrivals_and_short_prompts_are_not_split():
    made = cluster(prompt=1, token=1, requests_max=10, recovery_headroom=0.8, split_from_tokens=50)
    assert [made.place(1, 49, 10).legs[0].machine, made.place(2, 50, 10).prompt] == ["t0", "p0"]
    with pytest.raises(splitcore.RejectedError) as caught:
        made.place(3, 50, 10)
    assert caught.value.reason == "headroom"


def test_ties_go_to_the_first_or_the_last():
    assert [cluster(ties=ties).place(1, 100, 10).prompt for ties in ("first", "last")] == ["p0", "p1"]
