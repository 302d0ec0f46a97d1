"""Workers that reach the service with TLS: in Python, native, and those that are turned away."""

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from contextlib import closing

import httpx2 as httpx
import pytest

import splitcore
from certificates import made
from python_worker import LAYOUT, PythonWorker, drawn, mine, serving_a_model
from splitcore._native import KvLayout, Pool, Worker
from splitcore.client import PlacementClient, SessionError, UnreachableError
from splitcore.client.worker import AsyncWorkerSession, Registration, WorkerSession

SECRET = b"open sesame"
LIMIT_S = 20


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return made(tmp_path_factory.mktemp("certificate"), "DNS:localhost")


@pytest.fixture(scope="module")
def context(certificate):
    return ssl.create_default_context(cafile=certificate[0])


@pytest.fixture(scope="module")
def service(tmp_path_factory, certificate):
    """Its URL, and the port of its workers."""
    cert, key = map(str, certificate)
    options = ("--workers", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
    with serving_a_model(tmp_path_factory.mktemp("service"), SECRET, *options) as (running, _):
        log = "".join(running.log)
        told = re.search(r"workers connect to 127\.0\.0\.1:(\d+) with TLS", log)
        assert told, log
        yield f"https://localhost:{running.port}", int(told[1])


def hold_nothing(_welcome=None):
    return Registration(role="mixed", kv_capacity_tokens=1024, report=splitcore.Machine(kv_blocks=64).report())


def ready(url, context, name):
    """Wait until a worker is there."""
    with PlacementClient(url, secret=SECRET.decode(), timeout_s=LIMIT_S, tls=context) as client:
        for _ in range(1000):
            if any((row.name, row.state) == (name, "up") for row in client.machines()):
                return
            client.events(wait_s=0.02)
        raise AssertionError(f"{name} does not come: {client.machines()}")


def test_a_worker_in_python_serves_with_tls(service, context):
    url, port = service
    # The longer prompt and its frame are more than a record of TLS.
    with PythonWorker(f"localhost:{port}", mine("python", blocks=4096), SECRET, tls=context):
        ready(url, context, "python")
        for prompt in ([1, 5, 9, 2], [at % 60 for at in range(400)]):
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0}
            answer = httpx.post(
                f"{url}/v1/completions",
                json=body,
                headers={"authorization": f"Bearer {SECRET.decode()}"},
                timeout=LIMIT_S,
                trust_env=False,
                verify=context,
            )
            assert answer.status_code == 200, answer.text
            words = " ".join(f"w{token}" for token in drawn(prompt, 12))
            assert answer.json()["choices"][0]["text"].split() == words.split()


def test_a_session_in_asyncio_lives_longer_than_the_silence_that_the_service_bears(service, context):
    _, port = service

    async def life():
        who = mine("loop")
        async with AsyncWorkerSession(
            f"localhost:{port}", who, hold_nothing, secret=SECRET, timeout_s=LIMIT_S, tls=context
        ) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(session.welcome.silence_limit_ns / 1e9 + 1):
                    await session.next_command()
            await session.notice({"type": "report"} | hold_nothing().report)
        return session.identity.epoch

    assert asyncio.run(life()) > 0


def test_a_native_worker_joins_by_the_name_it_expects(service, context, certificate):
    url, port = service
    heads = LAYOUT["values"]["heads"]
    layout = KvLayout(layers=2, heads=heads["heads"], head_dim=heads["head_dim"], block_tokens=16, dtype="f32")
    connect = {"connect": f"127.0.0.1:{port}", "tls_ca": certificate[0], "tls_name": "localhost"}
    worker = Worker(Pool.shared(layout, 64), **connect, name="native", role="mixed", model="tiny", secret=SECRET)
    with closing(worker):
        ready(url, context, "native")
        assert worker.stop() == ("stopped", "")


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_daemon_that_is_not_the_right_one_is_refused_with_the_reason(service, context, kind):
    _, port = service

    def connect(*where, **how):
        if kind == "threads":
            WorkerSession(*where, **how)
        else:
            asyncio.run(AsyncWorkerSession(*where, **how).connect())

    def fails(host, tls):
        with pytest.raises(UnreachableError) as told:
            connect(f"{host}:{port}", mine("x"), hold_nothing, secret=SECRET, timeout_s=LIMIT_S, tls=tls)
        return str(told.value)

    assert "certificate verify failed" in fails("localhost", ssl.create_default_context())
    assert "certificate is not valid for '127.0.0.1'" in fails("127.0.0.1", context)


def talk(mute):
    """Takes a connection, which its other side may have left by now, and begins as a daemon without TLS does."""
    with closing(mute.accept()[0]) as taken, contextlib.suppress(OSError):
        taken.sendall(b"\x40\0\0\0 no TLS")
        taken.recv(1 << 16)


def test_a_daemon_that_begins_and_does_not_go_on_is_left_and_one_without_tls_is_told_apart(context):
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        daemon = f"localhost:{mute.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=r"timed out|in time"):
            WorkerSession(daemon, mine("x"), hold_nothing, timeout_s=0.1, tls=context)
        talks = threading.Thread(target=lambda: [talk(mute) for _ in range(2)])
        talks.start()
        with pytest.raises(UnreachableError, match=r"(?i)wrong[_ ]version"):
            WorkerSession(daemon, mine("x"), hold_nothing, timeout_s=LIMIT_S, tls=context)
        talks.join(LIMIT_S)


def test_tls_is_for_hosts_alone(context):
    with pytest.raises(SessionError, match="tls: expected host:port as the address, got unix:/here"):
        WorkerSession("unix:/here", mine("x"), hold_nothing, tls=context)
    with pytest.raises(SessionError, match="tls: expected host:port as the address, got unix:/here"):
        asyncio.run(AsyncWorkerSession("unix:/here", mine("x"), hold_nothing, tls=context).connect())


def test_what_a_worker_in_python_must_not_trust_is_told_by_option(certificate, tmp_path):
    layout = KvLayout(layers=1, heads=1, head_dim=4, block_tokens=4, dtype="f32")
    empty = tmp_path / "empty.pem"
    empty.touch()

    def fails(**given):
        with pytest.raises(splitcore.ConfigError) as told:
            Worker(Pool.shared(layout, 4), **{"connect": "127.0.0.1:1"} | given, name="w", role="mixed", model="m")
        return told.value.option, told.value.got

    assert fails(tls_name="localhost") == ("tls_name", "none")
    assert fails(tls_ca=empty) == ("tls_ca", f"{empty}: no certificate in it")
    assert fails(tls_ca=tmp_path / "none")[0] == "tls_ca"
    assert fails(tls_ca=certificate[0], connect="unix:/here")[0] == "tls_ca"
    assert fails(tls_ca=certificate[0], tls_name="no name") == ("tls_name", "no name")
