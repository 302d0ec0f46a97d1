"""What only KV by NIXL can get wrong: its writes ask nobody at the receiver, and move only while both sides call it."""

import os
import platform
import signal
import sys

import numpy as np
import pytest

from kv_sides import BLOCKS, LAYOUT, Told, key_of, pair
from splitcore import HandshakeError
from splitcore.nixl_transfer import NixlLink, available, link
from splitcore.transfer import KvLayout, KvPool, Receiver, connect

UCX = {"UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "FATAL"}
needs_nixl = pytest.mark.skipif(available() is not None, reason=str(available()))
SMALL = KvLayout(layers=1, heads=1, head_dim=4, block_tokens=4)


@pytest.mark.skipif(not os.environ.get("CI"), reason="a build machine has it")
@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.version_info[:2] not in {(3, 11), (3, 12)}, reason="not every platform has it"
)
def test_a_build_machine_runs_these_tests():
    assert available() is None


def nixl(sides, **options):
    return pair(sides, UCX, listen={"nixl": True}, backend="nixl", **options)


def begun(receiver, sender, life):
    grant = receiver("open", writer=life, request=7, blocks=[9, 2, 5], tokens=10)
    sender("begin", grant=grant, table=[3, 0, 7], tokens=[0, 10])
    return key_of(grant)


@needs_nixl
def test_a_layer_of_more_ranges_than_one_write_takes_lands_whole(sides):
    receiver, sender, life = nixl(sides)
    sender("ranges_per_write", count=1)
    key = begun(receiver, sender, life)
    sender("put_layers", request=7, layers=[0, 1, 2])
    for layer in range(3):
        receiver("wait_layer", key=key, layer=layer, timeout=10)
    assert sender("finish", request=7, timeout=10) == "local-done"
    tables = {"source": [3, 0, 7], "dest": [9, 2, 5], "tokens": [0, 10]}
    assert receiver("check", layout=LAYOUT, blocks=BLOCKS, seed=1, **tables) == 0


@needs_nixl
def test_a_write_outside_the_registered_memory_is_refused_and_the_link_lives(sides):
    receiver, sender, life = nixl(sides)
    key = begun(receiver, sender, life)
    size = 3 * 2 * 2 * 4 * 8 * 4 * BLOCKS
    for offset in (size, size - 63, 1 << 40):
        with pytest.raises(Told) as told:
            sender("put_beyond", request=7, offset=offset)
        assert told.value.kind == "refused"
    sender("put_layers", request=7, layers=[0])
    receiver("wait_layer", key=key, layer=0, timeout=10)


@needs_nixl
def test_nothing_is_written_before_the_receiver_says_go(sides):
    receiver, sender, life = nixl(sides)
    begun(receiver, sender, life)
    # It is not called, so it cannot answer.
    sender("put_layers", request=7, layers=[0, 1, 2])
    with pytest.raises(Told) as told:
        sender("finish", request=7, timeout=0.3)
    assert told.value.kind == "timeout"
    assert receiver("count_nonzero") == 0


@needs_nixl
def test_a_receiver_that_takes_nothing_is_given_up_after_the_limit(sides):
    receiver, sender, life = nixl(sides, stall_limit=0.5)
    begun(receiver, sender, life)
    os.kill(receiver.pid, signal.SIGSTOP)
    try:
        sender("put_layers", request=7, layers=[0, 1, 2])
        assert sender("finish", request=7, timeout=15) == "failed"
        assert sender("peer") == "lost"
    finally:
        os.kill(receiver.pid, signal.SIGCONT)


@needs_nixl
def test_blocks_of_a_silent_writer_stay_in_quarantine_until_it_is_dead(sides):
    receiver, sender, life = nixl(sides)
    key = begun(receiver, sender, life)
    sender("put_layers", request=7, layers=[0])
    receiver("wait_layer", key=key, layer=0, timeout=10)
    os.kill(sender.pid, signal.SIGSTOP)
    receiver("stop", key=key)
    with pytest.raises(Told) as told:
        receiver("release", key=key)
    assert told.value.kind == "not-fenced"
    sender.kill()
    told, _ = receiver("settle", key=key, timeout=10)
    assert told[-1][0] == "fenced"
    assert receiver("release", key=key) == 0


