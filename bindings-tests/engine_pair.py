"""Two engines in one process, and what they are held against: transformers' own `generate`."""

import copy
import itertools
import os
import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LogitsProcessor

from splitcore.engine import GREEDY, Engine, Put, Sampling, Span
from splitcore.engine.model import describe
from splitcore.nixl_transfer import available
from splitcore.transfer import KvPool, Receiver, connect

torch.set_num_threads(1)
# NIXL would else spread a transfer over every interface.
os.environ.setdefault("UCX_NET_DEVICES", "lo")
os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")

# In a batch the matrix products have other shapes, and so other roundings. A token may differ from that of an unsplit
# run only where the two likeliest logits are closer than this, or the draw is closer to the border between two tokens.
NEAR_LOGITS, NEAR_DRAW = 1e-3, 1e-5
BACKENDS = ["shm", "tcp", "nixl"]
# Tokens of a block at the prompt's engine and at the decoding one.
SIZES = {"equal": (16, 16), "different": (16, 24)}


def tiny(seed=0, **changes):
    """Make a random model twice: for an engine, and as it is."""
    options = {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        # Random layers of the usual size hardly move the embedding, and the model then repeats one token.
        "initializer_range": 0.2,
        "eos_token_id": None,
    }
    config = LlamaConfig(**{**options, **changes})
    return twice(config, seed)


def twice(config, seed=0, dtype=torch.float32):
    """Make a random model of a configuration for an engine, and the same as it is."""
    torch.manual_seed(seed)
    plain = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval().to(dtype)
    paged = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval().to(dtype)
    paged.load_state_dict(plain.state_dict())
    return describe(paged), plain


def prompt(length, seed=0, vocabulary=512):
    """Make token ids."""
    return random.Random(f"{seed}/{length}").choices(range(vocabulary), k=length)  # noqa: S311


@dataclass
class Ask:
    """A request."""

    tokens: list
    sampling: Sampling = GREEDY
    outputs: int = 12

    @property
    def key(self):
        return tuple(self.tokens), self.sampling, self.outputs


@dataclass
class Expected:
    """What `generate` gives: tokens, its logits, and by how much each token won."""

    tokens: list = field(default_factory=list)
    logits: list = field(default_factory=list)
    margins: list = field(default_factory=list)
    near: float = NEAR_LOGITS


class Reference:
    """`generate` of a plain model, remembered."""

    def __init__(self, model):
        self.model, self._known = model, {}

    def __call__(self, ask):
        if ask.key not in self._known:
            self._known[ask.key] = self._generate(ask)
        return self._known[ask.key]

    def _generate(self, ask):
        told = Expected(near=NEAR_LOGITS if ask.sampling.temperature == 0 else NEAR_DRAW)
        self.model.generate(
            torch.tensor([ask.tokens]),
            attention_mask=torch.ones(1, len(ask.tokens), dtype=torch.long),
            generation_config=None,
            max_new_tokens=ask.outputs,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=[Chooser(ask.sampling, told)],
        )
        return told


class Chooser(LogitsProcessor):
    """Leaves `generate` one token to choose, that of a sampler written once more, by rank and with numpy."""

    def __init__(self, sampling, told):
        self._sampling, self._told = sampling, told

    def __call__(self, _, scores):
        row = scores[0].clone()
        token, margin = choose(row.numpy().astype(np.float64), self._sampling, len(self._told.tokens))
        self._told.tokens.append(token)
        self._told.margins.append(margin)
        self._told.logits.append(row)
        left = torch.full_like(scores, float("-inf"))
        left[0, token] = 0
        return left


