"""Layouts, plans and pools as values, and transfers within one process by shared memory."""

import copy
import gc
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kv_peer import rows
from splitcore import ConfigError, HandshakeError, TransferError
from splitcore.transfer import (
    Grant,
    KvLayout,
    KvPool,
    Receiver,
    TransferKey,
    connect,
    new_incarnation,
    plan_transfer,
    senders,
)

SMALL = KvLayout(layers=2, heads=2, head_dim=4, block_tokens=4)
NUMPY = {"f32": "float32", "f16": "float16", "bf16": "uint16", "f8e4m3": "uint8", "f8e5m2": "uint8", "i8": "int8"}


@st.composite
def fields(draw):
    options = {
        "layers": draw(st.integers(1, 4)),
        "block_tokens": draw(st.integers(1, 9)),
        "dtype": draw(st.sampled_from(sorted(NUMPY))),
        "order": draw(st.sampled_from(["HND", "NHD"])),
        "planes": draw(st.sampled_from(["together", "apart"])),
        "arrangement": draw(st.sampled_from(["layer_first", "block_first"])),
    }
    if draw(st.booleans()):
        return options | {"latent_dim": draw(st.integers(1, 9))}
    return options | {"heads": draw(st.integers(1, 4)), "head_dim": draw(st.integers(1, 5))}


layouts = fields().map(lambda options: KvLayout(**options))


@given(fields())
def test_a_layout_is_a_value(options):
    one, other = KvLayout(**options), KvLayout(**options)
    assert one == other
    assert hash(one) == hash(other)
    assert eval(repr(one)) == one  # noqa: S307
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert copy.copy(one) == one
    assert one != KvLayout(**{**options, "layers": 5})
    assert all(getattr(one, name) == value for name, value in options.items())


@given(layouts)
def test_sizes_are_those_of_the_array(layout):
    view = KvPool(layout, 3).numpy()
    assert view.nbytes == 3 * layout.block_bytes
    assert view[0, 0].nbytes == layout.layer_block_bytes
    assert view.dtype == np.dtype(NUMPY[layout.dtype])
    heads, tokens = (3, 4) if layout.order == "HND" else (4, 3)
    assert view.shape[:3] == (layout.layers, 3, layout.plane_count)
    assert (view.shape[heads], view.shape[tokens]) == (layout.heads_here[1], layout.block_tokens)
    assert layout.blocks_for(2 * layout.block_tokens + 1) == 3


@given(layouts)
def test_no_two_elements_of_the_view_share_a_byte(layout):
    pool = KvPool(layout, 3)
    pool.numpy()[...] = 1
    flat = pool.native.array().view(NUMPY[layout.dtype])
    assert (flat == 1).all()


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"layers": 0}, "layers"),
        ({"layers": 1 << 16}, "layers"),
        ({"layers": -1}, "layers"),
        ({"dtype": "f64"}, "dtype"),
        ({"order": "hnd"}, "order"),
        ({"planes": "both"}, "planes"),
        ({"arrangement": "layers"}, "arrangement"),
        ({"heads": None}, "heads"),
        ({"latent_dim": 4}, "heads"),
        ({"tp_rank": 2, "tp_size": 2}, "tp_rank"),
        ({"tp_size": 3}, "tp_size"),
        ({"head_dim": 65535, "block_tokens": 65535}, "layout"),
    ],
)
def test_a_layout_that_no_pool_can_have_is_refused_by_name(change, option):
    with pytest.raises(ConfigError) as error:
        KvLayout(**{"layers": 2, "heads": 2, "head_dim": 4, "block_tokens": 4, **change})
    assert error.value.option == option


