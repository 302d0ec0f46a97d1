"""A managed `Cluster` and some `Machine`s wired by dict events: sessions that break, engines, transfers, a gateway.

Everything that a driver has to do is here, and nothing happens by itself: a test says what comes next.
"""

from collections import deque
from dataclasses import dataclass, field

import splitcore

ROLES = ("prompt", "token", "token", "mixed")
BLOCKS, BLOCK_TOKENS = 24, 16
GRACE_S = 4.0


def leg_key(request, attempt=1):
    return {"request": request, "attempt": attempt}


def flat(key):
    return key["request"], key["attempt"]


@dataclass
class Client:
    """One request as its client sees it."""

    prompt: int
    outputs: int
    """Tokens that the engine makes of it."""
    tokens: list = field(default_factory=list)
    outcome: str | None = None


@dataclass
class Transfer:
    to: dict
    after_pass: int
    """Its last layer is made by this pass of its source."""
    layers: int = 0
    stopped: bool = False


class Host:
    """One incarnation of a machine with its engine; `machine` is None once it is dead."""

    def __init__(self, index, incarnation):
        self.me = {"index": index, "incarnation": incarnation}
        self.role = ROLES[index]
        self.machine = splitcore.Machine(
            kv_blocks=BLOCKS,
            block_tokens=BLOCK_TOKENS,
            machine=index,
            incarnation=incarnation,
            quarantine_limit=0.5,
            transfer_limit_s=3.0,
            park_limit_s=2.0,
        )
        self.is_open = False
        """Whether what either side says now gets into the session."""
        self.passes_done = 0
        self.made = {}
        """Index of the last output token of each leg that was ever here."""
        self.resumed = {}
        """Tokens that came with its prompt."""
        self.follows = set()
        """Legs whose first token comes with their KV."""
        self.unsaid = set()
        """Legs of which this session has had no token yet: all come that may be missing, before the next one."""

    def registration(self):
        join = {
            "machine": self.me,
            "role": self.role,
            "kv_capacity_tokens": BLOCKS * BLOCK_TOKENS,
            "speed_weight": 1,
            "link": None,
        }
        held = self.machine
        return {"type": "register", "join": join, "epoch": held.epoch, "report": held.report(), "claims": held.claims()}


