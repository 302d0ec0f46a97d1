"""The view of a service in a terminal, and the commands of who operates it."""

import dataclasses
import json
import re
import signal
import socket

import pytest

import splitcore
from serving import served
from splitcore import tables, top
from splitcore.client import (
    Ask,
    Counters,
    Decision,
    Handoff,
    MachineRow,
    NewMachine,
    Overview,
    PlacementClient,
    PoolView,
    RequestRow,
    Spread,
)
from terminal import terminal

EVIL = "\x1b]0;mine\x07\x1b[2J\x9b1m\r\n\u202e"


@pytest.fixture
def service():
    """A service with two machines, and its client."""
    with served("--lease-s", "0") as running:
        url = f"http://127.0.0.1:{running.port}"
        with PlacementClient(url, timeout_s=20) as client:
            client.join([NewMachine(name=name, role=role, kv_blocks=1000) for name, role in PAIR])
            yield running, url, client


PAIR = (("p0", "prompt"), ("t0", "token"))


def test_top_shows_pools_machines_and_decisions(cli):
    with served("--lease-s", "0") as running:
        url = f"http://127.0.0.1:{running.port}"
        with PlacementClient(url, timeout_s=20) as client:
            client.join([NewMachine(name=f"p{at}", role="prompt", kv_blocks=1000) for at in range(3)])
            client.join(NewMachine(name="t0", role="token", kv_blocks=1000))
            client.place(Ask(request_id=77, prompt_tokens=1500, max_new_tokens=9))
            placed = cli("top", url, "--once", "--machines", "3").stdout
            with pytest.raises(splitcore.SplitcoreError):
                client.place(Ask(request_id=78, prompt_tokens=900_000, max_new_tokens=9))
            rejected = cli("top", url, "--once").stdout
    for word in (
        "1 live, 0 wait",
        "placed 1",
        "prompt",
        "p0",
        "p2",
        "77",
        "p0 -> t0",
        "own, own",
        "and 1 machines more",
    ):
        assert word in placed
    assert "t0" in rejected
    assert "rejected: too_large" in rejected


def test_top_without_a_service_ends_with_2(cli):
    url = "http://127.0.0.1:1"
    assert f"GET /v1/overview at {url}: " in cli("top", url, "--once", code=2).stderr
    assert "--interval" in cli("top", url, "--interval", "0", code=2).stderr


def test_top_draws_again_and_again_and_outlives_the_service(service):
    running, url, client = service
    with terminal("-m", "splitcore.cli", "top", url, "--interval", "0.05", columns=100) as run:
        run.wait_for("0 live")
        client.place(Ask(request_id=77, prompt_tokens=1500, max_new_tokens=9))
        run.wait_for("1 live")
        client.end(77)
        at = run.wait_for("finished 1")
        running.end(signal.SIGTERM)
        at = run.wait_for("GET /v1/overview at", at)
        # The last frame stays below.
        run.wait_for("finished 1", at)
        run.type(b"\x03")
        assert run.end() == 0
    _left_as_found(run)


@pytest.mark.parametrize("how", ["sigterm", "closed"])
def test_top_leaves_the_terminal_as_it_was(how, service):
    _, url, _ = service
    with terminal("-m", "splitcore.cli", "top", url, "--interval", "0.05") as run:
        run.wait_for("0 live")
        if how == "closed":
            run.close()
        else:
            run.process.send_signal(signal.SIGTERM)
        assert run.end() == (129 if how == "closed" else 143)
    if how == "sigterm":
        _left_as_found(run)


def _left_as_found(run):
    # The screen of before, and a cursor.
    assert run.said.rfind("\x1b[?1049l") > run.said.rfind("\x1b[?1049h") >= 0
    assert run.said.rfind("\x1b[?25h") > run.said.rfind("\x1b[?25l") >= 0
    assert "Traceback" not in run.said


