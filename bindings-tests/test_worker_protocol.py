"""The worker's half of the protocol in Python: over the published frames, over sockets, and against the service."""

import asyncio
import json
import socket
import struct
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import splitcore
from python_worker import mine, serving_a_model
from splitcore.client import AnswerError, PlacementClient, SessionError, UnreachableError, reading
from splitcore.client.worker import (
    AsyncWorkerSession,
    Decoder,
    Descriptor,
    Identity,
    Key,
    Registration,
    WorkerProtocol,
    WorkerSession,
    encode,
    prove,
    waits,
)

LIMIT_S = 20
FRAMES = json.loads((Path(__file__).parents[1] / "docs/protocol/frames.json").read_text())
SECRET = b"correct horse battery staple\n"


def message(to, name, **where):
    """The body of the first example of a message in which these fields are so."""
    for frame in FRAMES:
        body = frame["message"].get(name, {})
        inner = body.get(name, body)
        fits = all(inner.get(field) == value for field, value in where.items())
        if (frame["to"], frame["name"]) == (to, name) and fits:
            return body
    raise AssertionError(f"no example of {name} {where}")


def identity(**other):
    hello = message("daemon", "hello")
    drawn = ("protocol", "nonce", "proof")
    return Identity(**({field: value for field, value in hello.items() if field not in drawn} | other))


def registration(welcome):
    machine = splitcore.Machine(kv_blocks=512, machine=welcome.machine.index, incarnation=welcome.machine.incarnation)
    return Registration(role="token", kv_capacity_tokens=8192, report=machine.report(), claims=machine.claims())


class Daemon:
    """The other side of a `WorkerProtocol`: plays the examples, and reads what comes back."""

    def __init__(self, worker, secret=SECRET):
        self.worker, self.secret, self.decoder = worker, secret, Decoder(1 << 20)

    def say(self, name, body, step=None):
        """Send a message, in pieces if asked to; give the commands that come of it."""
        frame = encode(name, body)
        step = step or len(frame)
        pieces = [frame[at : at + step] for at in range(0, len(frame), step)]
        return [command for piece in pieces for command in self.worker.receive(piece)]

    def heard(self):
        self.decoder.feed(self.worker.to_send())
        return list(self.decoder.messages())

    def greet(self):
        challenge = message("worker", "challenge") | {"secret": self.secret is not None}
        self.say("challenge", challenge)
        ((name, hello),) = self.heard()
        assert name == "hello"
        proof = self.secret and prove(self.secret, "daemon", challenge["nonce"], hello["nonce"], hello["name"])
        self.say("welcome", message("worker", "welcome") | {"proof": proof})
        return challenge, hello

    def register(self):
        self.greet()
        self.worker.register(registration(self.worker.welcome))
        self.say("registered", {"epoch": self.worker.welcome.epoch})
        return self.heard()


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: f"{frame['to']}-{frame['name']}")
def test_the_codec_reads_and_writes_the_published_frames(frame):
    data = bytes.fromhex(frame["frame"])
    decoder = Decoder(1 << 20)
    for byte in data[:-1]:
        decoder.feed(bytes([byte]))
        assert list(decoder.messages()) == []
    decoder.feed(data[-1:] + data)
    ((name, body),) = frame["message"].items()
    assert list(decoder.messages()) == [(name, body)] * 2
    assert decoder.is_between
    assert encode(name, body) == data


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (struct.pack("<I", 0), "0 bytes"),
        (struct.pack("<I", 101), "101 bytes, where 1 to 100"),
        (struct.pack("<I", 1) + b"\xc1", "no MessagePack"),
        (struct.pack("<I", 2) + b"\x01\x02", "no MessagePack"),
        (struct.pack("<I", 1) + b"\x05", "not a map of one message"),
        (struct.pack("<I", 4) + b"\x81\xa1a\x05", "not a name and a map"),
        (struct.pack("<I", 35) + b"\x81\xa1a\x81\xa1b" + b"\x91" * 28 + b"\xc0", "deep"),
    ],
)
def test_what_is_no_frame_is_refused(frame, said):
    decoder = Decoder(100)
    decoder.feed(frame)
    with pytest.raises(AnswerError, match=said):
        list(decoder.messages())


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_frame_or_an_error(data):
    decoder = Decoder(1000)
    decoder.feed(data)
    try:
        for name, body in decoder.messages():
            assert isinstance(name, str)
            assert isinstance(body, dict)
    except AnswerError:
        pass


