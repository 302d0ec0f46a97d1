"""A worker in Python alone: a made-up engine behind `splitcore.Machine`, on a session with the service."""

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import splitcore
from serving import served
from splitcore.client.worker import Descriptor, Identity, Key, Registration, WorkerSession

LAYOUT = {
    "layers": 2, "values": {"heads": {"heads": 2, "head_dim": 8}}, "dtype": "f32", "block_tokens": 16,
    "order": "nhd", "planes": "together", "arrangement": "layer_first", "shard": {"rank": 0, "size": 1},
}  # fmt: skip


@contextmanager
def serving_a_model(folder, secret, *more):
    """A service with workers of its own, and the address that they connect to."""
    (folder / "secret").write_bytes(secret)
    model_folder(folder / "tiny")
    workers = f"unix:{folder}/workers"
    options = ("--model", str(folder / "tiny"), "--secret-file", str(folder / "secret"))
    if "--workers" not in more:
        more = ("--workers", workers, *more)
    with served(*options, "--grace-s", "0", "--rejoin-limit-s", "0.2", *more) as running:
        yield running, workers


def model_folder(folder):
    """A tokenizer and a template are all that the service reads of a model."""
    folder.mkdir()
    words = {f"w{token}": token for token in range(64)} | {"</s>": 64}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w3"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": "{{ messages }}"}))
    config = {"vocab_size": 65, "eos_token_id": 64, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config))


def mine(name, /, **other):
    machine = {"layout": LAYOUT, "blocks": 64, "peer": "127.0.0.1:1", "transfer": "{}"}
    return Identity(**({"name": name, "model": "tiny", "incarnation": 1} | machine | other))


def drawn(prompt, count):
    """The first output tokens of a prompt: each hangs on all before it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((sum(tokens) + len(tokens)) % 60)
    return tokens[len(prompt) :]


@dataclass
class Context:
    """What the engine knows of a leg."""

    descriptor: Descriptor
    work: dict
    outputs: list[int] = field(default_factory=list)

    def step(self):
        """Draw one more token; tell whether it is the last."""
        self.outputs += drawn([*self.descriptor.prompt, *self.outputs], 1)
        return len(self.outputs) >= self.work["max_new_tokens"]


class PythonWorker:
    """Serves whole requests in a thread until the block ends."""

    def __init__(self, daemon, identity, secret, tls=None):
        self.daemon, self.identity, self.secret, self.tls = daemon, identity, secret, tls
        self.contexts = {}
        self.machine = None
        self.failure = None
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stops.set()
        self._thread.join(30)
        assert self.failure is None, self.failure

    def _register(self, welcome):
        if self.machine is None:
            here = welcome.machine
            self.machine = splitcore.Machine(
                kv_blocks=self.identity.blocks, machine=here.index, incarnation=here.incarnation
            )
        claims = self.machine.claims()
        keys = [Key(**claim["key"]) for claim in claims if claim["held"] != "closing"]
        return Registration(
            role="mixed",
            kv_capacity_tokens=16 * self.identity.blocks,
            report=self.machine.report(),
            claims=claims,
            descriptors={key: self.contexts[key].descriptor for key in keys},
        )

    def _run(self):
        try:
            with WorkerSession(
                self.daemon, self.identity, self._register, secret=self.secret, timeout_s=20, tls=self.tls
            ) as self.session:
                self._handle({"type": "registered", "epoch": self.session.welcome.epoch})
                while not self._stops.is_set():
                    due_ns = self.machine.next_deadline_ns()
                    wait_s = 0.1 if due_ns is None else min(0.1, max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
                    command = self.session.next_command(wait_s)
                    if command is None:
                        self._handle()
                        continue
                    if command.descriptor is not None:
                        key = Key(**command.command["key"])
                        self.contexts[key] = Context(command.descriptor, command.command["work"])
                    self._handle(command.event)
        except (splitcore.SplitcoreError, AssertionError) as error:
            self.failure = error

    def _handle(self, *events):
        """Give events to the machine and do what it wants, and what follows from that."""
        waiting = [list(events)]
        while waiting:
            handled = self.machine.handle(waiting.pop(0), now_ns=time.monotonic_ns())
            assert not handled.errors, handled.errors
            for action in handled.actions:
                if action["type"] == "notify":
                    self.session.notice(action["notice"])
                elif action["type"] == "run":
                    waiting.append([self._pass(action["pass"])])
                elif action["type"] == "resend":
                    key = Key(**action["key"])
                    self._give(key, action["delivered"])
                else:
                    raise AssertionError(f"a whole request needs no {action['type']}")

    def _pass(self, number):
        plan = self.machine.plan()
        running = [prefill["key"] for prefill in plan["prefills"] if prefill["samples"]] + plan["decodes"]
        ended = []
        for named in running:
            key = Key(**named)
            context = self.contexts[key]
            ended += [named] if context.step() else []
            self._give(key, context.work["terms"]["resumed_tokens"] + len(context.outputs) - 1)
        return {"type": "iteration_done", "pass": number, "ended": ended}

    def _give(self, key, start):
        """Give the output tokens from an index on, which counts those of earlier attempts."""
        context = self.contexts[key]
        earlier = context.descriptor.prompt[len(context.descriptor.prompt) - context.work["terms"]["resumed_tokens"] :]
        self.session.tokens(key, start, [*earlier, *context.outputs][start:])