def overview(name, machines=3):
    """Everything, with the same text wherever somebody else chooses it."""
    row = MachineRow(
        name=name, url=name, role="prompt", pool="mixed", state="draining", legs=12_345,
        prompt_pending_tokens=1_234_567, kv_tokens=99, kv_capacity_tokens=100,
    )  # fmt: skip
    spread = Spread(1.0, 2.0, 0.5)
    why = {"prompt_step": "own", "token_step": "own", "prompt_load": 5, "token_load": 6}
    placed = Decision(age_ms=1, request_id=7, name=name, prompt=name, token=f"{name}1", runner_up=name, **why)
    return Overview(
        live=1, parked=0, pools=(PoolView("prompt", 3, spread, spread),), machines=(row,) * machines,
        decisions=(placed, dataclasses.replace(placed, rejected=name)),
        counters=Counters(**dict.fromkeys(Counters.__dataclass_fields__, 0)),
        handoffs=(Handoff(7, name, name, name, 100, name, 1.0, 1.0),),
    )  # fmt: skip


def drawn(view, width):
    return _captured(top.frame("http://127.0.0.1:8090", view), width)


def _captured(what, width):
    console = tables.console()
    console.width = width
    with console.capture() as capture:
        console.print(what)
    return capture.get()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_machine_takes_one_line(width):
    text = drawn(overview("prompt-worker-of-rack-17", machines=3), width)
    lines = [line for line in text.splitlines() if "12,345" in line]
    assert len(lines) == 3
    for line in lines:
        # Its name by both ends, its numbers whole, and a bar.
        assert re.search(r"^ *prompt\.\.ack-17 .* 1,234,567 +99% +█{4,20}$", line.rstrip()), line
    assert sum("█" in line for line in text.splitlines()) == 3


def test_what_comes_from_the_network_has_no_say_over_the_terminal():
    text = drawn(overview(EVIL), 200)
    assert not any(letter != "\n" and not letter.isprintable() for letter in text), repr(text)
    assert "\\x1b]0;" in text


def test_machines_and_drain(service, cli):
    _, url, client = service
    told = json.loads(cli("machines", url, "--json").stdout)
    assert [(row["name"], row["state"]) for row in told] == [("p0", "up"), ("t0", "up")]
    assert "p0 gets no more work" in cli("drain", "p0", url).stdout
    assert [row.state for row in client.machines()] == ["draining", "up"]
    shown = cli("machines", url).stdout
    assert re.search(r"p0 +prompt +draining +0 +0 +0%", shown), shown
    assert json.loads(cli("drain", "t0", url, "--json").stdout) == {"draining": True}
    assert "p0 gets work again" in cli("undrain", "p0", url).stdout
    assert [row.state for row in client.machines()] == ["up", "draining"]
    assert json.loads(cli("undrain", "t0", url, "--json").stdout) == {"draining": False}
    for verb in ("drain", "undrain"):
        assert "(404 " in cli(verb, "gone", url, code=2).stderr


def test_requests_are_listed(service, cli):
    _, url, client = service
    assert cli("requests", url).stdout.strip() == "0 live"
    for at in range(3):
        client.place(Ask(request_id=5 + at, prompt_tokens=600, max_new_tokens=9))
    client.progress(6, 4)
    page = client.requests(most=2)
    assert ([row.request_id for row in page.requests], page.live, page.next) == ([5, 6], 3, 7)
    shown = cli("requests", url, "--from", "6", "--most", "1").stdout
    assert re.search(r"^ ?6 +- +p0 -> t0 +layer-wise +- +4 *$", shown, re.MULTILINE), shown
    assert "3 live, more with --from 7" in shown
    told = json.loads(cli("requests", url, "--json").stdout)
    assert [row["request_id"] for row in told["requests"]] == [5, 6, 7]
    assert "most: expected 1 to 1000" in cli("requests", url, "--most", "0", code=2).stderr
    evil = RequestRow(7, "placed", 1, EVIL, EVIL, EVIL, 4, name=EVIL)
    assert "\x1b" not in _captured(top.request_table([evil]), 200)


def test_operating_nobody_ends_with_2(cli):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert f"GET /v1/machines at {url}: " in cli("machines", url, code=2).stderr
        assert f"POST /v1/machines/p0/drain at {url}: " in cli("drain", "p0", url, code=2).stderr
    assert "--timeout: expected more than 0 seconds" in cli("machines", url, "--timeout", "0", code=2).stderr
    assert "--url: expected http://host:port" in cli("machines", "there", code=2).stderr
