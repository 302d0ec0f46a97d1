"""`Machine` by its events: a split handoff between two of them, wired by hand."""

import pytest

import splitcore
from splitcore import Machine

PROMPT, TOKEN = {"index": 0, "incarnation": 1}, {"index": 1, "incarnation": 1}


def key(request, attempt=1):
    return {"request": request, "attempt": attempt}


def work(prompt, start=0, upto="end", cap=100):
    return {"prompt_tokens": prompt, "start": start, "upto": upto, "max_new_tokens": cap}


def command(kind, request, seq=1, **fields):
    return {"type": "command", "seq": seq, "command": {"type": kind, "key": key(request), **fields}}


def compute(request, prompt, order=None, **fields):
    return command("compute", request, order=request if order is None else order, work=work(prompt, **fields))


def done(machine, *ended):
    """Ends the running pass."""
    return machine.handle([{"type": "iteration_done", "pass": machine.plan()["pass"], "ended": list(ended)}])


def kinds(handled):
    """The actions by type, and by that of what they carry."""
    inner = [action.get("notice", action.get("message", {})).get("type") for action in handled.actions]
    return [(action["type"], kind) for action, kind in zip(handled.actions, inner, strict=True)]


def test_an_idle_machine_runs_all_that_one_call_brings_in_one_pass():
    machine = Machine(kv_blocks=100)
    handled = machine.handle([compute(1, 100), compute(2, 50)], now_ns=5)
    assert handled.actions == [{"type": "run", "pass": 1}]
    plan = machine.plan()
    assert [(each["key"], each["start"], each["tokens"]) for each in plan["prefills"]] == [
        (key(1), 0, 100),
        (key(2), 0, 50),
    ]
    assert (plan["pass"], plan["prompt_tokens"], plan["decodes"], plan["puts"]) == (1, 150, [], [])
    assert set(plan["prefills"][0]) == {"key", "start", "tokens", "samples"}


def test_a_whole_request_runs_from_prompt_to_end():
    machine = Machine(kv_blocks=100)
    machine.handle([compute(1, 33)])
    assert len(machine.blocks(1)) == 3
    assert kinds(done(machine)) == [("notify", "prefill_done"), ("run", None)]
    assert machine.plan()["decodes"] == [key(1)]
    assert machine.loads()["decoding"] == 1
    handled = done(machine, key(1))
    finished = handled.actions[0]["notice"]
    assert (finished["type"], finished["tokens"]) == ("finished", 2)
    assert machine.loads()["free_blocks"] == 100
    with pytest.raises(splitcore.UnknownIdError) as caught:
        machine.blocks(1)
    assert (caught.value.kind, caught.value.id) == ("request", 1)
    machine.check()


@pytest.mark.parametrize("mode", ["serialized", "layer-wise"])
def test_a_split_request_is_handed_over_and_ends_at_the_second_machine(mode):
    source, destination = Machine(kv_blocks=100), Machine(kv_blocks=100, machine=1)
    reserve = command("reserve", 1, order=1, work=work(1000, start=1000), source=PROMPT)
    handled = destination.handle([reserve, command("start", 1, seq=2)])
    assert kinds(handled) == [("notify", "reserved"), ("peer", "grant")]
    grant = handled.actions[1]
    assert grant["to"] == PROMPT

    first = [compute(1, 1000, upto={"position": 1000}), command("send", 1, to=TOKEN, mode=mode)]
    peer = {"type": "peer", "from": TOKEN, "message": grant["message"]}
    assert kinds(source.handle([*first, peer])) == [("run", None)]
    assert len(source.plan()["puts"]) == (mode == "layer-wise")
    handled = done(source)
    if mode == "serialized":
        assert kinds(handled) == [("notify", "prefill_done"), ("put", None)]
        assert (handled.actions[1]["to"], handled.actions[1]["tokens"]) == (TOKEN, 1000)
    assert source.loads()["running"] == 0

    handled = destination.handle([{"type": "layers_landed", "key": key(1), "layers": 1, "of": 2}])
    assert handled.actions == []
    handled = destination.handle([{"type": "layers_landed", "key": key(1), "layers": 2, "of": 2}])
    assert kinds(handled) == [("peer", "landed"), ("notify", "landed"), ("run", None)]
    assert destination.plan()["decodes"] == [key(1)]

    handled = source.handle([{"type": "peer", "from": TOKEN, "message": handled.actions[0]["message"]}])
    assert kinds(handled) == [("notify", "released")]
    assert source.loads()["free_blocks"] == 100
    done(destination)
    handled = done(destination, key(1))
    # The first token came from the source, two more from here.
    assert handled.actions[0]["notice"]["tokens"] == 3
    assert destination.loads()["legs"] == 0
    source.check()
    destination.check()