class World:
    def __init__(self):
        self.now_ns = 0
        self.clients = {}
        self.ends = set()
        """Of which Cluster each request has ended how often: once."""
        self.epoch = 0
        self.hosts = [Host(index, 1) for index in range(len(ROLES))]
        self.to_machine = [deque() for _ in ROLES]
        self.to_cluster = [deque() for _ in ROLES]
        self.peers = {(a, b): deque() for a in range(len(ROLES)) for b in range(len(ROLES)) if a != b}
        self.transfers = {}
        self.start_cluster(grace_s=0.0)
        for index in range(len(ROLES)):
            self.register(index)

    # The Cluster and the gateway beside it.

    def start_cluster(self, grace_s):
        self.epoch += 1
        self.awaits_grace = grace_s > 0
        self.cluster = splitcore.Cluster(
            level="managed",
            epoch=self.epoch,
            grace_s=grace_s,
            rejoin_limit_s=1.0,
            park_limit_s=2.0,
            retry_interval_s=0.1,
            attempts_max=1000,
        )

    def tell_cluster(self, *events):
        handled = self.cluster.handle(list(events), now_ns=self.now_ns)
        self.carry_out(handled.actions)
        self.reattach()
        return [error for _, error in handled.errors]

    def carry_out(self, actions):
        for action in actions:
            match action["type"]:
                case "command":
                    command = {name: action[name] for name in ("type", "seq", "command")}
                    self.send_machine(action["to"], {**command, "epoch": self.epoch})
                case "registered":
                    self.send_machine(action["to"], {"type": "registered", "epoch": action["epoch"]})
                case "rejected":
                    del self.clients[action["request"]]
                case "ended":
                    self.end(action["request"], action["outcome"])

    def send_machine(self, to, event):
        host = self.hosts[to["index"]]
        if host.is_open and host.me == to:
            self.to_machine[to["index"]].append(event)

    def end(self, request, outcome):
        assert (self.epoch, request) not in self.ends, "a request ends once"
        self.ends.add((self.epoch, request))
        client = self.clients[request]
        if client.outcome is None:
            assert outcome == "finished"
            assert len(client.tokens) == client.outputs, (
                f"all its tokens are there when {request} has finished: {client}"
            )
            client.outcome = outcome

    def reattach(self):
        """After a restart, once it is known what the machines had: the rest went with the Cluster."""
        if not self.awaits_grace or self.cluster.is_recovering:
            return
        self.awaits_grace = False
        for request, client in self.clients.items():
            if client.outcome is not None:
                self.cluster.cancel(request, now_ns=self.now_ns)
            elif not self.cluster.progress(request, len(client.tokens), now_ns=self.now_ns):
                client.outcome = "lost"
        self.tell_cluster()

    def give(self, request, token):
        """A token that the gateway has: to the client in order, once each, none after the last."""
        client = self.clients.get(request)
        if client is None or client.outcome is not None:
            return
        if token == len(client.tokens) + 1 <= client.outputs:
            client.tokens.append(token)
            self.cluster.progress(request, token, now_ns=self.now_ns)

    def arrive(self, request, prompt, outputs, spare):
        self.clients[request] = Client(prompt, outputs)
        arrival = {"request": request, "prompt_tokens": prompt, "max_new_tokens": outputs + spare}
        assert self.tell_cluster({"type": "arrive", **arrival}) == []

    def cancel(self, request):
        self.clients[request].outcome = "cancelled"
        self.tell_cluster({"type": "cancel", "request": request})

    # Machines.

    def tell_machine(self, index, *events):
        host = self.hosts[index]
        for event in events:
            if event["type"] == "command":
                self.learn(host, event["command"])
        handled = host.machine.handle(list(events), now_ns=self.now_ns)
        assert handled.errors == []
        for action in handled.actions:
            match action["type"]:
                case "notify":
                    self.send_cluster(index, {"type": "notice", "from": host.me, "notice": action["notice"]})
                case "peer":
                    self.send_peer(index, action["to"], action["message"])
                case "run":
                    for put in host.machine.plan()["puts"]:
                        self.begin(index, put, action["pass"])
                case "put":
                    self.begin(index, action, 0)
                case "stop_put":
                    place = (index, flat(action["key"]))
                    self.transfers.setdefault(place, Transfer(host.me, 0)).stopped = True
                case "resend":
                    self.say(index, flat(action["key"]), after=action["delivered"])

    def learn(self, host, command):
        if command["type"] in ("compute", "reserve"):
            key, work = flat(command["key"]), command["work"]
            host.made[key] = host.resumed[key] = work["terms"]["resumed_tokens"]
            if work["start"] == work["prompt_tokens"]:
                host.follows.add(key)

    def sample(self, index, key):
        """A leg has one more token, which goes to the gateway. Returns whether it is the last."""
        host = self.hosts[index]
        host.made[key] += 1
        self.say(index, key, after=host.resumed[key] if key in host.unsaid else host.made[key] - 1)
        return host.made[key] >= self.clients[key[0]].outputs

    def say(self, index, key, after):
        host = self.hosts[index]
        if host.is_open:
            host.unsaid.discard(key)
        for token in range(after + 1, host.made[key] + 1):
            self.send_cluster(index, {"type": "token", "request": key[0], "token": token})

    def send_cluster(self, index, event):
        if self.hosts[index].is_open:
            self.to_cluster[index].append(event)

    def send_peer(self, index, to, message):
        if self.hosts[to["index"]].machine is not None and self.hosts[to["index"]].me == to:
            peer = {"type": "peer", "from": self.hosts[index].me, "message": message}
            self.peers[index, to["index"]].append(peer)
        else:
            # One that died before this one began: there is nobody to have told of it but the connection.
            self.tell_machine(index, {"type": "peer_lost", "machine": to})

    def run_pass(self, index):
        """The engine ends the running pass; its tokens go ahead of what the machine says of it."""
        host = self.hosts[index]
        if host.machine is None or not host.machine.loads()["running"]:
            return False
        plan = host.machine.plan()
        sampled = [each["key"] for each in plan["prefills"] if each["samples"]] + plan["decodes"]
        ended = [key for key in sampled if self.sample(index, flat(key))]
        host.passes_done = plan["pass"]
        self.tell_machine(index, {"type": "iteration_done", "pass": plan["pass"], "ended": ended})
        return True

    # Transfers: each comes to one end.

    def begin(self, index, put, after_pass):
        self.transfers[index, flat(put["key"])] = Transfer(put["to"], after_pass)

    def move(self, place, fails=False):
        """One step of a transfer: half of its layers, or its end."""
        index, key = place
        transfer, event_key = self.transfers[place], leg_key(*key)
        if transfer.stopped or fails:
            del self.transfers[place]
            self.tell_machine(index, {"type": "fenced" if transfer.stopped else "transfer_failed", "key": event_key})
            return True
        if transfer.layers == 1 and self.hosts[index].passes_done < transfer.after_pass:
            return False
        transfer.layers += 1
        to = transfer.to["index"]
        if transfer.layers == 2:
            del self.transfers[place]
            if key in self.hosts[to].follows:
                self.hosts[to].follows.discard(key)
                self.sample(to, key)
        self.tell_machine(to, {"type": "layers_landed", "key": event_key, "layers": transfer.layers, "of": 2})
        if transfer.layers == 2:
            self.tell_machine(index, {"type": "local_done", "key": event_key})
        return True

    # Sessions.

    def lines(self):
        """The ends of all sessions at which something waits."""
        waiting = [("machine", index) for index, line in enumerate(self.to_machine) if line]
        waiting += [("cluster", index) for index, line in enumerate(self.to_cluster) if line]
        return waiting + [("peer", pair) for pair, line in self.peers.items() if line]

    def deliver(self, kind, at):
        if kind == "machine":
            self.tell_machine(at, self.to_machine[at].popleft())
        elif kind == "peer":
            self.tell_machine(at[1], self.peers[at].popleft())
        else:
            event = self.to_cluster[at].popleft()
            if event["type"] == "token":
                self.give(event["request"], event["token"])
                return
            errors = self.tell_cluster(event)
            if errors and event["type"] == "disconnect":
                # Of a session whose first message never came.
                assert isinstance(errors[0], splitcore.UnknownIdError)
            elif errors:
                # It counts as lost meanwhile: whatever it holds is of no use, and its name is over.
                assert event["type"] == "register"
                assert "does not follow" in str(errors[0])
                if self.hosts[at].me == event["join"]["machine"]:
                    self.die(at, 0)
                    self.hosts[at] = Host(at, self.hosts[at].me["incarnation"] + 1)

    def register(self, index):
        """A session begins, when both sides know that the last one is over."""
        host = self.hosts[index]
        if host.machine is None or host.is_open or self.to_machine[index] or self.to_cluster[index]:
            return False
        host.is_open = True
        host.unsaid = set(host.made)
        self.to_cluster[index].append(host.registration())
        return True

    def break_session(self, index, arrive):
        """The session breaks: of what is on its way, so many messages each way still arrive."""
        host = self.hosts[index]
        if not host.is_open:
            return
        host.is_open = False
        self.cut(self.to_machine[index], arrive).append({"type": "cluster_lost"})
        self.cut(self.to_cluster[index], arrive).append({"type": "disconnect", "machine": host.me})

    @staticmethod
    def cut(line, arrive):
        while len(line) > arrive:
            line.pop()
        return line

    def reset_peers(self, pair, arrive):
        """A session between two machines is replaced by a new one."""
        a, b = pair
        if self.hosts[a].machine is None or self.hosts[b].machine is None:
            return
        for way in (pair, (b, a)):
            self.cut(self.peers[way], arrive)
            while self.peers[way]:
                self.deliver("peer", way)
        for index, other in (pair, (b, a)):
            self.peers[index, other].clear()
        for index, other in (pair, (b, a)):
            self.tell_machine(index, {"type": "peer_reset", "machine": self.hosts[other].me})

    def die(self, index, arrive):
        """A machine dies with all it holds; the other machines hear of it at once, the Cluster when it notices."""
        host = self.hosts[index]
        self.break_session(index, arrive)
        host.machine = None
        self.to_machine[index].clear()
        for pair, line in self.peers.items():
            if index in pair:
                line.clear()
        ended = [place for place, each in self.transfers.items() if index in (place[0], each.to["index"])]
        for place in ended:
            stopped = self.transfers[place].stopped and place[0] != index
            if not stopped:
                del self.transfers[place]
        for other in range(len(ROLES)):
            if other != index and self.hosts[other].machine is not None:
                self.tell_machine(other, {"type": "peer_lost", "machine": host.me})

    def come_back(self, index):
        """The next incarnation begins with nothing."""
        if self.hosts[index].machine is None:
            self.hosts[index] = Host(index, self.hosts[index].me["incarnation"] + 1)

    def restart_cluster(self, arrive):
        for index, host in enumerate(self.hosts):
            self.break_session(index, arrive)
            self.to_cluster[index].clear()
            if host.machine is None:
                self.to_machine[index].clear()
        self.start_cluster(GRACE_S)

    # What can happen next without a fault.

    def steps(self):
        running = [index for index, host in enumerate(self.hosts) if host.machine and host.machine.loads()["running"]]
        moving = [("transfer", place) for place in self.transfers]
        return self.lines() + moving + [("pass", index) for index in running]

    def step(self, kind, at):
        if kind == "transfer":
            return self.move(at)
        if kind == "pass":
            return self.run_pass(at)
        self.deliver(kind, at)
        return True

    # Time.

    def advance(self, by_ns):
        self.now_ns += by_ns
        self.tick()

    def tick(self):
        self.tell_cluster()
        for index, host in enumerate(self.hosts):
            if host.machine is not None:
                self.tell_machine(index)

    def heal(self, steps_max=20_000):
        """No more faults: everything that waits goes on, until nothing does."""
        for _ in range(steps_max):
            moved = False
            for index in range(len(ROLES)):
                self.come_back(index)
                moved |= self.register(index)
            for kind, at in self.steps():
                # What one step does can take another away.
                if (kind, at) in self.steps():
                    moved |= self.step(kind, at)
            if moved:
                continue
            machines = [host.machine for host in self.hosts]
            dues = [each.next_deadline_ns() for each in [self.cluster, *machines]]
            due = min((due for due in dues if due is not None), default=None)
            if due is None:
                return
            self.now_ns = max(self.now_ns, due)
            self.tick()
        raise AssertionError(f"it goes on and on: {self.clients}, {self.cluster.loads()}")

    # What always holds, and what holds at the end.

    def check(self):
        self.cluster.check()
        for host in self.hosts:
            if host.machine is not None:
                host.machine.check()
        for client in self.clients.values():
            assert client.tokens == list(range(1, len(client.tokens) + 1))

    def check_end(self, restarted):
        for request, client in self.clients.items():
            assert client.outcome in ("finished", "cancelled", *["lost"] * restarted), (request, client)
            if client.outcome == "finished":
                assert len(client.tokens) == client.outputs
        for host in self.hosts:
            loads = host.machine.loads()
            left = loads["free_blocks"], loads["legs"], host.machine.claims()
            assert left == (BLOCKS, 0, []), host.me
        books = self.cluster.loads()
        assert books["state"].tolist() == [0] * len(ROLES)
        for column in ("requests", "booked_load", "kv_tokens"):
            assert not books[column].any(), column
        assert self.transfers == {}
