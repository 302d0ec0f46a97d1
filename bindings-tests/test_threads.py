"""Many threads on one object, and what long calls let others do."""

import _thread
import signal
import threading
import time
from collections import deque

import numpy as np
import pytest

import splitcore
from splitcore import Cluster

RUN = {"prompt": "15xdgx-h100", "token": "15xdgx-h100", "rate": 40.0, "duration_s": 300.0}


def all_at_once(count, work):
    """Runs `work(index)` in threads that start together; their errors are the test's."""
    together = threading.Barrier(count)
    errors = []

    def run(index):
        together.wait()
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_eight_threads_hammer_one_cluster():
    made = Cluster(lease_s=3600.0)
    for index in range(6):
        made.add_machine(f"m{index}", role=("prompt", "token", "mixed")[index % 3], kv_blocks=100_000)
    each, threads = 300, 8

    def hammer(thread):
        for at in range(each):
            request = thread * each + at
            made.place(request, 100 + at, 50)
            assert made.prefill_done(request)
            assert made.progress(request, 1)
            if at % 3 == 0:
                assert made.renew([request]) == 1
                assert made.cancel(request)
            else:
                assert made.finish(request)
            assert not made.finish(request)
            if at % 50 == thread:
                name = f"own-{thread}-{at}"
                made.add_machine(name, role="mixed", kv_blocks=100)
                made.drain_machine(name)
                made.lose_machine(name)
                made.poll()
            if at % 40 == 0:
                made.check()
                made.snapshot()
                assert len(made.loads()) >= 6
                key = {"request": request, "attempt": 1}
                event = {"type": "fact", "notice": {"type": "sent", "key": key}}
                assert made.handle([event, {"type": "tick"}]).late == 1

    all_at_once(threads, hammer)
    made.check()
    counters = made.counters()
    assert counters["cancelled"] + counters["finished"] == each * threads
    assert counters["failed"] == 0
    loads = made.loads()
    assert loads["booked_load"].sum() == loads["kv_tokens"].sum() == loads["requests"].sum() == 0


def test_batches_from_many_threads_do_not_mix_up_their_rows():
    made = Cluster(prompt_pending_tokens_max=10**9)
    for index in range(4):
        made.add_machine(f"p{index}", role="prompt", kv_blocks=10**8)
        made.add_machine(f"t{index}", role="token", kv_blocks=10**8)
    placed = [None] * 4

    def batch(thread):
        ids = np.arange(5000) + 5000 * thread
        placed[thread] = made.place_many(ids, np.full(5000, 10))

    all_at_once(4, batch)
    made.check()
    rows = np.concatenate([each.prompt for each in placed])
    assert np.bincount(rows)[::2].tolist() == [5000] * 4


def ticks_during(call):
    """Times at which another Python thread ran, and the start and end of `call`."""
    stop, started = threading.Event(), threading.Event()
    ticks = deque(maxlen=10**6)

    def count():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            started.set()

    counter = threading.Thread(target=count)
    counter.start()
    started.wait()
    begin = time.perf_counter()
    try:
        call()
    finally:
        end = time.perf_counter()
        stop.set()
        counter.join()
    return list(ticks), begin, end


def place_a_large_batch():
    made = Cluster(prompt_pending_tokens_max=10**9)
    for index in range(2):
        made.add_machine(f"m{index}", role=("prompt", "token")[index], kv_blocks=2**32 - 1)
    ids, prompts = np.arange(400_000, dtype=np.uint64), np.full(400_000, 10, np.uint32)
    return lambda: made.place_many(ids, prompts)


def run_a_simulation():
    return lambda: splitcore.simulate(**RUN)


@pytest.mark.parametrize("prepare", [place_a_large_batch, run_a_simulation])
def test_other_threads_run_during_a_long_call(prepare):
    ticks, begin, end = ticks_during(prepare())
    # Not at its edges, where a switch of threads can fall between two lines of this test.
    quarter = (end - begin) / 4
    assert any(begin + quarter < tick < end - quarter for tick in ticks)


