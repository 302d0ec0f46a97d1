"""Sessions by dict events: a machine that comes back, one that comes too late, and a Cluster that is built anew."""

import pytest

import splitcore
from clusters import SECOND
from sessions import World
from splitcore import Cluster, Machine


def register(machine, index=0, incarnation=1, role="mixed", tokens=1600):
    join = {
        "machine": {"index": index, "incarnation": incarnation},
        "role": role,
        "kv_capacity_tokens": tokens,
        "speed_weight": 1,
        "link": None,
    }
    held = {"epoch": machine.epoch, "report": machine.report(), "claims": machine.claims()}
    return {"type": "register", "join": join, **held}


def pair(**options):
    """A Cluster and the one machine that has registered with it."""
    made, machine = Cluster(level="managed", **options), Machine(kv_blocks=100)
    carry(machine, made, made.handle([register(machine)], now_ns=0))
    return made, machine


def carry(machine, made, handled, now_ns=0):
    """Gives the machine what the Cluster wants of it. Returns what the machine then does."""
    assert handled.errors == []
    events = []
    for action in handled.actions:
        if action["type"] == "command":
            command = {name: action[name] for name in ("type", "seq", "command")}
            events.append({**command, "epoch": made.epoch})
        elif action["type"] == "registered":
            events.append({"type": "registered", "epoch": action["epoch"]})
    handled = machine.handle(events, now_ns=now_ns)
    assert handled.errors == []
    return handled.actions


def notices(actions, index=0, incarnation=1):
    me = {"index": index, "incarnation": incarnation}
    return [{"type": "notice", "from": me, "notice": each["notice"]} for each in actions if each["type"] == "notify"]


def arrive(request, prompt=100):
    return {"type": "arrive", "request": request, "prompt_tokens": prompt, "max_new_tokens": 10}


def commands(handled):
    return [action["command"]["type"] for action in handled.actions if action["type"] == "command"]


def test_a_machine_that_registers_is_known_by_its_row():
    made, _ = pair()
    assert (made.epoch, made.is_recovering, made.machine_names()) == (1, False, ["machine-0"])
    assert made.place(1, 100, 10).prompt == "machine-0"
    made.drain_machine("machine-0")
    assert made.loads()["state"].tolist() == [1]
    assert made.lose_machine("machine-0").parked == [1]


def test_a_row_left_open_counts_as_lost_and_can_be_taken_by_its_name():
    made = Cluster(level="managed")
    made.handle([register(Machine(kv_blocks=100, machine=2), index=2)])
    assert made.machine_names() == ["machine-0", "machine-1", "machine-2"]
    assert made.loads()["state"].tolist() == [2, 2, 0]
    with pytest.raises(splitcore.UnknownIdError):
        made.drain_machine("machine-1")
    assert made.add_machine("machine-1", role="prompt", kv_blocks=10) == 1
    made.check()


def test_a_machine_comes_back_with_what_it_holds_and_goes_on():
    made, machine = pair()
    carry(machine, made, made.handle([arrive(1)]))
    done = machine.handle([{"type": "iteration_done", "pass": 1, "ended": []}]).actions
    assert [each["type"] for each in notices(done)] == ["notice"]
    # The session breaks, and with it goes the word that the prompt is computed.
    machine.handle([{"type": "cluster_lost"}])
    made.handle([{"type": "disconnect", "machine": {"index": 0, "incarnation": 1}}])
    assert made.loads()["state"].tolist() == [3]
    with pytest.raises(splitcore.RejectedError):
        made.place(2, 100, 10)
    quiet = machine.handle([{"type": "iteration_done", "pass": 2, "ended": []}]).actions
    assert quiet == [{"type": "run", "pass": 3}]

    (claim,) = machine.claims()
    state = {"compute": "decoding", "inbound": "none", "outbound": "none"}
    assert claim["held"] == {"leg": {"state": state, "mode": None}}
    assert claim["work"]["terms"]["resumable"] is True
    handled = made.handle([register(machine)])
    assert handled.actions[0] == {"type": "registered", "to": {"index": 0, "incarnation": 1}, "epoch": 1}
    assert commands(handled) == ["confirm"]
    said = carry(machine, made, handled)
    assert {"type": "resend", "key": {"request": 1, "attempt": 1}, "delivered": 0} in said
    made.handle(notices(said))
    assert made.loads()[["state", "prompt_pending_tokens"]].tolist() == [(0, 0)]
    assert made.counters()["faults"] == 0
    made.check()