def test_a_session_says_what_the_page_says():
    worker = WorkerProtocol(identity(), secret=SECRET)
    daemon = Daemon(worker)
    challenge, hello = daemon.greet()
    expected = message("daemon", "hello")
    assert {name: hello[name] for name in hello if name not in ("nonce", "proof")} == {
        name: expected[name] for name in expected if name not in ("nonce", "proof")
    }
    assert hello["proof"] == prove(SECRET, "worker", challenge["nonce"], hello["nonce"], "token-0")
    assert worker.welcome.machine.index == 2
    example = message("daemon", "describe")
    worker.register(
        Registration(
            role="token",
            kv_capacity_tokens=8192,
            report=message("daemon", "register")["report"],
            claims=message("daemon", "register")["claims"],
            descriptors={Key(**example["key"]): _descriptor(example["descriptor"])},
        )
    )
    described, registered = daemon.heard()
    assert described == ("describe", example)
    assert registered == ("register", message("daemon", "register"))
    assert not worker.is_registered
    daemon.say("registered", {"epoch": 3})
    assert (worker.is_registered, worker.identity.epoch, worker.identity.index) == (True, 3, 2)
    worker.notice(message("daemon", "notice", type="prefill_done"))
    tokens = message("daemon", "tokens")
    worker.tokens(Key(**tokens["key"]), tokens["from"], tokens["ids"])
    daemon.say("ping", {"number": 7})
    assert daemon.heard() == [
        ("notice", message("daemon", "notice", type="prefill_done")), ("tokens", tokens), ("pong", {"number": 7}),
    ]  # fmt: skip


def _descriptor(body):
    return reading.read(Descriptor, body)


def test_commands_come_with_what_belongs_to_them_however_they_are_cut():
    worker = WorkerProtocol(identity(), secret=SECRET)
    daemon = Daemon(worker)
    daemon.register()
    commands = [frame["message"]["command"] for frame in FRAMES if frame["name"] == "command"]
    got = [command for body in commands for command in daemon.say("command", body, step=3)]
    assert [command.seq for command in got] == [body["seq"] for body in commands]
    assert [command.command for command in got] == [body["command"] for body in commands]
    compute, reserve, send, confirm = got
    assert compute.descriptor.prompt == (1, 345, 49151, 7)
    assert (compute.descriptor.sampling.temperature, compute.peer) == (0.75, None)
    assert (reserve.peer.machine.index, reserve.peer.peer, reserve.descriptor.stop_ids) == (0, "127.0.0.1:7700", (2,))
    assert (send.peer.machine.index, send.descriptor, confirm.descriptor) == (2, None, None)
    machine = splitcore.Machine(kv_blocks=512, machine=2, incarnation=7)
    assert not machine.handle([compute.event], now_ns=0).errors


def test_descriptors_go_only_to_a_service_of_another_epoch():
    worker = WorkerProtocol(identity(epoch=3), secret=SECRET)
    daemon = Daemon(worker)
    daemon.greet()
    key = Key(9, 1)
    given = registration(worker.welcome)
    descriptors = {key: _descriptor(message("daemon", "describe")["descriptor"])}
    worker.register(Registration(role="token", kv_capacity_tokens=1, report=given.report, descriptors=descriptors))
    assert [name for name, _ in daemon.heard()] == ["register"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"proof": "00" * 32}, "a proof by another"),
        ({"proof": None}, "a proof by another"),
        ({"epoch": 1}, "epoch 1 has been replaced by 2"),
        ({"machine": {"index": 3, "incarnation": 7}}, "another machine"),
        ({"silence_limit_ns": 5}, "silence_limit"),
        ({"protocol": 1}, "protocol"),
        ({"machine": {"index": 2}}, "expected a field incarnation"),
    ],
)
def test_a_welcome_that_is_wrong_ends_the_session_with_a_word(change, said):
    worker = WorkerProtocol(identity(), secret=SECRET)
    daemon = Daemon(worker)
    challenge = message("worker", "challenge")
    daemon.say("challenge", challenge)
    ((_, hello),) = daemon.heard()
    proof = prove(SECRET, "daemon", challenge["nonce"], hello["nonce"], hello["name"])
    with pytest.raises(AnswerError, match=said):
        daemon.say("welcome", message("worker", "welcome") | {"proof": proof} | change)
    ((name, body),) = daemon.heard()
    assert name == "close"
    assert said in body["reason"]


