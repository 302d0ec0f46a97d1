"""Load against a service on loopback."""

import json
import re
import signal
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import splitcore
from certificates import made
from serving import served
from splitcore import load
from splitcore.load.plan import Request
from splitcore.load.report import Seen, quantiles, summarise
from terminal import terminal

WORKLOAD = {"trace": "azure-conv", "rate": 200.0, "duration_s": 1.0, "seed": 3}
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:46.{at:03d}0000,{tokens},{outputs}\n"
    for at, (tokens, outputs) in enumerate([(5, 3), (7, 1), (900, 4), (2, 90)])
)


class Service(BaseHTTPRequestHandler):
    """Gives as many words as it is asked for; each instance answers as its server's `script` says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._answer(200, {"data": [{"id": "words-1"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append((self.path, body, self.headers.get("authorization")))
        what = self.server.script(number, body)
        if what == "evil":
            self._answer(400, {"error": {"code": "\x1b]0;mine\x07", "message": "\x9b2J\n\u202e"}})
        elif what == "busy":
            self._answer(429, {"error": {"code": "overloaded", "message": "full"}})
        elif what == "wrong":
            self._answer(400, {"error": {"code": None, "type": "invalid_request_error", "message": "no"}})
        else:
            self._stream(body, what)

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, body, what):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for at in range(body["max_tokens"]):
            if what == "mute":
                self.server.go_on.wait(20)
            if what == "broken" and at == 1:
                return
            if what == "error" and at == 1:
                self._event({"error": {"code": "worker_lost", "message": "lost"}})
                return
            last = "length" if at + 1 == body["max_tokens"] else None
            text = {"delta": {"content": " w"}} if "messages" in body else {"text": " w"}
            self._event({"choices": [{"index": 0, "finish_reason": last, **text}]})
        if what == "counts":
            self._event({"choices": [], "usage": {"completion_tokens": 2 * body["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event):
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def serving(script=lambda *_: "words"):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.daemon_threads = True
    server.script, server.bodies, server.lock, server.go_on = script, [], threading.Lock(), threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.go_on.set()
        server.shutdown()
        thread.join(20)
        server.server_close()


def target(url, **other):
    return load.Target(url=url, **({"model": "words-1", "timeout_s": 20} | other))


def test_every_request_of_the_workload_is_sent_once_with_its_lengths():
    told = []
    with serving() as (server, url):
        limits = {"prompt_max": 50, "output_max": 5}
        summary = load.run(target(url), WORKLOAD, **limits, progress=lambda done, total: told.append((done, total)))
    simulated = splitcore.simulate(unsplit="40xdgx-h100", **WORKLOAD).requests
    expected = sorted((min(50, row["prompt_tokens"]), min(5, row["output_tokens"])) for row in simulated)
    assert sorted((len(body["prompt"]), body["max_tokens"]) for _, body, _ in server.bodies) == expected
    assert summary["requests"] == dict.fromkeys(splitcore.schema.OUTCOMES, 0) | {
        "submitted": len(expected), "completed": len(expected),
    }  # fmt: skip
    assert summary["output_tokens"] == sum(outputs for _, outputs in expected)
    assert summary["gaps_s"]["count"] == sum(outputs - 1 for _, outputs in expected)
    assert (told[-1], len(told)) == ((len(expected), len(expected)), len(expected))
    assert 0 < summary["ttft_s"]["p50"] <= summary["e2e_s"]["p50"] <= summary["e2e_s"]["max"]


def test_arrivals_do_not_wait_for_answers():
    with serving(lambda number, _: "mute" if number == 0 else "words") as (server, url):
        seen = threading.Event()

        def go_on(done, total):
            # All others are through while the first still waits.
            if done == total - 1:
                seen.set()
                server.go_on.set()

        summary = load.run(target(url), WORKLOAD, max_requests=20, output_max=2, progress=go_on)
    assert seen.is_set()
    assert summary["requests"]["completed"] == 20


def test_a_trace_is_replayed_as_token_ids_or_words(tmp_path):
    (tmp_path / "azure.csv").write_text(TRACE)
    workload = {"trace": str(tmp_path / "azure.csv"), "seed": 1}
    with serving() as (server, url):
        load.run(target(url, vocab=30), workload, prompt_max=20)
        load.run(target(url, prompts="words", secret="open"), workload, prompt_max=20)
        load.run(target(url, call="chat", ignore_eos=True), workload, output_max=3)
    ids, words, chats = (sorted(server.bodies[at : at + 4], key=str) for at in (0, 4, 8))
    assert sorted(len(body["prompt"]) for _, body, _ in ids) == [2, 5, 7, 20]
    assert all(10 <= token < 30 for _, body, _ in ids for token in body["prompt"])
    assert sorted(len(body["prompt"].split()) for _, body, _ in words) == [2, 5, 7, 20]
    assert {secret for _, _, secret in words} == {"Bearer open"}
    assert {path for path, _, _ in chats} == {"/v1/chat/completions"}
    assert sorted(len(body["messages"][0]["content"].split()) for _, body, _ in chats) == [2, 5, 7, 900]
    assert all(body["min_tokens"] == body["max_tokens"] <= 3 for _, body, _ in chats)


def test_what_did_not_complete_counts_as_infinitely_late():
    script = {0: "busy", 1: "wrong", 2: "broken", 3: "error"}
    with serving(lambda number, _: script.get(number, "words")) as (_, url):
        workload = {"trace": "azure-conv", "rate": 50.0, "seed": 2}
        summary = load.run(target(url), workload, max_requests=8, output_max=3, slo_ttft_s=20.0)
    counts = summary["requests"]
    assert (counts["rejected"], counts["failed"], counts["completed"]) == (1, 3, 4)
    assert set(summary["errors"]) == {
        "429 overloaded", "400 invalid_request_error", "the stream broke off", "stream: worker_lost",
    }  # fmt: skip
    assert summary["attainment"] == 0.5
    for latency in ("ttft_s", "e2e_s"):
        # Linear between the fourth and the fifth of eight, which is late for ever.
        assert summary[latency] == dict.fromkeys(("mean", "p50", "p90", "p99", "max"))


def test_tokens_are_counted_by_the_service_if_it_counts():
    with serving(lambda *_: "counts") as (_, url):
        summary = load.run(target(url), WORKLOAD, max_requests=3, output_max=4)
    assert summary["output_tokens"] == 2 * (summary["gaps_s"]["count"] + 3)


def test_silence_is_a_failure_where_a_limit_is_set():
    with serving(lambda *_: "mute") as (_, url):
        summary = load.run(target(url, timeout_s=0.2), WORKLOAD, max_requests=2)
    assert summary["errors"] == {"timeout": 2}


def test_nobody_there_is_a_failure_of_each_request():
    with serving() as (_, url):
        pass
    summary = load.run(target(url), WORKLOAD, max_requests=3)
    assert summary["requests"]["failed"] == 3
    assert list(summary["errors"]) == ["ConnectError: All connection attempts failed"]


@pytest.mark.parametrize(
    ("option", "value"), [("max_requests", 0), ("prompt_max", 0), ("output_max", -1), ("rate", 0.0), ("trace", "x.csv")]
)
def test_what_cannot_be_is_refused(option, value):
    ours = {option: value} if option.endswith(("requests", "max")) else {}
    with pytest.raises(splitcore.SplitcoreError, match=option if option != "trace" else "x.csv"):
        load.run(target("http://127.0.0.1:1"), WORKLOAD | ({} if ours else {option: value}), **ours)


def test_the_numbers_are_those_of_the_simulator():
    finite = [0.1 * at for at in range(1, 12)]
    assert quantiles([]) == dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
    got = quantiles(reversed(finite))
    assert got == pytest.approx({"mean": 0.6, "p50": 0.6, "p90": 1.0, "p99": 1.09, "max": 1.1})
    late = quantiles([*finite, float("inf")])
    assert late == {"mean": None, "p50": pytest.approx(0.65), "p90": pytest.approx(1.09), "p99": None, "max": None}
    # A whole rank does not touch its neighbour.
    assert quantiles([1.0, 2.0, float("inf")])["p50"] == 2.0


def test_latencies_are_from_the_planned_arrival():
    one = Seen(Request(0, 1.0, 5, 3), sent_s=1.5, outcome="completed", events_s=[2.0, 2.5, 4.0], ended_s=4.0)
    one.output_tokens = 3
    single = Seen(Request(1, 2.0, 5, 1), sent_s=2.0, outcome="completed", events_s=[2.5], ended_s=2.5, output_tokens=1)
    summary = summarise([one, single], url="u", model="m", trace="t", seed=0, slo_tbt_s=0.9)
    assert (summary["ttft_s"]["max"], summary["e2e_s"]["max"]) == (1.0, 3.0)
    assert (summary["tbt_s"]["max"], summary["gaps_s"]["count"], summary["gaps_s"]["max"]) == (1.0, 2, 1.5)
    assert (summary["sent_late_s"], summary["duration_s"], summary["rate_rps"]) == (0.5, 3.0, 1.0)
    assert summary["attainment"] == 0.5


def test_the_command_prints_the_simulators_report(cli, tmp_path):
    with serving() as (server, url):
        run = ("--rate", "100", "--max-requests", "20", "--output-max", "3", "--slo-ttft", "20")
        done = cli("load", f"{url}/v1/", *run, "--out", "load.json")
    assert done.stderr == ""
    for word in (
        "words-1",
        "azure-conv",
        "20 requests: 20 completed",
        "TTFT [ms]",
        "TBT [ms]",
        "E2E [s]",
        "p99",
        "100.0%",
    ):
        assert word in done.stdout
    summary = json.loads((tmp_path / "load.json").read_text())
    assert set(summary) == set(load.LoadSummary.__annotations__)
    assert (summary["requests"]["completed"], len(server.bodies)) == (20, 20)


def test_the_command_says_what_is_wrong(cli):
    with serving() as (_, url):
        assert "--call: expected completions or chat, got x" in cli("load", url, "--call", "x", code=2).stderr
        assert "--rate" in cli("load", url, code=2).stderr
        assert "--url: expected http://host:port, got x" in cli("load", "x", "--rate", "1", code=2).stderr
    error = cli("load", url, "--rate", "1", "--max-requests", "1", code=2).stderr
    assert "expected a list of models" in error
    assert "--model" in error


def test_the_command_says_how_many_failed_and_why_and_ends_with_1(cli):
    run = ("--rate", "100", "--max-requests", "5", "--output-max", "3")
    for script, said, code in [
        (lambda number, _: "words" if number else "wrong", "400 invalid_request_error: no", 1),
        (lambda *_: "wrong", "400 invalid_request_error: no", 1),
        # Turned away is no failure, as long as somebody is served.
        (lambda number, _: "words" if number else "busy", "429 overloaded: full", 0),
        (lambda *_: "busy", "429 overloaded: full", 1),
    ]:
        with serving(script) as (_, url):
            done = cli("load", url, *run, code=code)
        assert "the first error" in done.stdout
        assert said in done.stdout
    with serving(lambda number, _: "wrong" if number in (1, 3) else "words") as (_, url):
        done = cli("load", url, *run, "--out", "-", code=1)
    summary = json.loads(done.stdout)
    assert (summary["requests"]["failed"], summary["errors"]) == (2, {"400 invalid_request_error": 2})
    with serving() as (_, url):
        pass
    done = cli("load", url, *run, "--model", "any", code=1)
    assert "5 requests: 0 completed, 5 failed" in done.stdout
    assert "ConnectError" in done.stdout


def test_the_rate_is_the_one_that_was_asked_for(cli):
    with serving() as (_, url):
        done = cli("load", url, "--rate", "50", "--max-requests", "5", "--output-max", "1", "--out", "-")
        table = cli("load", url, "--rate", "50", "--max-requests", "5", "--output-max", "1")
    summary = json.loads(done.stdout)
    assert summary["rate_rps"] == 50
    assert 0 < summary["arrivals_s"] < summary["duration_s"]
    assert "rate 50/s" in table.stdout
    assert "arrivals over" in table.stdout


def test_what_a_service_says_has_no_say_over_the_terminal(cli):
    with serving(lambda *_: "evil") as (_, url):
        done = cli("load", url, "--rate", "50", "--max-requests", "1", "--model", "\x1b[2Jmodel", code=1)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\\x1b]0;mine" in done.stdout


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
def test_an_interrupted_load_tells_what_was_sent(how):
    with serving(lambda number, _: "words" if number < 3 else "mute") as (server, url):
        command = ("-m", "splitcore.cli", "load", url, "--rate", "50", "--output-max", "2")
        with terminal(*command, columns=100) as run:
            while len(server.bodies) < 5:
                assert run.process.poll() is None, run.said
            if how == "ctrl-c":
                run.type(b"\x03")
            else:
                run.process.send_signal(signal.SIGTERM)
            assert run.end() == (130 if how == "ctrl-c" else 143), run.said
    counts = re.findall(r"(\d+) requests: (\d+) completed, (\d+) unfinished", run.said)
    assert len(counts) == 1, run.said
    sent, completed, unfinished = map(int, counts[0])
    assert sent == completed + unfinished >= 5
    assert completed <= 3
    assert "Traceback" not in run.said
    # What was drawn is away, and the cursor is there.
    assert run.said.count("\x1b[?25l") == run.said.count("\x1b[?25h")


def test_load_and_top_trust_the_certificate_that_they_are_given(cli, tmp_path):
    cert, key = made(tmp_path / "tls", "IP:127.0.0.1")
    other, _ = made(tmp_path / "other", "IP:127.0.0.1")
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    with served("--tls-cert", str(cert), "--tls-key", str(key), "--secret-file", str(secret)) as running:
        url = f"https://127.0.0.1:{running.port}"
        given = ("--secret-file", secret)
        assert "0 live" in cli("top", url, "--once", *given, "--tls-ca", cert).stdout
        assert "no machine" in cli("machines", url, *given, "--tls-ca", cert).stdout
        for command in (("top", url, "--once"), ("load", url, "--rate", "1")):
            assert "certificate verify failed" in cli(*command, *given, "--tls-ca", other, code=2).stderr
            assert "certificate verify failed" in cli(*command, *given, code=2).stderr
        for wrong in (secret, "none"):
            error = cli("machines", url, "--tls-ca", wrong, code=2).stderr
            assert "--tls-ca: expected a file of certificates" in error
        # A service without a model of its own has nothing to load, but that is what it answers.
        answered = cli("load", url, "--rate", "1", *given, "--tls-ca", cert, code=2).stderr
        assert "404" in answered
        assert "certificate" not in answered


def test_the_certificates_of_ssl_cert_file_are_trusted(cli, tmp_path, monkeypatch):
    cert, key = made(tmp_path / "tls", "IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with served("--tls-cert", str(cert), "--tls-key", str(key)) as running:
        url = f"https://127.0.0.1:{running.port}"
        assert "0 live" in cli("top", url, "--once").stdout
        assert "404" in cli("load", url, "--rate", "1", code=2).stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "No such file"), (b"", "empty"), (b"two\nlines", "one line of ASCII"), (b"\xff", "not UTF-8")],
)
def test_a_secret_that_is_none_is_an_error_of_its_option(content, expected, cli, tmp_path):
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    error = cli("load", "http://127.0.0.1:1", "--rate", "1", "--secret-file", "secret", code=2).stderr
    assert "--secret-file: expected a file with a secret" in error
    assert expected in error