def test_a_machine_that_is_back_too_late_is_taken_for_lost():
    made, machine = pair(rejoin_limit_s=1.0, hedge_after_s=None)
    carry(machine, made, made.handle([arrive(1)], now_ns=0))
    made.handle([{"type": "disconnect", "machine": {"index": 0, "incarnation": 1}}], now_ns=0)
    assert made.next_deadline_ns() == SECOND
    made.handle([], now_ns=SECOND)
    assert made.loads()["state"].tolist() == [2]
    ((at, error),) = made.handle([register(machine)], now_ns=SECOND).errors
    assert (at, type(error)) == (0, splitcore.EventError)
    handled = made.handle([register(Machine(kv_blocks=100, incarnation=2), incarnation=2)], now_ns=SECOND)
    assert (handled.errors, commands(handled)) == ([], ["compute"])
    made.check()


def test_a_new_cluster_takes_over_what_its_machines_hold():
    made, machine = pair()
    carry(machine, made, made.handle([arrive(1), arrive(2)]))
    machine.handle([{"type": "cluster_lost"}])
    new = Cluster(level="managed", epoch=2, grace_s=1.0)
    assert new.is_recovering
    handled = new.handle([arrive(3), register(machine)], now_ns=0)
    assert {"type": "rejected", "request": 3, "reason": "recovering"} in handled.actions
    assert commands(handled) == ["confirm", "confirm"]
    new.handle(notices(carry(machine, new, handled)), now_ns=0)
    assert (machine.epoch, new.counters()["adopted"]) == (2, 2)
    new.handle([], now_ns=SECOND)
    assert not new.is_recovering
    assert new.loads()["requests"].tolist() == [2]
    # The old one is not obeyed any more, and learns so when it asks.
    late = made.handle([{"type": "cancel", "request": 1}])
    carry(machine, made, late)
    assert (machine.counters()["stale"], machine.loads()["legs"]) == (1, 2)
    ((_, error),) = made.handle([register(machine)]).errors
    assert "newer" in str(error)
    new.check()
    machine.check()


def test_a_calls_rejection_says_recovering():
    made = Cluster(epoch=2, grace_s=5.0)
    made.add_machine("m0", role="mixed", kv_blocks=100, now_ns=0)
    with pytest.raises(splitcore.RejectedError) as caught:
        made.place(1, 100, 10, now_ns=4 * SECOND)
    assert caught.value.reason == "recovering"
    assert made.place(1, 100, 10, now_ns=5 * SECOND).prompt == "m0"


def test_a_silent_writer_quarantines_its_blocks_and_keeps_new_work_away():
    made = Cluster(level="managed")
    source, destination = Machine(kv_blocks=100), Machine(kv_blocks=100, machine=1, quarantine_limit=0.05)
    first = made.handle([register(source, role="prompt"), register(destination, index=1, role="token")], now_ns=0)
    assert first.errors == []
    handled = made.handle([arrive(1)], now_ns=0)
    to_it = [each for each in handled.actions if each.get("to", {}).get("index") == 1]
    events = [{"type": "registered", "epoch": 1}]
    events += [{"type": "command", "epoch": 1, "seq": each["seq"], "command": each["command"]} for each in to_it]
    said = destination.handle(events, now_ns=0).actions
    made.handle(notices(said, index=1), now_ns=0)
    (abort,) = [
        each
        for each in made.handle([{"type": "cancel", "request": 1}], now_ns=0).actions
        if each["type"] == "command" and each["to"]["index"] == 1
    ]
    destination.handle([{"type": "command", "epoch": 1, "seq": abort["seq"], "command": abort["command"]}], now_ns=0)
    report = destination.report()
    assert (report["quarantined_blocks"], report["over_quarantine"]) == (7, True)
    assert destination.claims()[0]["held"] == "closing"
    made.handle(notices(destination.handle([], now_ns=SECOND).actions, index=1), now_ns=SECOND)
    assert made.loads()["state"].tolist() == [0, 4]
    freed = destination.handle([{"type": "peer_lost", "machine": {"index": 0, "incarnation": 1}}], now_ns=SECOND)
    made.handle(notices(freed.actions, index=1), now_ns=SECOND)
    assert made.loads()["state"].tolist() == [0, 0]


def test_a_world_without_faults_serves_everyone():
    world = World()
    for request in range(30):
        world.heal()
        world.arrive(request, prompt=1 + 9 * request, outputs=1 + request % 5, spare=request % 2)
    world.heal()
    world.check()
    world.check_end(restarted=False)
    assert {client.outcome for client in world.clients.values()} == {"finished"}
