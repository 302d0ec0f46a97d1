"""`Machine` beside a plain model of the batch rule and of its blocks."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import splitcore


@dataclass
class Leg:
    order: int
    prompt: int
    samples: bool = True
    tokens: int = 0
    """Output tokens so far."""
    blocks: int = 0
    state: str = "queued"
    sat_out: int = 0
    evictions: int = 0
    done: int = 0
    """Tokens of its prefill that are computed."""
    again: bool = False
    """Its blocks were taken, so that its prefill is everything so far."""
    runs: bool = False
    aborted: bool = False


class Model:
    """One list of legs, walked for everything."""

    def __init__(self, blocks, block_tokens, tokens_max, requests_max, sit_out_max, evictions_max, floor, chunk):
        self.total, self.block_tokens, self.floor = blocks, block_tokens, floor
        self.tokens_max, self.requests_max = tokens_max, requests_max
        self.sit_out_max, self.evictions_max = sit_out_max, evictions_max
        self.chunk = chunk
        self.legs = {}
        self.running = None
        self.passes = 0

    def free(self):
        return self.total - sum(leg.blocks for leg in self.legs.values())

    def of(self, *states):
        chosen = [(leg.order, id_) for id_, leg in self.legs.items() if leg.state in states]
        return [id_ for _, id_ in sorted(chosen)]

    def needs_block(self, leg):
        return leg.prompt + leg.tokens > leg.blocks * self.block_tokens

    def start(self):
        """Starts a pass; one that its own evictions have emptied is built again."""
        waiting = None
        while self.running is None and waiting != (now := self.of("queued", "evicted")):
            waiting = now
            self.build()

    def build(self):
        """Builds the next pass: the paper's order, and who gives way when blocks run out."""
        tokens, requests, first = self.tokens_max, self.requests_max, True
        decodes = self.of("decoding")
        runs = set()

        def take(wanted):
            nonlocal tokens, requests, first
            if requests == 0 or (wanted > tokens and not first):
                return False
            tokens, requests, first = max(tokens - wanted, 0), requests - 1, False
            return True

        for id_ in decodes:
            if self.legs[id_].sat_out >= self.sit_out_max and take(1):
                runs.add(id_)
        prefills = []
        chunk = self.chunk

        def take_prompt(id_):
            nonlocal chunk
            leg = self.legs[id_]
            left = leg.prompt + (leg.tokens if leg.again else 0) - leg.done
            size = left if chunk is None else min(left, chunk, tokens)
            fits = requests > 0 and size > 0 and (first or size <= tokens)
            if not fits or not self.make_room(leg, decodes):
                return False
            take(size)
            chunk = None if chunk is None else chunk - size
            leg.state = "prefilling"
            prefills.append((id_, size, leg.done, size == left))
            return True

        for id_ in self.of("queued", "evicted"):
            if not take_prompt(id_):
                break
        for rested in (False, True):
            for id_ in decodes:
                if id_ not in runs and (self.legs[id_].sat_out == 0) == rested and take(1):
                    runs.add(id_)
        self.grow(decodes, runs)
        ran = [id_ for id_ in decodes if id_ in runs]
        if not prefills and not ran:
            # Prompts that have begun have their blocks: they pass those that find none.
            tokens, requests, first, chunk = self.tokens_max, self.requests_max, True, self.chunk
            for id_ in self.of("queued", "evicted"):
                if self.legs[id_].blocks and not take_prompt(id_):
                    break
        if prefills or ran:
            self.passes += 1
            self.running = prefills, ran

    def make_room(self, leg, decodes):
        wanted = -(-(leg.prompt + leg.tokens + 1) // self.block_tokens) - leg.blocks
        if wanted <= 0:
            return True
        if self.free() < self.total:
            growing = sum(self.needs_block(self.legs[id_]) for id_ in decodes)
            if wanted + self.floor + growing > self.free():
                return False
        if wanted > self.free():
            return False
        leg.blocks += wanted
        return True

    def grow(self, decodes, runs):
        """Oldest first; the youngest gives way, never the oldest, and one evicted too often is spared."""
        at = 0
        while at < len(decodes):
            leg = self.legs[decodes[at]]
            if decodes[at] not in runs or not self.needs_block(leg):
                at += 1
            elif self.free() > 0:
                leg.blocks += 1
                at += 1
            elif len(decodes) > 1:
                spared = [i for i in range(1, len(decodes)) if self.legs[decodes[i]].evictions < self.evictions_max]
                victim = spared[-1] if spared else len(decodes) - 1
                loser = self.legs[decodes[victim]]
                loser.state, loser.blocks, loser.sat_out, loser.again = "evicted", 0, 0, True
                loser.evictions += 1
                runs.discard(decodes[victim])
                del decodes[victim]
                at = min(at, victim)
            else:
                runs.discard(decodes[at])
                at += 1

    def finish_pass(self, ended):
        prefills, ran = self.running
        self.running = None
        done = []
        for id_, size, _, last in prefills:
            leg = self.legs[id_]
            if last:
                leg.tokens += 1
                assert leg.again or leg.tokens == 1
            if leg.aborted or id_ in ended:
                done.append(id_)
            elif not last:
                leg.done += size
                leg.state = "evicted" if leg.again else "queued"
            else:
                leg.done, leg.again = 0, False
                leg.state, leg.sat_out = "decoding", 0
                leg.runs = True
        fresh = {id_ for id_, *_ in prefills}
        for id_ in self.of("decoding"):
            leg = self.legs[id_]
            if id_ in fresh:
                # It joins the list when the pass is over, and is neither run nor left out by it.
                continue
            if id_ in ran:
                leg.tokens += 1
                leg.sat_out = 0
            else:
                leg.sat_out += 1
            if leg.aborted or id_ in ended:
                done.append(id_)
        for id_ in done:
            del self.legs[id_]

    def abort(self, id_):
        leg = self.legs[id_]
        busy = self.running is not None and (leg.state == "prefilling" or id_ in self.running[1])
        if busy:
            leg.aborted = True
        else:
            del self.legs[id_]


class MachineBesideModel(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(3, 20),
        block_tokens=st.sampled_from([1, 4, 16]),
        tokens_max=st.sampled_from([2048, 20, 3, 1]),
        requests_max=st.sampled_from([512, 3, 2, 1]),
        sit_out_max=st.integers(1, 4),
        evictions_max=st.integers(0, 2),
        floor=st.integers(0, 2),
        chunk=st.sampled_from([None, None, 1, 3, 20]),
    )
    def begin(self, blocks, block_tokens, tokens_max, requests_max, sit_out_max, evictions_max, floor, chunk):
        chunk = chunk and min(chunk, tokens_max)
        self.native = splitcore.Machine(
            kv_blocks=blocks,
            block_tokens=block_tokens,
            batch_tokens_max=tokens_max,
            batch_requests_max=requests_max,
            sit_out_max=sit_out_max,
            evictions_max=evictions_max,
            prefill_chunk_tokens=chunk,
            handoff_floor_blocks=floor,
            report_interval_s=1e6,
        )
        self.model = Model(blocks, block_tokens, tokens_max, requests_max, sit_out_max, evictions_max, floor, chunk)
        self.capacity = blocks * block_tokens
        self.next_id = 0

    def handle(self, *events):
        handled = self.native.handle(list(events), now_ns=0)
        assert handled.errors == []
        self.model.start()
        return handled

    @rule(parts=st.lists(st.integers(1, 100), min_size=1, max_size=4), late=st.booleans())
    def come(self, parts, late):
        self.arrive(parts, late)

    def arrive(self, parts, late):
        events = []
        for part in parts:
            # Mostly a small part of the machine, so that several decode at once; at times all of it.
            prompt = max(1, (self.capacity - 1) * part // (100 if part > 80 else 400))
            id_ = self.next_id
            # At times an older order comes later, as a request that was placed again does.
            order = 2 * id_ - (3 if late and id_ > 1 else 0)
            self.next_id += 1
            work = {"prompt_tokens": prompt, "start": 0, "upto": "end", "max_new_tokens": 9}
            key = {"request": id_, "attempt": 1}
            command = {"type": "compute", "key": key, "order": order, "work": work}
            events.append({"type": "command", "seq": id_, "command": command})
            self.model.legs[id_] = Leg(order, prompt)
        self.handle(*events)

    @rule(ends=st.sampled_from([0, 0, 0, 1, 2, 6]), times=st.integers(1, 30))
    def serve(self, ends, times):
        self.end_passes(ends, times)

    def end_passes(self, ends, times):
        for _ in range(times):
            if self.model.running is None:
                return
            self.plans_and_blocks_agree()
            prefills, ran = self.model.running
            members = [id_ for id_, *_ in prefills] + ran
            # A request ends before it outgrows the whole machine, as admission sees to.
            full = {id_ for id_ in members if self.legs_tokens(id_) + 2 > self.capacity}
            ended = full | {id_ for at, id_ in enumerate(members) if ends >> (at % 3) & 1}
            event = {
                "type": "iteration_done",
                "pass": self.model.passes,
                "ended": [{"request": id_, "attempt": 1} for id_ in sorted(ended)],
            }
            self.model.finish_pass(ended)
            self.handle(event)
            ends = 0

    @rule(part=st.integers(1, 100), times=st.integers(2, 12))
    def stream(self, part, times):
        """Prompts keep coming, one a pass, and nothing ends."""
        for _ in range(times):
            self.arrive([part], False)
            self.end_passes(0, 1)

    def legs_tokens(self, id_):
        leg = self.model.legs[id_]
        return leg.prompt + leg.tokens

    @rule(at=st.integers(0, 40))
    def abort(self, at):
        live = sorted(self.model.legs)
        if at < len(live):
            id_ = live[at]
            self.model.abort(id_)
            command = {"type": "abort", "key": {"request": id_, "attempt": 1}}
            self.handle({"type": "command", "seq": self.next_id, "command": command})

    @rule()
    def restore(self):
        other = splitcore.Machine(kv_blocks=1)
        other.restore(self.native.snapshot())
        self.native = other

    @invariant()
    def plans_and_blocks_agree(self):
        if not hasattr(self, "native"):
            return
        self.native.check()
        loads, plan, model = self.native.loads(), self.native.plan(), self.model
        assert (loads["running"] == 1, plan["pass"]) == (model.running is not None, model.passes)
        if model.running is not None:
            prefills, ran = model.running
            planned = [
                (each["key"]["request"], each["tokens"], each["start"], each["samples"]) for each in plan["prefills"]
            ]
            assert planned == prefills
            assert [key["request"] for key in plan["decodes"]] == ran
        assert loads["free_blocks"] == model.free()
        owned = []
        for id_, leg in model.legs.items():
            blocks = self.native.blocks(id_)
            assert len(blocks) == leg.blocks
            owned += blocks
        assert len(set(owned)) == len(owned) == loads["held_blocks"]
        assert all(0 <= block < model.total for block in owned)
        assert loads["queued"] == len(model.of("queued", "evicted"))
        assert self.native.counters()["evicted"] >= sum(leg.evictions for leg in model.legs.values())


TestMachineBesideModel = MachineBesideModel.TestCase
TestMachineBesideModel.settings = settings(max_examples=settings.default.max_examples * 3 // 2, stateful_step_count=40)