def test_keys_and_grants_are_values():
    key = TransferKey(7, 3, 2)
    assert pickle.loads(pickle.dumps(key)) == key  # noqa: S301
    assert len({key, TransferKey(7, 3, 2), TransferKey(7, 3, 1)}) == 2
    with pytest.raises(ConfigError, match="generation"):
        TransferKey(7, 3, 0)
    with Receiver(KvPool(SMALL, 4), model="m") as receiver:
        grant = receiver.open(writer=5, request=2**64 - 1, blocks=np.array([3, 1]), tokens=5)
    assert Grant.from_json(grant.to_json()) == grant
    assert pickle.loads(pickle.dumps(grant)) == grant  # noqa: S301
    assert grant.blocks.tolist() == [3, 1]
    assert grant.key.request == 2**64 - 1
    with pytest.raises(ConfigError, match="grant"):
        Grant.from_json("{}")


def test_incarnations_fit_63_bits():
    lives = {new_incarnation() for _ in range(100)}
    assert len(lives) == 100
    assert all(0 < life < 2**63 for life in lives)
    with pytest.raises(ConfigError, match="incarnation"):
        Receiver(KvPool(SMALL, 4), model="m", incarnation=2**63)


# --- plans


@st.composite
def moves(draw):
    """Two layouts of one model, a table in the pool of each, and positions."""
    source = draw(fields())
    model = {name: source[name] for name in ("layers", "dtype", "heads", "head_dim", "latent_dim") if name in source}
    dest = {**draw(fields()), **model}
    for name in ("heads", "head_dim", "latent_dim"):
        if name not in model:
            dest.pop(name, None)
    end = draw(st.integers(1, 30))
    start = draw(st.integers(0, end - 1))
    one, other = KvLayout(**source), KvLayout(**dest)
    blocks = 40
    tables = [draw(st.permutations(range(blocks)))[: layout.blocks_for(end)] for layout in (one, other)]
    assume(all(tables))
    return one, other, blocks, tables, (start, end)


@given(moves())
def test_what_is_put_by_a_plan_is_the_same_kv_in_the_other_layout(move):
    source, dest, blocks, (from_table, to_table), span = move
    here, there = KvPool(source, blocks), KvPool(dest, blocks)
    here.native.array()[:] = np.random.default_rng(1).integers(0, 256, here.native.bytes, dtype=np.uint8)
    first = span[0] // dest.block_tokens
    layer_bytes = (span[1] - span[0]) * source.layer_block_bytes // source.block_tokens
    with Receiver(there, model="m", tcp=None) as receiver, connect(here, receiver.endpoint, model="m") as sender:
        grant = receiver.open(writer=sender.incarnation, request=1, blocks=to_table[first:], layer_bytes=layer_bytes)
        transfer = sender.begin(grant, table=from_table, tokens=span, dest_table=to_table)
        plan = transfer.plan
        assert (plan.layer_bytes, plan.bytes) == (layer_bytes, layer_bytes * source.layers)
        assert (plan.span, plan.tokens) == (span, span[1] - span[0])
        assert all(plan.ranges(layer)[:, 4].sum(dtype=np.uint64) == layer_bytes for layer in range(plan.layers))
        assert plan.whole()[:, 4].sum(dtype=np.uint64) == plan.bytes
        for layer in reversed(range(source.layers)):
            sender.put_layer(transfer, layer)
            assert receiver.wait_layer(grant, layer, timeout=5).tokens == plan.tokens
        assert sender.finish(transfer, timeout=5).kind == "local-done"
        receiver.release(grant)
    landed = rows(there, to_table, span)
    assert np.array_equal(landed, rows(here, from_table, span))
    assert np.count_nonzero(there.native.array()) == np.count_nonzero(landed)


def plan_of(**change):
    given = {"source": SMALL, "source_blocks": 8, "source_table": [0, 1], "dest": SMALL, "dest_blocks": 8}
    return plan_transfer(**{**given, "dest_table": [5, 6], "tokens": 8, **change})