def choose(row, sampling, index):
    """Draw a token, and tell how far the draw was from another one."""
    if sampling.temperature == 0:
        low, high = np.sort(row)[-2:]
        return int(row.argmax()), high - low
    shares = np.exp((row - row.max()) / sampling.temperature)
    shares /= shares.sum()
    order = sorted(range(len(row)), key=lambda token: (-shares[token], token))
    kept, sum_before = set(), 0.0
    for token in order:
        if sum_before >= sampling.top_p or (sampling.top_k and len(kept) == sampling.top_k):
            break
        kept.add(token)
        sum_before += shares[token]
    point, before = sum_before * by_hand(sampling.seed, index), 0.0
    for token in sorted(kept):
        if point < before + shares[token]:
            return token, min(point - before, before + shares[token] - point)
        before += shares[token]
    raise AssertionError("the draw is behind the last token")


def by_hand(seed, index):
    """The draws as the page describes them."""

    def mix(word):
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    return (mix(mix((seed + 0x9E3779B97F4A7C15) % 2**64) ^ mix((index + 0xD1B54A32D192ED03) % 2**64)) >> 11) / 2**53


class Blocks:
    """Gives out blocks: some requests get a run, others what is scattered."""

    def __init__(self, count):
        self._free = list(range(count))
        self._random = random.Random(count)  # noqa: S311

    def take(self, count):
        if self._random.random() < 0.5:
            self._random.shuffle(self._free)
        else:
            self._free.sort()
        assert count <= len(self._free), "the pool is too small for the test"
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give(self, blocks):
        self._free += blocks


@contextmanager
def joined(source, target, backend):
    """Connect two pools. NIXL's receiver must be called all the while, which here a thread does."""
    ended = threading.Event()
    with Receiver(target, model="m", nixl=backend == "nixl") as receiver:
        thread = threading.Thread(target=lambda: call(receiver, ended))
        thread.start()
        try:
            with connect(source, receiver.endpoint, model="m", backend=backend) as sender:
                yield receiver, sender
        finally:
            ended.set()
            thread.join()


def call(receiver, ended):
    while not ended.is_set():
        receiver.wait(0.02)
        # Else the wait ends at once as long as there is news.
        receiver.poll()


