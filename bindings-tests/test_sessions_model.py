"""One `Cluster` and four `Machine`s in Python, driven by events alone, while sessions, machines and Clusters fail.

The rules are what can happen; afterwards everything heals, and each request must have ended once, with its tokens.
"""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sessions import ROLES, World

HOST = st.integers(0, len(ROLES) - 1)
ARRIVE = st.sampled_from([0, 0, 1, 2, 5])
PAIR = st.sampled_from([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])


class Sessions(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World()
        self.requests = 0
        self.restarts = 0

    @initialize()
    def begin(self):
        self.world.heal()

    @rule(
        prompts=st.lists(st.sampled_from([1, 20, 100, 170, 200]), min_size=1, max_size=6),
        outputs=st.sampled_from([1, 2, 3, 6, 30]),
        spare=st.sampled_from([0, 20]),
    )
    def arrive(self, prompts, outputs, spare):
        for prompt in prompts:
            self.world.arrive(self.requests, prompt, outputs, spare)
            self.requests += 1

    @rule(picks=st.lists(st.integers(0, 79), min_size=10, max_size=60))
    def go_on(self, picks):
        """Messages, halves of transfers and passes, in any order; machines that can come back do so at times."""
        for pick in picks:
            steps = self.world.steps()
            if pick % 10 == 9:
                self.world.register(pick // 10 % len(ROLES))
            elif steps:
                self.world.step(*steps[pick % len(steps)])

    @rule(pick=st.integers(0, 20))
    @precondition(lambda self: self.world.transfers)
    def fail_transfer(self, pick):
        places = list(self.world.transfers)
        self.world.move(places[pick % len(places)], fails=True)

    @rule(index=HOST, arrive=ARRIVE)
    def break_session(self, index, arrive):
        self.world.break_session(index, arrive)

    @rule(pair=PAIR, arrive=ARRIVE)
    def reset_peers(self, pair, arrive):
        self.world.reset_peers(pair, arrive)

    @rule(picks=st.lists(st.integers(0, 79), min_size=10, max_size=60))
    def arrive_and_go_on(self, picks):
        """As most of the time: requests come while others run."""
        self.arrive([100, 20, 170], 1 + picks[0] % 4, 20)
        self.go_on(picks)

    @rule(index=HOST, arrive=ARRIVE, back=st.booleans())
    def die(self, index, arrive, back):
        if self.world.hosts[index].machine is not None:
            self.world.die(index, arrive)
        if back:
            self.world.come_back(index)

    @rule(index=HOST)
    def come_back(self, index):
        self.world.come_back(index)

    @rule(arrive=ARRIVE)
    @precondition(lambda self: self.restarts < 2)
    def restart_cluster(self, arrive):
        self.restarts += 1
        self.world.restart_cluster(arrive)

    @rule(pick=st.integers(0, 60))
    def cancel(self, pick):
        live = [request for request, client in self.world.clients.items() if client.outcome is None]
        if live:
            self.world.cancel(live[pick % len(live)])

    @rule()
    def drain(self):
        """Of the one machine that the others can do without."""
        self.world.tell_cluster({"type": "drain", "machine": self.world.hosts[3].me})

    @rule(by_ns=st.sampled_from([0, 10**6, 2 * 10**8, 9 * 10**8, 2 * 10**9]))
    def advance(self, by_ns):
        self.world.advance(by_ns)

    @invariant()
    def check(self):
        self.world.check()

    def teardown(self):
        self.world.die(3, 0)
        self.world.heal()
        self.check()
        self.world.check_end(self.restarts > 0)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=settings.default.max_examples * 5 // 2,
    stateful_step_count=50,
    phases=set(Phase) - {Phase.explain},
    report_multiple_bugs=False,
)