@pytest.mark.parametrize(("secret", "asked"), [(None, True), (SECRET, False)])
def test_a_side_with_a_secret_takes_none_without(secret, asked):
    worker = WorkerProtocol(identity(), secret=secret)
    with pytest.raises(AnswerError, match="secret: this worker has"):
        Daemon(worker).say("challenge", message("worker", "challenge") | {"secret": asked})


@pytest.mark.parametrize("name", ["challenge", "welcome", "registered", "command", "surprise"])
def test_what_comes_out_of_order_ends_the_session(name):
    worker = WorkerProtocol(identity(), secret=SECRET)
    daemon = Daemon(worker)
    if name in ("challenge", "welcome"):
        daemon.register()
    example = {"surprise": {"a": 1}, "registered": {"epoch": 3}}.get(name) or message("worker", name)
    with pytest.raises(AnswerError, match=f"unexpected {name}"):
        daemon.say(name, example)
    assert daemon.heard() == [("close", {"reason": f"unexpected {name}"})]


def test_a_refusal_names_the_field():
    worker = WorkerProtocol(identity(), secret=SECRET)
    daemon = Daemon(worker)
    daemon.say("challenge", message("worker", "challenge"))
    with pytest.raises(SessionError, match=r"layout\.layers: expected 30, got 32") as caught:
        daemon.say("refused", message("worker", "refused"))
    assert (caught.value.field, caught.value.ours, caught.value.theirs) == ("layout.layers", "30", "32")
    assert caught.value.permanent


def test_nothing_is_said_before_the_registration():
    worker = WorkerProtocol(identity(), secret=SECRET)
    for say in (lambda: worker.notice({"type": "report"}), lambda: worker.tokens(Key(1, 1), 0, [1]), worker.leave):
        with pytest.raises(SessionError, match="not registered"):
            say()
    with pytest.raises(SessionError, match="after the welcome"):
        worker.register(registration)