def test_ranges_are_rows_that_cannot_be_changed():
    plan = plan_of()
    assert plan.ranges(0).tolist() == [[0, 0, 5, 0, 2 * SMALL.layer_block_bytes]]
    assert plan.ranges(1).dtype == np.uint32
    with pytest.raises(ValueError, match="read-only"):
        plan.ranges(0)[0, 0] = 1
    assert plan == plan_of()
    assert plan != plan_of(tokens=7)


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": (3, 3)}, "tokens"),
        ({"tokens": -1}, "tokens"),
        ({"tokens": 9}, "source_table"),
        ({"source_table": [0, 8]}, "source_table"),
        ({"dest_table": [5]}, "dest_table"),
        ({"dest_table": [5, 5]}, "dest_table"),
        ({"dest_table": [5, 2**32]}, "dest_table"),
        ({"dest": KvLayout(layers=3, heads=2, head_dim=4, block_tokens=4)}, "dest"),
    ],
)
def test_a_plan_that_cannot_be_names_what_is_wrong(change, option):
    with pytest.raises(ConfigError) as error:
        plan_of(**change)
    assert error.value.option == option


def test_ranks_that_send_are_those_whose_plans_are_not_empty():
    ranks = [KvLayout(layers=1, heads=4, head_dim=2, block_tokens=4, tp_rank=rank, tp_size=4) for rank in range(4)]
    dest = KvLayout(layers=1, heads=4, head_dim=2, block_tokens=4, tp_rank=1, tp_size=2)
    assert senders(ranks[0], dest) == [2, 3]
    plans = [plan_of(source=rank, dest=dest) for rank in ranks]
    assert [not plan.is_empty for plan in plans] == [False, False, True, True]


# --- one process


@pytest.fixture
def ends():
    here, there = KvPool(SMALL, 8), KvPool(SMALL, 8)
    with Receiver(there, model="m") as receiver, connect(here, receiver.endpoint, model="m") as sender:
        yield receiver, sender


def test_a_wait_lets_other_threads_run_and_wakes_for_the_layer(ends):
    receiver, sender = ends
    grant = receiver.open(writer=sender.incarnation, request=1, blocks=[1], tokens=4)
    transfer = sender.begin(grant, table=[2], tokens=4)
    counted, seals = [], []
    waiting = threading.Thread(target=lambda: seals.append(receiver.wait_layer(grant, 1, timeout=20)))
    waiting.start()
    # Were the interpreter held, nothing of this would happen before the time is up.
    for number in range(100_000):
        counted.append(number)
    assert waiting.is_alive()
    sender.put_layer(transfer, 1)
    waiting.join(10)
    assert [seal.tokens for seal in seals] == [4]


@pytest.mark.parametrize("wait", ["wait_layer", "wait", "finish"])
def test_ctrl_c_ends_a_wait(ends, wait):
    receiver, sender = ends
    grant = receiver.open(writer=sender.incarnation, request=1, blocks=[1], tokens=4)
    transfer = sender.begin(grant, table=[2], tokens=4)
    receiver.poll()
    calls = {
        "wait_layer": lambda: receiver.wait_layer(grant, 0, timeout=40),
        "wait": lambda: receiver.wait(40),
        "finish": lambda: sender.finish(transfer, 40),
    }
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        calls[wait]()
    assert time.monotonic() - began < 30
    timer.join()


def test_errors_tell_the_transfer_and_the_layer(ends):
    receiver, sender = ends
    grant = receiver.open(writer=sender.incarnation, request=9, blocks=[1], tokens=4)
    with pytest.raises(TransferError) as error:
        receiver.wait_layer(grant, 1, timeout=0)
    assert (error.value.kind, error.value.key, error.value.layer) == ("timeout", grant.key, 1)
    with pytest.raises(TransferError) as error:
        receiver.wait_layer(grant, 2, timeout=0)
    assert error.value.kind == "no-such-layer"
    with pytest.raises(TransferError) as error:
        receiver.release(grant)
    assert error.value.kind == "not-fenced"
    with pytest.raises(TransferError) as error:
        receiver.landed(TransferKey(9, 0, 77))
    assert error.value.kind == "unknown"
    with pytest.raises(ConfigError, match="timeout_s"):
        receiver.wait_layer(grant, 0, timeout=-1)
    with pytest.raises(ConfigError, match="tokens"):
        receiver.open(writer=1, request=1, blocks=[1])