def test_an_aborted_handoff_keeps_its_blocks_until_the_writer_lets_go():
    destination = Machine(kv_blocks=10, machine=1)
    destination.handle([command("reserve", 1, order=1, work=work(100, start=100), source=PROMPT)])
    handled = destination.handle([command("abort", 1, seq=2)])
    assert kinds(handled) == [("peer", "abort")]
    loads = destination.loads()
    assert (loads["free_blocks"], loads["held_blocks"], loads["quarantined_blocks"]) == (3, 0, 7)
    ack = {"type": "peer", "from": PROMPT, "message": {"type": "abort_ack", "key": key(1)}}
    assert kinds(destination.handle([ack])) == [("notify", "released")]
    assert destination.loads()["free_blocks"] == 10


def test_a_reservation_without_room_is_refused():
    destination = Machine(kv_blocks=2)
    handled = destination.handle(
        [
            command("reserve", 1, order=1, work=work(20, start=20), source=PROMPT),
            command("reserve", 2, order=2, work=work(20, start=20), source=PROMPT),
        ]
    )
    assert kinds(handled) == [("notify", "reserved"), ("peer", "grant"), ("notify", "refused")]
    assert destination.counters()["refused"] == 1


def test_bad_and_late_events_change_nothing():
    machine = Machine(kv_blocks=4)
    machine.handle([compute(1, 10)])
    before = machine.loads()
    handled = machine.handle(
        [
            compute(1, 10),
            compute(2, 1000),
            {"type": "iteration_done", "pass": 9, "ended": []},
            {"type": "iteration_done", "pass": 1, "ended": [key(5)]},
            {"type": "landed"},
            {"type": "local_done", "key": key(8)},
        ]
    )
    assert [(index, type(error)) for index, error in handled.errors] == [
        (index, splitcore.EventError) for index in range(5)
    ]
    assert "request 2 needs" in str(handled.errors[1][1])
    assert handled.late == machine.counters()["late"] == 1
    assert machine.loads() == before
    machine.check()


def test_reports_come_by_the_clock_when_there_is_news():
    machine = Machine(kv_blocks=100, report_interval_s=0.5)
    assert machine.next_deadline_ns() is None
    machine.handle([compute(1, 100)], now_ns=0)
    assert machine.next_deadline_ns() == 500_000_000
    assert machine.handle([], now_ns=499_999_999).actions == []
    (action,) = machine.handle([], now_ns=500_000_000).actions
    assert action["notice"] == {"type": "report"} | machine.report()
    held = {"seq": 1, "kv_tokens": 101, "free_blocks": 93, "legs": 1, "running": True}
    assert machine.report() == held | {"quarantined_blocks": 0, "over_quarantine": False}
    assert machine.next_deadline_ns() == 1_000_000_000, "a pass is running"


def test_a_restored_machine_plans_the_same():
    machine = Machine(kv_blocks=20)
    machine.handle([compute(1, 100), compute(2, 60), compute(3, 2000 - 60)])
    snapshot = machine.snapshot()

    def answers(of):
        seen = []
        for _ in range(40):
            seen.append((of.plan(), done(of).actions, of.loads()))
        return seen

    other = Machine(kv_blocks=1)
    other.restore(snapshot)
    assert answers(other) == answers(machine)
    other.check()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"kv_blocks": 0}, "kv_blocks"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"batch_tokens_max": 0}, "batch_tokens_max"),
        ({"batch_requests_max": 0}, "batch_requests_max"),
        ({"prefill_chunk_tokens": 0}, "prefill_chunk_tokens"),
        ({"prefill_chunk_tokens": 2049}, "prefill_chunk_tokens"),
        ({"sit_out_max": 0}, "sit_out_max"),
        ({"report_interval_s": 0.0}, "report_interval_s"),
        ({"handoff_floor_blocks": 6}, "handoff_floor_blocks"),
        ({"sends_max": 0}, "sends_max"),
        ({"receives_max": 0}, "receives_max"),
        ({"quarantine_limit": 1.1}, "quarantine_limit"),
        ({"transfer_limit_s": 0.0}, "transfer_limit_s"),
        ({"park_limit_s": 0.0}, "park_limit_s"),
        ({"orphan_limit_s": -1.0}, "orphan_limit_s"),
    ],
)
def test_an_option_out_of_range_is_named(options, option):
    with pytest.raises(splitcore.ConfigError) as caught:
        Machine(**({"kv_blocks": 5} | options))
    assert caught.value.option == option