def test_the_wait_between_two_tries_doubles_to_two_seconds():
    wait = waits()
    assert [next(wait) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


# Against the service.


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service with workers of its own, and the address that they connect to."""
    with serving_a_model(tmp_path_factory.mktemp("service"), SECRET) as (running, workers):
        yield f"http://127.0.0.1:{running.port}", workers


def hold_nothing(_welcome=None):
    return Registration(role="mixed", kv_capacity_tokens=1024, report=splitcore.Machine(kv_blocks=64).report())


def test_a_worker_is_registered_and_stays(service):
    url, workers = service
    with PlacementClient(url, secret=SECRET.decode().strip(), timeout_s=LIMIT_S) as client:
        with WorkerSession(workers, mine("here"), hold_nothing, secret=SECRET, timeout_s=LIMIT_S) as session:
            assert session.welcome.machine.incarnation == 1
            assert session.identity.epoch == session.welcome.epoch > 0
            assert [row.state for row in client.machines() if row.name == "here"] == ["up"]
            # Longer than the silence that the service bears.
            assert session.next_command(session.welcome.silence_limit_ns / 1e9 + 1) is None
            assert [row.state for row in client.machines() if row.name == "here"] == ["up"]
            session.notice({"type": "report"} | hold_nothing().report)
            again = session.identity
        assert session.next_command() is None
        with WorkerSession(workers, again, hold_nothing, secret=SECRET, timeout_s=LIMIT_S) as session:
            assert session.identity == again


def test_a_worker_that_leaves_is_let_go(service):
    url, workers = service
    with WorkerSession(workers, mine("leaving"), hold_nothing, secret=SECRET, timeout_s=LIMIT_S) as session:
        session.leave()
        with pytest.raises(SessionError, match="the daemon ends the session"):
            session.next_command(LIMIT_S)

    async def life():
        async with AsyncWorkerSession(workers, mine("too"), hold_nothing, secret=SECRET, timeout_s=LIMIT_S) as session:
            await session.leave()
            await session.next_command()

    with pytest.raises(SessionError, match="the daemon ends the session"):
        asyncio.run(life())
    with PlacementClient(url, secret=SECRET.decode().strip(), timeout_s=LIMIT_S) as client:
        assert not {"leaving", "too"} & {row.name for row in client.machines() if row.state != "lost"}


def test_the_service_refuses_what_does_not_fit(service):
    _, workers = service
    refused = [({"model": "other"}, "model", "tiny", "other"), ({"name": ""}, "name", None, None)]
    for change, field, ours, theirs in refused:
        with pytest.raises(SessionError) as caught:
            WorkerSession(workers, mine("x", **change), hold_nothing, secret=SECRET, timeout_s=LIMIT_S)
        assert caught.value.field == field
        assert ours is None or (caught.value.ours, caught.value.theirs) == (ours, theirs)
    with pytest.raises(SessionError) as caught:
        WorkerSession(workers, mine("x"), hold_nothing, secret=b"other", timeout_s=LIMIT_S)
    assert caught.value.field == "proof"
    with pytest.raises(AnswerError, match="secret"):
        WorkerSession(workers, mine("x"), hold_nothing, timeout_s=LIMIT_S)
    with WorkerSession(workers, mine("first"), hold_nothing, secret=SECRET, timeout_s=LIMIT_S) as first:
        other = mine("x", layout=dict(first.identity.layout) | {"layers": 99})
        with pytest.raises(SessionError) as caught:
            WorkerSession(workers, other, hold_nothing, secret=SECRET, timeout_s=LIMIT_S)
        assert (caught.value.field, caught.value.theirs, caught.value.permanent) == ("layout.layers", "99", True)


def test_a_later_incarnation_ends_the_session_of_the_earlier(service):
    _, workers = service
    later = mine("twice", incarnation=2)
    with (
        WorkerSession(workers, mine("twice"), hold_nothing, secret=SECRET, timeout_s=LIMIT_S) as first,
        WorkerSession(workers, later, hold_nothing, secret=SECRET, timeout_s=LIMIT_S),
        pytest.raises((SessionError, UnreachableError)),
    ):
        first.next_command(LIMIT_S)


def test_asyncio_does_the_same(service):
    _, workers = service

    async def life():
        async with AsyncWorkerSession(workers, mine("loop"), hold_nothing, secret=SECRET, timeout_s=LIMIT_S) as session:
            assert session.welcome.epoch == session.identity.epoch
            await session.notice({"type": "report"} | hold_nothing().report)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await session.next_command()
        assert [command async for command in session] == []
        with pytest.raises(SessionError) as caught:
            await AsyncWorkerSession(workers, mine("loop", model="x"), hold_nothing, secret=SECRET).connect()
        return caught.value.field

    assert asyncio.run(life()) == "model"


def test_nobody_there_and_a_daemon_that_says_nothing_are_told_apart(tmp_path):
    with pytest.raises(UnreachableError):
        WorkerSession(f"unix:{tmp_path}/nobody", mine("x"), hold_nothing, timeout_s=LIMIT_S)
    with pytest.raises(SessionError, match="expected host:port"):
        WorkerSession("nowhere", mine("x"), hold_nothing, timeout_s=LIMIT_S)
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        port = mute.getsockname()[1]
        with pytest.raises(UnreachableError, match="in time"):
            WorkerSession(f"127.0.0.1:{port}", mine("x"), hold_nothing, timeout_s=0.1)
        hang_up = threading.Thread(target=lambda: [mute.accept()[0].close() for _ in range(2)])
        hang_up.start()
        with pytest.raises(UnreachableError, match="hung up"):
            WorkerSession(f"127.0.0.1:{port}", mine("x"), hold_nothing, timeout_s=LIMIT_S)
        hang_up.join(LIMIT_S)
