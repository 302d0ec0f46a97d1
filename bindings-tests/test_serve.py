import http.client
import inspect
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import splitcore
from certificates import made
from serving import LIMIT_S, served
from splitcore import _native, serve_cli

DOCS = Path(__file__).parent.parent / "docs" / "daemon.md"


def test_a_request_is_placed_served_and_ended_by_http() -> None:
    with served() as service:
        assert service.call("GET", "/readyz")[0] == 503
        service.add_pair()
        assert service.call("GET", "/readyz") == (200, {"status": "ready"})
        status, placed = service.call("POST", "/v1/placements", {"prompt_tokens": 100, "max_new_tokens": 10})
        assert (status, placed["prompt"]["name"], placed["token"]["name"]) == (201, "p0", "t0")
        path = f"/v1/placements/{placed['request_id']}"
        assert service.call("POST", f"{path}/prefill_done") == (200, {"applied": True})
        assert service.call("POST", f"{path}/progress", {"tokens": 4}) == (200, {"applied": True})
        assert service.call("DELETE", path) == (200, {"applied": True})
        assert service.call("DELETE", path) == (200, {"applied": False})
        status, check = service.call("GET", "/v1/check")
        assert (status, check["ok"], check["live"], check["counters"]["finished"]) == (200, True, 0, 1)
        assert service.end(signal.SIGTERM) == 0


def test_after_sigterm_it_finishes_what_lives_and_exits_with_0() -> None:
    with served() as service:
        service.add_pair()
        ask = {"request_id": 1, "prompt_tokens": 100, "max_new_tokens": 10}
        assert service.call("POST", "/v1/placements", ask)[0] == 201
        service.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + LIMIT_S
        while service.call("GET", "/readyz")[0] != 503:
            assert time.monotonic() < deadline, "it stays ready"
        assert service.call("POST", "/v1/placements", ask | {"request_id": 2})[0] == 503
        assert service.process.poll() is None
        assert service.call("DELETE", "/v1/placements/1") == (200, {"applied": True})
        assert service.process.wait(LIMIT_S) == 0


def test_ctrl_c_ends_it_with_130_and_no_traceback() -> None:
    with served() as service:
        assert service.end(signal.SIGINT) == 130
    assert not any("Traceback" in line for line in service.log)


def test_a_second_signal_ends_it_although_something_lives() -> None:
    with served() as service:
        service.add_pair()
        service.call("POST", "/v1/placements", {"prompt_tokens": 100, "max_new_tokens": 10})
        service.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + LIMIT_S
        while service.call("GET", "/readyz")[0] != 503:
            assert time.monotonic() < deadline, "it stays ready"
        assert service.end(signal.SIGTERM) == 0


def test_over_tls_and_with_a_secret(tmp_path: Path) -> None:
    cert, key = made(tmp_path, "IP:127.0.0.1")
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n", encoding="utf-8")
    with served("--tls-cert", str(cert), "--tls-key", str(key), "--secret-file", str(secret)) as service:
        context = ssl.create_default_context(cafile=str(cert))
        kept = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=LIMIT_S, context=context)
        with closing(kept) as connection:
            for headers, expected in [({}, 401), ({"authorization": "Bearer open sesame"}, 200)]:
                connection.request("GET", "/v1/loads", headers=headers)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == expected
        # Plain HTTP gets nowhere, and hurts nobody.
        with pytest.raises((http.client.HTTPException, OSError)):
            service.call("GET", "/healthz")
        assert service.end(signal.SIGTERM) == 0


def _fails(*options: str) -> str:
    command = [sys.executable, "-m", "splitcore.cli", "serve", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 2, ended
    return ended.stderr


def test_a_wrong_option_is_told_in_one_line() -> None:
    assert "--kv-fill-max: expected 0 to 1, got 1.5" in _fails("--kv-fill-max", "1.5")
    for option, given, known in [("--policy", "fifo", "jsq"), ("--mixed-return", "soon", "idle")]:
        told = _fails(option, given)
        assert told.startswith(f"splitcore: error: {option}: ")
        assert given in told
        assert known in told
    assert "--seed: expected a whole number" in _fails("--seed", "-1")
    assert "--listen: nowhere: " in _fails("--listen", "nowhere")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"error: --listen: {address}: " in _fails("--listen", address)


def test_the_native_call_refuses_what_it_does_not_know() -> None:
    with pytest.raises(splitcore.SplitcoreError, match="unknown field `colour`"):
        _native.serve({"colour": "red"})
    with pytest.raises(splitcore.SplitcoreError, match="drain_s: "):
        _native.serve({"drain_s": "long"})
    with pytest.raises(splitcore.ConfigError) as caught:
        _native.serve({"body_timeout_s": 0.0})
    assert caught.value.option == "body_timeout_s"


def test_the_page_of_the_docs_has_every_option_and_its_default() -> None:
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| ([^|]*?) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    told = {
        name.replace("_", "-"): each.default for name, each in inspect.signature(serve_cli.serve).parameters.items()
    }
    assert rows.keys() == told.keys()
    for name, default in told.items():
        assert rows[name].strip("`") == ("none" if default is None else str(default)), name


def test_the_calls_of_the_docs_page_do_what_it_says() -> None:
    """Every curl line runs, in order, and answers what stands under it."""
    blocks = re.findall(r"```console\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    calls = [(at, line.removeprefix("$ ")) for at, line in enumerate(lines) if line.startswith("$ curl ")]
    assert len(calls) >= 12
    with served() as service:
        for at, line in calls:
            command = shlex.split(line.replace("localhost:8090", f"127.0.0.1:{service.port}"))
            ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert ended.returncode == 0, (line, ended.stderr)
            assert ended.stdout.strip() == lines[at + 1].strip(), line
        assert service.call("GET", "/v1/check")[1]["ok"]