@needs_nixl
def test_a_sender_that_closes_is_known_to_be_gone(sides):
    receiver, sender, life = nixl(sides)
    key = begun(receiver, sender, life)
    sender("put_layers", request=7, layers=[0])
    receiver("wait_layer", key=key, layer=0, timeout=10)
    receiver.send("settle", key=key, timeout=10)
    sender("disconnect")
    assert receiver.answer()[0][-1][0] == "fenced"
    assert receiver("release", key=key) == 0


@needs_nixl
def test_a_receiver_that_closes_is_known_to_be_gone(sides):
    receiver, sender, life = nixl(sides)
    begun(receiver, sender, life)
    receiver("close")
    assert sender("finish", request=7, timeout=10) == "failed"
    assert sender("peer") == "lost"


@needs_nixl
def test_one_sender_serves_two_receivers_from_one_pool(sides):
    first, sender, one = nixl(sides)
    second = sides(UCX)
    second("pool_", layout=LAYOUT, blocks=BLOCKS)
    endpoint = second("listen", nixl=True)
    key = begun(first, sender, one)
    sender("put_layers", request=7, layers=[0, 1, 2])
    first("wait_layer", key=key, layer=2, timeout=10)
    sender("keep")
    sender.send("connect", endpoint=endpoint, backend="nixl", incarnation=one + 10**6)
    assert second("joined", writer=one + 10**6, timeout=5) == "connected"
    sender.answer()
    key = begun(second, sender, one + 10**6)
    sender("put_layers", request=7, layers=[0, 1, 2])
    for layer in range(3):
        second("wait_layer", key=key, layer=layer, timeout=10)
    sender("disconnect")
    second("close")
    # The first is as it was.
    assert first("joined", writer=one, timeout=1) == "connected"


def test_without_nixl_the_others_carry_and_asking_for_it_says_what_is_missing(monkeypatch):
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, f"{name}._api", raising=False)
    pool = KvPool(SMALL, 2)
    with pytest.raises(HandshakeError, match="nixl-cu12") as error:
        Receiver(pool, model="m", nixl=True)
    assert error.value.kind == "no-backend"
    with Receiver(pool, model="m", local=False) as receiver:
        told = {**receiver.endpoint, "nixl": "x", "backends": ["nixl", "tcp"]}
        with connect(KvPool(SMALL, 2), told, model="m") as sender:
            assert sender.backend == "tcp"
        with pytest.raises(HandshakeError, match="nixl-cu12"):
            connect(KvPool(SMALL, 2), told, model="m", backend="nixl")


@needs_nixl
def test_an_endpoint_with_another_nixl_part_is_refused(monkeypatch):
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    with Receiver(KvPool(SMALL, 2), model="m") as receiver:
        for part in ("", "!", "e30=", 7):
            told = {**receiver.endpoint, "nixl": part, "backends": ["nixl"]}
            with pytest.raises(Exception, match=r"NIXL|endpoint"):
                connect(KvPool(SMALL, 2), told, model="m")


class _Agent:
    """Writes that are done when the test says so."""

    def __init__(self):
        self.written, self.done = [], set()

    def write(self, _name, _base, copies, message):
        self.written.append((copies.tolist(), message))
        return len(self.written)

    def is_done(self, handle):
        return handle in self.done

    def bury(self, handle):
        pass


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_tells_of_a_layer_goes_with_its_last_write_after_all_others_are_done(monkeypatch, is_stopped):
    monkeypatch.setattr(link, "_RANGES_MAX", 2)
    agent = _Agent()
    monkeypatch.setattr(NixlLink, "_live", lambda _: agent)
    sender = NixlLink.__new__(NixlLink)
    sender._name, sender._base = "peer", 0
    rows = np.arange(15, dtype=np.uint64).reshape(5, 3)
    flight = link._Flight(rows, {"t": "layer"})
    for count in (1, 2, 3):
        assert not sender._fly(flight, is_stopped=False)
        # It is asked again before the write is done.
        assert not sender._fly(flight, is_stopped=False)
        assert [message for _, message in agent.written] == [None, None, {"t": "layer"}][:count]
        agent.done.add(count)
        if is_stopped:
            break
    assert sender._fly(flight, is_stopped=is_stopped)
    assert len(agent.written) == (1 if is_stopped else 3)
    assert is_stopped or [row for copies, _ in agent.written for row in copies] == rows.tolist()
