"""The clients of the placement service, against the service itself."""

import asyncio
import json
import socket
import threading
from contextlib import closing

import pytest

import splitcore
from serving import served
from splitcore.client import (
    AnswerError,
    Ask,
    AsyncPlacementClient,
    CostKnot,
    Costs,
    MachineReport,
    NewMachine,
    PlacementClient,
    ServiceError,
    UnreachableError,
)

LIMIT_S = 20
PAIR = [
    NewMachine(name="p0", role="prompt", kv_blocks=1000, url="http://p0:1"),
    NewMachine(name="t0", role="token", kv_blocks=1000),
]
ASK = Ask(prompt_tokens=1500, max_new_tokens=100)


@pytest.fixture(scope="module")
def service():
    with served("--lease-s", "0", "--event-wait-max-s", "10") as running:
        yield f"http://127.0.0.1:{running.port}"


@pytest.fixture
def client(service):
    """A client, and a service in which nothing is left of the test before."""
    with PlacementClient(service, timeout_s=LIMIT_S) as made:
        yield made
        for row in made.machines():
            made.lose(row.name)
        for placed in made.events().events:
            if placed.request_id is not None:
                made.end(placed.request_id, "cancelled")


def test_a_requests_life(client):
    assert client.readyz() == "no_machines"
    assert client.join(PAIR) == 2
    assert client.readyz() == "ready"
    placement = client.place(ASK)
    assert (placement.prompt.name, placement.prompt.url, placement.token.name) == ("p0", "http://p0:1", "t0")
    assert (placement.is_whole, placement.attempt, placement.lease_s) == (False, 1, None)
    assert placement.transfer in ("serialized", "layer-wise")
    assert (placement.why.prompt_step, placement.why.runner_up) == ("own", None)
    live = client.show(placement.request_id)
    assert (live.state, live.delivered, live.placement.request_id) == ("placed", 0, placement.request_id)
    for said in (client.prefill_done, client.source_released, client.renew):
        assert said(placement.request_id)
        assert not said(placement.request_id, attempt=7)
    assert client.progress(placement.request_id, 12, attempt=1)
    assert client.show(placement.request_id).delivered == 12
    assert client.end(placement.request_id, "finished")
    assert not client.end(placement.request_id)


def test_a_dry_run_books_nothing(client):
    client.join(PAIR)
    assert client.place(ASK, dry_run=True).prompt.name == "p0"
    assert client.overview().live == 0


def test_many_are_answered_one_by_one(client):
    client.join(PAIR)
    placed, refused = client.place_batch([ASK, Ask(prompt_tokens=900_000, max_new_tokens=1)])
    assert (placed.status, placed.placement.token.name, placed.error) == (201, "t0", None)
    assert (refused.status, refused.placement, refused.error.code) == (422, None, "too_large")
    client.end(placed.placement.request_id)


def test_machines_come_report_and_go(client):
    costs = Costs((CostKnot(1, 10), CostKnot(2048, 90)), (CostKnot(1, 5),), 1, 2048)
    client.join(NewMachine(name="a/b", role="mixed", kv_blocks=64, link_bytes_per_s=10**9, costs=costs))
    (row,) = client.machines()
    assert (row.name, row.pool, row.state, row.kv_capacity_tokens, row.blocks) == ("a/b", "mixed", "up", 1024, None)
    assert client.report([MachineReport(machine="a/b", kv_tokens=100), MachineReport(machine="x")]).unknown == ("x",)
    assert [load.kv_tokens for load in client.loads() if load.state == "up"] == [100]
    assert isinstance(client.drain("a/b"), bool)
    with pytest.raises(ServiceError) as caught:
        client.join(NewMachine(name="a/b", role="mixed", kv_blocks=64))
    assert (caught.value.status, caught.value.code) == (409, "duplicate_machine")
    lost = client.lose("a/b")
    assert (lost.placed, lost.parked, lost.failed) == ((), (), ())
    assert client.machines() == ()


def test_what_happens_without_a_call_is_told(client):
    client.join(PAIR)
    placement = client.place(ASK)
    since = client.events().next
    waiting = threading.Timer(0.05, client.lose, ["t0"])
    waiting.start()
    told = client.events(since, wait_s=LIMIT_S / 2)
    waiting.join(LIMIT_S)
    (event,) = told.events
    assert (event.type, event.placement.attempt, event.placement.is_whole) == ("placed", 2, True)
    assert (told.missed, told.next) == (0, event.seq + 1)
    client.end(placement.request_id, "cancelled")


def test_what_is_refused_says_why(client):
    with pytest.raises(ServiceError, match="no machine") as caught:
        client.place(ASK)
    error = caught.value
    assert isinstance(error, splitcore.SplitcoreError)
    assert (error.status, error.code, error.retry_after) == (503, "no_machine", 1.0)
    with pytest.raises(ServiceError) as caught:
        client.place(Ask(prompt_tokens=0, max_new_tokens=1))
    assert (caught.value.status, caught.value.param, caught.value.retry_after) == (400, "prompt_tokens", None)
    with pytest.raises(ServiceError) as caught:
        client.show(123_456)
    assert caught.value.code == "unknown_request"


