"""`Cluster` beside a plain model of the splitwise policy that scans every machine and every request."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import splitcore

PENDING_MAX, FILL_PERMILLE, ATTEMPTS_MAX, REQUESTS_MAX = 8192, 950, 3, 25
POOLS = ("prompt", "token", "mixed")
RARELY = st.sampled_from([False] * 9 + [True])


@dataclass
class Leg:
    machine: int
    prefill: int
    prefills: bool
    decodes: bool
    kv: int


@dataclass
class Request:
    order: int
    prompt: int
    cap: int
    priority: int
    group: int
    resumable: bool
    pin: int | None
    attempt: int = 1
    faults: int = 0
    delivered: int = 0
    parked: bool = False
    legs: list[Leg | None] = field(default_factory=list)

    def live(self):
        return [leg for leg in self.legs if leg is not None]


@dataclass
class Member:
    home: str
    pool: str
    capacity: int
    rank: int
    incarnation: int
    state: str = "up"


class Model:
    """Dicts, and sums over them; no book is kept."""

    def __init__(self):
        self.machines = []
        self.requests = {}
        self.ranks = 0
        self.arrivals = 0

    def rank(self):
        self.ranks += 1
        return self.ranks

    # What is booked.

    def legs_on(self, machine):
        return [leg for each in self.requests.values() for leg in each.live() if leg.machine == machine]

    def booked(self, machine):
        return sum(leg.prefill + leg.decodes for leg in self.legs_on(machine))

    def kv(self, machine):
        return sum(leg.kv for leg in self.legs_on(machine))

    def load(self, machine, side):
        return self.booked(machine) if side == "prompt" else self.kv(machine)

    # The policy.

    def up(self, pool=None):
        return [
            index
            for index, each in enumerate(self.machines)
            if each.state == "up" and (pool is None or each.pool == pool)
        ]

    def least(self, pool, side, suits):
        suitable = [at for at in self.up(pool) if suits(at)]
        return min(suitable, key=lambda at: (self.load(at, side), self.machines[at].rank), default=None)

    def fits(self, machine, total):
        return total <= self.machines[machine].capacity

    def over(self, machine, side, prompt, total):
        if side == "prompt":
            load = self.booked(machine)
            over = load > 0 and load + prompt > PENDING_MAX
        else:
            over = (self.kv(machine) + prompt + 1) * 1000 > FILL_PERMILLE * self.machines[machine].capacity
        return over or not self.fits(machine, total)

    def seek(self, side, prompt, total):
        other = "token" if side == "prompt" else "prompt"
        for pool, step in ((side, "own"), ("mixed", "mixed")):
            machine = self.least(pool, side, lambda at: not self.over(at, side, prompt, total))
            if machine is not None:
                return machine, step
        machine = self.least(other, side, lambda at: self.fits(at, total))
        return None if machine is None else (machine, "opposite")

    def pick(self, request):
        prompt, total = request.prompt + request.delivered, request.prompt + request.cap
        pin = request.pin
        if pin is not None and not (self.machines[pin].state == "up" and self.fits(pin, total)):
            pin = None
        first = self.seek("prompt", prompt, total)
        second = (pin, "pinned") if pin is not None else self.seek("token", prompt, total)
        if first and second:
            return (first, first) if request.cap == 1 and pin is None else (first, second)
        fitting = [at for at in self.up() if self.fits(at, total)]
        if not fitting:
            return None
        least = min(fitting, key=lambda at: (self.booked(at), self.machines[at].rank)), "least-of-all"
        return least, (pin, "pinned") if pin is not None else least

    # What follows from a choice and from facts.

    def place(self, request, choice):
        (first, first_step), (second, second_step) = choice
        pool = self.machines[first].pool
        others = [at for at in self.up(pool) if at != first]
        runner_up = min(others, key=lambda at: (self.booked(at), self.machines[at].rank), default=None)
        why = (first_step, second_step, self.booked(first), self.kv(second), runner_up)
        for machine, step in choice:
            member = self.machines[machine]
            if step == "opposite" and member.pool != "mixed":
                member.pool, member.rank = "mixed", self.rank()
        prompt = request.prompt + request.delivered
        if first == second:
            request.legs = [Leg(first, prompt, True, True, prompt + 1), None]
        else:
            request.legs = [
                Leg(first, prompt, True, False, prompt + 1),
                Leg(second, 0, False, True, prompt + 1),
            ]
        request.parked = False
        return first, second, request.attempt, why

    def go_home(self, machine):
        member = self.machines[machine]
        if member.pool == member.home or member.state != "up":
            return
        opposite = {"prompt": "decodes", "token": "prefills"}.get(member.home)
        if opposite is None or not any(getattr(leg, opposite) for leg in self.legs_on(machine)):
            member.pool, member.rank = member.home, self.rank()

    def leave(self, request, at):
        leg, request.legs[at] = request.legs[at], None
        if leg is not None:
            self.go_home(leg.machine)

    def end(self, request_id):
        request = self.requests[request_id]
        for at in range(len(request.legs)):
            self.leave(request, at)
        del self.requests[request_id]

    def admit(self, request):
        total = request.prompt + request.cap
        if len(self.requests) >= REQUESTS_MAX:
            return "requests_max"
        largest = max((self.machines[at].capacity for at in self.up()), default=0)
        if largest == 0:
            return self.nowhere_now(request)
        if total > largest:
            return "too_large"
        if request.pin is not None:
            if self.machines[request.pin].state != "up":
                return "pin_unavailable"
            if total > self.machines[request.pin].capacity:
                return "too_large"
        return None

    def nowhere_now(self, request):
        waits = any(each.parked and each.group == request.group for each in self.requests.values())
        return "overloaded" if waits else "no_machine"

    def retry(self):
        """The placements of parked requests, in line; one that finds none keeps nobody waiting."""
        placed = []
        waiting = [(-each.priority, each.order, id_) for id_, each in self.requests.items() if each.parked]
        for _, _, id_ in sorted(waiting):
            choice = self.pick(self.requests[id_])
            if choice is not None:
                placed.append((id_, self.place(self.requests[id_], choice)))
        return placed

    def lose(self, machine):
        lost = []
        for id_, request in self.requests.items():
            hit = [leg for leg in request.live() if leg.machine == machine]
            if hit:
                request.legs = [None if leg in hit else leg for leg in request.legs]
                lost.append((request.order, id_))
        self.machines[machine].state = "lost"
        placed, parked, failed = [], [], []
        for _, id_ in sorted(lost):
            request = self.requests[id_]
            for at in range(len(request.legs)):
                self.leave(request, at)
            request.faults += 1
            if request.delivered >= request.cap:
                del self.requests[id_]
                continue
            if not request.resumable or request.faults >= ATTEMPTS_MAX:
                del self.requests[id_]
                failed.append(id_)
                continue
            request.attempt += 1
            choice = self.pick(request)
            if choice is None:
                request.parked = True
                parked.append(id_)
            else:
                placed.append((id_, self.place(request, choice)))
        placed += self.retry()
        parked = [id_ for id_ in parked if self.requests[id_].parked]
        return placed, parked, failed


class ClusterBesideModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.clock_ns = 0
        self.native = splitcore.Cluster(
            requests_max=REQUESTS_MAX, attempts_max=ATTEMPTS_MAX, prompt_pending_tokens_max=PENDING_MAX
        )
        self.model = Model()
        self.names = []
        self.owed = []
        self.next_id = 0

    def told(self, placed):
        """A placement in the model's words."""
        index = self.names.index
        why = placed.why
        runner_up = None if why.runner_up is None else index(why.runner_up)
        return (
            index(placed.prompt),
            index(placed.token),
            placed.attempt,
            (why.prompt_step, why.token_step, why.prompt_load, why.token_load, runner_up),
        )

    def some_id(self, at):
        """Mostly a live id, at times one that is over."""
        live = list(self.model.requests)
        return live[at % len(live)] if live and at < 95 else at

    @initialize(roles=st.lists(st.sampled_from(POOLS), min_size=1, max_size=4))
    def begin(self, roles):
        for role in roles:
            self.join(role, 1000)

    @rule(role=st.sampled_from(POOLS), blocks=st.sampled_from([200, 700, 1000]))
    @precondition(lambda self: len(self.names) < 6)
    def join(self, role, blocks):
        name = f"m{len(self.names)}"
        self.names.append(name)
        assert self.native.add_machine(name, role=role, kv_blocks=blocks, now_ns=0) == len(self.names) - 1
        self.model.machines.append(Member(role, role, 16 * blocks, self.model.rank(), 1))
        self.owed += self.model.retry()

    @rule(at=st.integers(0, 7), role=st.sampled_from(POOLS))
    def join_again(self, at, role):
        lost = [index for index, each in enumerate(self.model.machines) if each.state == "lost"]
        if lost:
            index = lost[at % len(lost)]
            incarnation = self.model.machines[index].incarnation + 1
            assert self.native.add_machine(self.names[index], role=role, kv_blocks=1000, now_ns=0) == index
            self.model.machines[index] = Member(role, role, 16_000, self.model.rank(), incarnation)
            self.owed += self.model.retry()

    @rule(
        prompt=st.sampled_from([1, 40, 700, 3000, 5192, 5193, 9000, 12_199, 15_000]),
        cap=st.sampled_from([1, 100, 1500]),
        priority=st.integers(0, 1),
        group=st.integers(0, 1),
        resumable=st.booleans(),
        pin=st.sampled_from([None, None, None, 0, 1, 5]),
        dry=st.booleans(),
        count=st.integers(1, 6),
    )
    def arrive(self, prompt, cap, priority, group, resumable, pin, dry, count):
        for _ in range(count):
            self.arrive_once(prompt, cap, priority, group, resumable, pin, dry)

    def arrive_once(self, prompt, cap, priority, group, resumable, pin, dry):
        model = self.model
        pin = None if pin is None or pin >= len(self.names) or model.machines[pin].state == "lost" else pin
        request = Request(model.arrivals, prompt, cap, priority, group, resumable, pin)
        options = {
            "priority": priority,
            "slo_class": group,
            "resumable": resumable,
            "pin_token": None if pin is None else self.names[pin],
            "now_ns": 0,
        }
        reason = model.admit(request)
        choice = None if reason else model.pick(request)
        if choice is None:
            expected = ("rejected", reason or model.nowhere_now(request))
        else:
            # Places in the model; a pool move is part of it, so the dry run goes first.
            dried = self.told(self.native.place(self.next_id, prompt, cap, dry_run=True, **options)) if dry else None
            model.requests[self.next_id] = request
            model.arrivals += 1
            expected = model.place(request, choice)
            assert dried in (None, expected)
        try:
            answer = self.told(self.native.place(self.next_id, prompt, cap, **options))
        except splitcore.RejectedError as error:
            answer = ("rejected", error.reason)
        assert answer == expected
        self.next_id += 1

    @rule(at=st.integers(0, 99), old=RARELY)
    @precondition(lambda self: self.model.requests)
    def prefill_done(self, at, old):
        id_, request, attempt = self.named(at, old)
        legs = [leg for leg in request.live() if leg.prefill] if request else []
        assert self.native.prefill_done(id_, attempt=attempt, now_ns=0) is bool(legs)
        if legs:
            turned = legs[0].prefills
            legs[0].prefill, legs[0].prefills = 0, False
            if turned:
                self.model.go_home(legs[0].machine)

    @rule(at=st.integers(0, 99), old=RARELY, more=st.integers(0, 400))
    @precondition(lambda self: self.model.requests)
    def progress(self, at, old, more):
        id_, request, attempt = self.named(at, old)
        live = self.model.requests.get(id_)
        tokens = (live.delivered if live else 0) + more
        assert self.native.progress(id_, tokens, attempt=attempt, now_ns=0) is (request is not None)
        if request:
            request.delivered += more
            if len(request.live()) == 2:
                self.model.leave(request, 0)
            for leg in request.live():
                if more > 0 and leg.decodes:
                    turned, leg.prefill, leg.prefills = leg.prefills, 0, False
                    if turned:
                        self.model.go_home(leg.machine)
                leg.kv += more * leg.decodes

    @rule(at=st.integers(0, 99), old=RARELY)
    @precondition(lambda self: self.model.requests)
    def source_released(self, at, old):
        id_, request, attempt = self.named(at, old)
        applies = request is not None and len(request.live()) == 2
        assert self.native.source_released(id_, attempt=attempt, now_ns=0) is applies
        if applies:
            self.model.leave(request, 0)
        self.owed += self.model.retry()

    @rule(at=st.integers(0, 99), old=RARELY)
    @precondition(lambda self: self.model.requests)
    def finish(self, at, old):
        id_, request, attempt = self.named(at, old)
        assert self.native.finish(id_, attempt=attempt, now_ns=0) is (request is not None)
        if request:
            self.model.end(id_)

    @rule(at=st.integers(0, 99), old=RARELY)
    @precondition(lambda self: self.model.requests)
    def cancel(self, at, old):
        id_, request, attempt = self.named(at, old)
        assert self.native.cancel(id_, attempt=attempt, now_ns=0) is (request is not None)
        if request:
            self.model.end(id_)
            self.owed += self.model.retry()

    def named(self, at, old):
        """An id, its request if the call will apply, and the attempt to name."""
        id_ = self.some_id(at)
        request = self.model.requests.get(id_)
        if old:
            return id_, None, (request.attempt if request else 1) + 1
        return id_, request, None

    @rule(first=st.integers(0, 5), every=RARELY)
    def lose(self, first, every):
        for at in range(len(self.names)) if every else [first]:
            self.lose_one(at)

    def lose_one(self, at):
        if at < len(self.names) and self.model.machines[at].state != "lost":
            placed, parked, failed = self.model.lose(at)
            # Each loss at a time of its own: machines that die at the same instant cost one fault.
            self.clock_ns += 1
            recovery = self.native.lose_machine(self.names[at], now_ns=self.clock_ns)
            assert recovery.placed == [id_ for id_, _ in placed]
            assert (recovery.parked, recovery.failed) == (parked, failed)
            self.owed += placed

    @rule(at=st.integers(0, 20))
    def drain(self, at):
        if at < len(self.names) and self.model.machines[at].state != "lost":
            self.native.drain_machine(self.names[at], now_ns=0)
            self.model.machines[at].state = "draining"

    @rule()
    def poll(self):
        live = self.model.requests
        # Only what still holds: neither ended nor placed again nor parked since.
        expected = [
            (id_, told)
            for id_, told in self.owed
            if id_ in live and live[id_].attempt == told[2] and not live[id_].parked
        ]
        polled = self.native.poll(now_ns=0)
        assert [(placed.request_id, self.told(placed)) for placed in polled.placements] == expected
        assert polled.expired == []
        self.owed = []

    @rule()
    def restore(self):
        other = splitcore.Cluster()
        other.restore(self.native.snapshot())
        self.native = other

    @invariant()
    def books_agree(self):
        self.native.check()
        model = self.model
        states = ("up", "draining", "lost")
        rows = [
            (
                each.incarnation,
                POOLS.index(each.home),
                states.index(each.state),
                len(model.legs_on(at)),
                model.booked(at),
                model.kv(at),
            )
            for at, each in enumerate(model.machines)
        ]
        loads = self.native.loads()
        columns = ["incarnation", "role", "state", "requests", "booked_load", "kv_tokens"]
        assert loads[columns].tolist() == rows
        # The pool of a machine that is not up says nothing.
        up = model.up()
        assert loads["pool"][up].tolist() == [POOLS.index(model.machines[at].pool) for at in up]


TestClusterBesideModel = ClusterBesideModel.TestCase
TestClusterBesideModel.settings = settings(max_examples=settings.default.max_examples * 3 // 2, stateful_step_count=40)