def test_progress_of_a_run_is_told_and_can_stop_it():
    told = []
    splitcore.simulate(**RUN, progress=lambda ended, total: told.append((ended, total)))
    assert len(told) > 1
    assert told == sorted(told)
    assert {total for _, total in told} == {told[0][1]}

    def stop(*_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        splitcore.simulate(**RUN, progress=stop)


def test_an_interrupt_ends_a_run():
    calls = []

    def interrupt(*done):
        calls.append(done)
        _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        splitcore.simulate(**RUN, progress=interrupt)
    assert len(calls) == 1


# Ctrl-C within one call: an argument tells when the call has begun, and runs no more of Python afterwards.


def interrupted(call):
    """Runs `call(begun)`, which is interrupted once it has made `begun` true; then `begun` has two items."""
    begun = []

    def interrupt():
        while not begun:
            pass
        _thread.interrupt_main()
        begun.append(True)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(splitcore.CallInterrupted) as caught:
        call(begun)
    watcher.join()
    return caught.value


class Ids:
    """Numbers that tell when they are read."""

    def __init__(self, count, begun):
        self.ids, self.begun = np.arange(count), begun

    def __array__(self, dtype=None, copy=None):
        self.begun.append(True)
        return self.ids


def boundless():
    made = splitcore.Cluster(requests_max=2**32 - 1)
    made.add_machine("m", role="mixed", kv_blocks=2**31)
    return made


def test_ctrl_c_ends_place_many_between_two_requests_and_tells_what_was_placed():
    count, made, other = 3_000_000, boundless(), boundless()
    ones = np.ones(count, np.uint32)
    stopped = interrupted(lambda begun: made.place_many(Ids(count, begun), ones, now_ns=0))
    done = stopped.done
    assert done < count
    assert len(stopped.result.attempt) == done == made.counters()["placed"]
    assert f"{done} of {count} requests are placed or rejected" in str(stopped)
    assert (stopped.result.attempt == 1).all()
    rest = other.place_many(np.arange(done), ones[:done], now_ns=0)
    assert (rest.prompt == stopped.result.prompt).all()
    assert made.place_many([count], [1]).attempt.tolist() == [1], "it goes on"
    made.check()


ARRIVE = {"type": "arrive", "prompt_tokens": 1, "max_new_tokens": 1}


@pytest.mark.parametrize("begins", [0, 30_000], ids=["while it reads", "when it has read"])
def test_ctrl_c_ends_handle_between_two_events_and_tells_what_was_applied(begins):
    made, count = boundless(), 30_000

    def events(begun):
        for request in range(count):
            if request == begins:
                begun.append(True)
                while len(begun) < 2:
                    pass
            yield ARRIVE | {"request": request}
        begun.append(True)

    stopped = interrupted(lambda begun: made.handle(events(begun), now_ns=0))
    placed = [action for action in stopped.result.actions if action["type"] == "placed"]
    assert stopped.done == len(placed) == made.counters()["placed"]
    assert stopped.done == 0 or begins == count, "what is not read whole is not applied"
    made.check()


def test_another_error_of_a_signal_stays_what_it_is_and_carries_what_was_done():
    class EnoughError(Exception):
        pass

    def enough(*_):
        raise EnoughError

    made = boundless()
    before = signal.signal(signal.SIGALRM, enough)
    ids, ones = np.arange(3_000_000), np.ones(3_000_000, np.uint32)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(EnoughError) as caught:
            made.place_many(ids, ones, now_ns=0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(caught.value.result.attempt) == caught.value.done == made.counters()["placed"]


def test_handle_lets_other_threads_run():
    made = boundless()
    events = [ARRIVE | {"request": request} for request in range(20_000)]
    ticks, done = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not done.is_set():
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    before = ticks
    made.handle(events, now_ns=0)
    during = ticks - before
    done.set()
    ticker.join()
    # Each of the breaths that the call takes lets the other thread have a turn of its own.
    assert during > 20