def test_limits_of_classes_and_what_can_be_looked_at(client):
    client.join(PAIR)
    limits = client.set_class(3, ttft_s=1.5)
    assert (limits.class_, limits.ttft_s, limits.tbt_s) == (3, 1.5, None)
    client.set_class(3)
    placement = client.place(ASK)
    overview = client.overview()
    assert [pool.pool for pool in overview.pools] == ["prompt", "token", "mixed"]
    assert overview.pools[0].queue_tokens.max == 1500
    assert overview.decisions[0].request_id == placement.request_id
    assert (overview.handoffs, overview.counters.placed >= 1) == (None, True)
    client.end(placement.request_id)
    books = client.check()
    assert (books.ok, books.fault, books.live) == (True, None, 0)
    assert client.healthz() == "ok"
    assert "splitcore" in client.metrics()


def test_the_clients_have_a_method_for_each_call(client):
    described = client.openapi()["paths"]
    operations = {one["operationId"] for path in described.values() for one in path.values() if "operationId" in one}
    names = {
        "".join(part if at == 0 else part.title() for at, part in enumerate(name.split("_")))
        for name in dir(PlacementClient)
    }
    # The page is for people, and the calls of a service with workers of its own are OpenAI's.
    others = {"page", "health"}
    assert {
        one for one in operations if one not in names and one not in others and not _is_openai(described, one)
    } == set()
    public = {name for name in dir(PlacementClient) if not name.startswith("_")} - {"close"}
    assert public == {name for name in dir(AsyncPlacementClient) if not name.startswith("_")} - {"close"}


def _is_openai(described, operation):
    paths = [
        path for path, calls in described.items() if any(one.get("operationId") == operation for one in calls.values())
    ]
    return all(path.startswith(("/v1/completions", "/v1/chat", "/v1/models", "/v1/requests")) for path in paths)


def test_a_client_keeps_its_connection():
    def answer_on_one():
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            for _ in range(5):
                while lines.readline().strip():
                    pass
                connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"status":"ok"}')

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=answer_on_one)
        thread.start()
        with PlacementClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=LIMIT_S) as client:
            assert [client.healthz() for _ in range(5)] == ["ok"] * 5
        thread.join(LIMIT_S)


@pytest.mark.usefixtures("client")
def test_the_asyncio_client_does_the_same(service):
    async def life():
        async with AsyncPlacementClient(service, timeout_s=LIMIT_S) as mine:
            assert await mine.join(PAIR) == 2
            placed = await asyncio.gather(*(mine.place(ASK) for _ in range(20)))
            assert len({placement.request_id for placement in placed}) == 20
            ended = await asyncio.gather(*(mine.end(placement.request_id) for placement in placed))
            assert all(ended)
            with pytest.raises(ServiceError) as caught:
                await mine.show(1 << 40)
            assert caught.value.status == 404
            return await mine.check()

    assert asyncio.run(life()).live == 0


def test_a_secret_is_asked_for(tmp_path):
    (tmp_path / "secret").write_text("open sesame\n", encoding="utf-8")
    with served("--secret-file", str(tmp_path / "secret")) as running:
        url = f"http://127.0.0.1:{running.port}"
        with PlacementClient(url, secret="open sesame", timeout_s=LIMIT_S) as client:
            assert client.machines() == ()
        with PlacementClient(url, timeout_s=LIMIT_S) as client, pytest.raises(ServiceError) as caught:
            client.machines()
    assert (caught.value.status, caught.value.code) == (401, "wrong_secret")


def test_nobody_there_and_no_answer_are_errors_of_their_own():
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with PlacementClient(url, timeout_s=0.1) as client, pytest.raises(UnreachableError, match="GET /healthz at "):
            client.healthz()
    with PlacementClient(url, timeout_s=LIMIT_S) as client, pytest.raises(UnreachableError):
        client.healthz()


@pytest.mark.parametrize("url", ["127.0.0.1:8090", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_address_is_refused(url):
    for kind in (PlacementClient, AsyncPlacementClient):
        with pytest.raises(splitcore.ConfigError, match="url: expected http://host:port, got"):
            kind(url)


@pytest.mark.parametrize("answer", [b"no", b"{}", json.dumps({"status": 3}).encode()])
def test_an_answer_that_is_none_is_an_error_of_its_own(answer):
    def be_wrong():
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=be_wrong)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with PlacementClient(url, timeout_s=LIMIT_S) as client, pytest.raises(AnswerError, match="answer"):
            client.healthz()
        thread.join(LIMIT_S)