class Pair:
    """A prompt's engine and a decoding one, joined by a backend."""

    def __init__(self, model, backend, sizes, positions=4096):
        self.sizes = sizes
        self.pools = [KvPool(model.layout(size), positions // size) for size in sizes]
        self.free = [Blocks(pool.blocks) for pool in self.pools]
        self.prefill, self.decode = (Engine(model, pool) for pool in self.pools)
        self.layers = model.layers
        self._ids = itertools.count(1)
        self._joined = joined(*self.pools, backend)
        self.receiver, self.sender = self._joined.__enter__()

    def close(self):
        self._joined.__exit__(None, None, None)

    def tables(self, ask):
        """Blocks here for the prompt, and there for the output as well."""
        lengths = (len(ask.tokens), len(ask.tokens) + ask.outputs)
        return [
            free.take(-(-length // size)) for free, length, size in zip(self.free, lengths, self.sizes, strict=True)
        ]

    def run(self, asks, *, layer_wise, chunk=None, cut=0):
        """Run requests, split, all together; give tokens and logits of each."""
        legs = [Leg(next(self._ids), ask, self) for ask in asks]
        for leg in legs:
            leg.open(cut)
        self._prefill(legs, layer_wise, chunk)
        for leg in legs:
            leg.arrive()
        while left := [leg for leg in legs if len(leg.tokens) < leg.ask.outputs]:
            keep(left, self.decode.run([leg.next_span() for leg in left]))
        for leg in legs:
            leg.give_back()
        return [(leg.tokens, leg.logits) for leg in legs]

    def _prefill(self, legs, layer_wise, chunk):
        left = {leg: 0 for leg in legs if leg.moved}
        while left:
            spans, ended = [], []
            for leg, start in left.items():
                end = leg.moved if chunk is None else min(leg.moved, start + chunk)
                if end == leg.moved:
                    ended.append(leg)
                spans.append(leg.prompt_span(start, end, layer_wise))
                left[leg] = end
            ran = self.prefill.run(spans)
            assert not ran.failed_puts
            keep([leg for leg in legs if leg.id in ran.tokens], ran)
            for leg in ended:
                del left[leg]
                if not layer_wise:
                    leg.send_all()


class Leg:
    """A request on its way."""

    def __init__(self, number, ask, pair):
        self.id, self.ask, self.pair = number, ask, pair
        self.tokens, self.logits = [], []
        self.here, self.there = pair.tables(ask)

    def __hash__(self):
        return self.id

    def open(self, cut):
        self.moved = len(self.ask.tokens) - cut
        self.grant = self.transfer = None
        if self.moved:
            there = self.there[: -(-self.moved // self.pair.sizes[1])]
            sender = self.pair.sender
            self.grant = self.pair.receiver.open(
                writer=sender.incarnation, request=self.id, blocks=there, tokens=self.moved
            )
            self.transfer = sender.begin(self.grant, table=self.here, tokens=self.moved)

    def prompt_span(self, start, end, layer_wise):
        last = end == self.moved
        return Span(
            self.id,
            self.ask.tokens[start:end],
            start,
            self.here,
            sampling=self.ask.sampling if end == len(self.ask.tokens) else None,
            puts=[Put(self.pair.sender, self.transfer)] if last and layer_wise else [],
        )

    def next_span(self):
        tokens = self.ask.tokens + self.tokens
        start = len(tokens) - 1 if self.tokens else self.moved
        return Span(self.id, tokens[start:], start, self.there, self.ask.sampling, output=len(self.tokens))

    def send_all(self):
        for layer in range(self.pair.layers):
            self.pair.sender.put_layer(self.transfer, layer)

    def arrive(self):
        if self.grant is not None:
            for layer in range(self.pair.layers):
                assert self.pair.receiver.wait_layer(self.grant, layer, timeout=20).tokens == self.moved
            assert self.pair.sender.finish(self.transfer, timeout=20).kind == "local-done"
            self.pair.receiver.release(self.grant)
        # What is gone must not be missed: the blocks here are somebody else's now.
        planes = self.pair.pools[0].torch()
        planes[:, self.here] = float("nan")

    def give_back(self):
        for free, blocks in zip(self.pair.free, (self.here, self.there), strict=True):
            free.give(blocks)


def keep(legs, ran):
    for leg, row in zip(legs, ran.logits, strict=True):
        leg.tokens.append(ran.tokens[leg.id])
        leg.logits.append(row)


def unsplit(engine, asks, size):
    """Run requests together on one engine; their tokens."""
    free, told = Blocks(engine._kv.blocks), {at: [] for at in range(len(asks))}
    tables = [free.take(-(-(len(ask.tokens) + ask.outputs) // size)) for ask in asks]
    while True:
        spans = []
        for at, (ask, table) in enumerate(zip(asks, tables, strict=True)):
            if len(told[at]) < ask.outputs:
                tokens = ask.tokens + told[at]
                start = len(tokens) - 1 if told[at] else 0
                spans.append(Span(at, tokens[start:], start, table, ask.sampling, output=len(told[at])))
        if not spans:
            return list(told.values())
        for at, token in engine.run(spans).tokens.items():
            told[at].append(token)


def differing(told, expected):
    """Compare tokens; how many requests part from what was expected, each at a near tie."""
    parted = 0
    for tokens, wanted in zip(told, expected, strict=True):
        assert len(tokens) == len(wanted.tokens)
        for at, (token, other) in enumerate(zip(tokens, wanted.tokens, strict=True)):
            if token != other:
                assert wanted.margins[at] < wanted.near, f"token {at} is {token}, not {other}, and no near tie"
                parted += 1
                break
    return parted


def nixl_or_skip(pytest, backend):
    """Leave out what is not here."""
    if backend == "nixl" and available() is not None:
        pytest.skip(str(available()))