def test_ranges_outside_the_grant_or_the_pool_are_refused_and_nothing_is_written(ends):
    receiver, sender = ends
    grant = receiver.open(writer=sender.incarnation, request=1, blocks=[1], tokens=4)
    transfer = sender.begin(grant, table=[2], tokens=4)
    for row, kind in [([2, 0, 2, 0, 16], "refused"), ([8, 0, 1, 0, 16], "outside-source"), ([2, 0, 1, 0, 0], None)]:
        with pytest.raises(TransferError) as error:
            sender.put(transfer, 0, np.array([row], dtype=np.uint32))
        assert kind in (None, error.value.kind)
    with pytest.raises(TransferError) as error:
        sender.publish(transfer, 0, 4)
    assert error.value.kind == "incomplete"
    for bad in (np.zeros((1, 4), np.uint32), np.zeros((1, 5), np.int64), [[1, 2, 3, 4, 5]]):
        with pytest.raises(ConfigError, match="5 columns"):
            sender.put(transfer, 0, bad)
    assert not receiver.pool.native.array().any()


def test_closing_twice_is_fine_and_what_is_closed_says_so(ends):
    receiver, sender = ends
    grant = receiver.open(writer=sender.incarnation, request=1, blocks=[1], tokens=4)
    for end in (sender, receiver, sender, receiver):
        end.close()
    for call in (
        lambda: receiver.open(writer=1, request=1, blocks=[1], tokens=4),
        lambda: sender.begin(grant, table=[1], tokens=4),
        lambda: sender.poll(),
    ):
        with pytest.raises(TransferError) as error:
            call()
        assert error.value.kind == "closed"


def threads_here():
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_receiver_and_a_sender_that_are_just_dropped_leave_no_thread():
    before = threads_here()
    for _ in range(5):
        receiver = Receiver(KvPool(SMALL, 4), model="m")
        sender = connect(KvPool(SMALL, 4), receiver.endpoint, model="m")
        assert sender.peer == "connected"
        del receiver, sender
        gc.collect()
    assert threads_here() <= before


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_what_does_not_fit_is_refused_with_its_field(backend):
    with Receiver(KvPool(SMALL, 4), model="m") as receiver:
        with pytest.raises(HandshakeError, match="model") as error:
            connect(KvPool(SMALL, 4), receiver.endpoint, model="other", backend=backend)
        assert error.value.kind == "refused"
        other = KvLayout(layers=2, heads=2, head_dim=4, block_tokens=4, dtype="f16")
        with pytest.raises(HandshakeError, match="dtype"):
            connect(KvPool(other, 4), receiver.endpoint, model="m", backend=backend)
        with pytest.raises(HandshakeError) as error:
            connect(KvPool(SMALL, 4), {**receiver.endpoint, "host": "elsewhere"}, model="m", backend="shm")
        assert error.value.kind == "no-backend"
        with pytest.raises(ConfigError, match="endpoint"):
            connect(KvPool(SMALL, 4), {"backends": []}, model="m")
        with pytest.raises(ConfigError, match="backend"):
            connect(KvPool(SMALL, 4), receiver.endpoint, model="m", backend="udp")


def test_many_threads_send_and_wait_at_once():
    layout, rounds = KvLayout(layers=4, heads=1, head_dim=8, block_tokens=4), 20
    here, there = KvPool(layout, 16), KvPool(layout, 16)
    here.numpy()[...] = np.arange(16).reshape(1, 16, 1, 1, 1, 1)
    faults = []

    def work(number):
        try:
            for _ in range(rounds):
                grant = receiver.open(writer=sender.incarnation, request=number, blocks=[number], tokens=4)
                transfer = sender.begin(grant, table=[15 - number], tokens=4)
                for layer in range(4):
                    sender.put_layer(transfer, layer)
                for layer in range(4):
                    receiver.wait_layer(grant, layer, timeout=20)
                assert (there.numpy()[:, number] == 15 - number).all()
                receiver.release(grant)
        except Exception as error:
            faults.append(error)

    with Receiver(there, model="m") as receiver, connect(here, receiver.endpoint, model="m") as sender:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert faults == []
        assert receiver.in_use == 0
        assert len(sender.poll()) == 4 * rounds
