"""The whole service: a daemon, workers that run a model, clients, real sockets, and what goes wrong between them."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="PyTorch is in an environment of its own; see the Makefile")

import openai

import live_kit
from engine_pair import Reference
from splitcore.launch import Launch
from terminal import children, terminal, wait_gone

REQUESTS = 200
AT_ONCE = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Make a folder with a small random model."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return folder, Reference(live_kit.save(folder))


def fetch(launch, path):
    with urllib.request.urlopen(launch.url + path, timeout=30) as answer:  # noqa: S310
        return json.load(answer)


def all_is_back(launch, limit_s=120):
    """Wait until nothing is live and every block is free."""
    deadline = time.monotonic() + limit_s
    while True:
        check, machines = fetch(launch, "/v1/check"), fetch(launch, "/v1/machines")["machines"]
        held = [each for each in machines if each["legs"] or each["blocks"]["free"] != each["blocks"]["total"]]
        if check["live"] == 0 and not held:
            return check, machines
        assert time.monotonic() < deadline, (check, machines)
        time.sleep(0.05)


class Meddler:
    """Kills and restarts as the tokens that clients have had grow in number."""

    def __init__(self, launch, total, faults):
        self.launch, self.total, self.faults = launch, total, list(faults)
        self.heard, self.changed, self.done = 0, threading.Condition(), False
        self.failure = None

    def hear(self):
        with self.changed:
            self.heard += 1
            self.changed.notify_all()

    def run(self):
        try:
            for share, *names in self.faults:
                with self.changed:
                    self.changed.wait_for(lambda at=share: self.done or self.heard >= at * self.total)
                    if self.done:
                        return
                self.launch.kill(*names)
                for name in names:
                    if name == "service":
                        self.launch.start_service()
                    else:
                        self.launch.start_worker(name)
        except BaseException as error:
            self.failure = error

    def finish(self):
        with self.changed:
            self.done = True
            self.changed.notify_all()


@pytest.mark.timeout(900)
def test_kills_and_restarts_cost_no_acknowledged_request_and_no_token(model, tmp_path):
    folder, reference = model
    logs = tmp_path / "events"
    options = {
        "serve_options": [
            "--event-log",
            str(logs),
            "--grace-s",
            "3",
            "--rejoin-limit-s",
            "1",
            "--transfer",
            "layer-wise",
        ],
        # The longest prompts of these are computed in two chunks.
        "worker_options": ["--event-log", str(logs), "--blocks", "400", "--prefill-chunk-tokens", "100"],
    }
    with Launch(folder, prompt=2, token=2, folder=tmp_path, **options) as launch:
        launch.wait_ready()
        host = launch.url.split("//")[1]
        clients = [
            live_kit.Client(f"request-{at}", ask, host, cancel_after=3 if at % 10 == 9 else None)
            for at, ask in enumerate(live_kit.asks(REQUESTS))
        ]
        texts = {client.name: live_kit.expected(reference, client.ask) for client in clients}
        words = {name: sum(len(text.split()) for text, _ in of) for name, of in texts.items()}
        total = sum(min(client.cancel_after or words[client.name], words[client.name]) for client in clients)
        # The service first, so that it hears nothing of the worker's death.
        both = [(0.7, "service", "token-1"), (0.85, "service", "prompt-1")]
        faults = [(0.12, "token-0"), (0.3, "prompt-0"), (0.5, "service"), *both]
        meddler = Meddler(launch, total, faults)
        thread = threading.Thread(target=meddler.run)
        thread.start()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for client in clients:
                pool.submit(client.run, meddler.hear)
        meddler.finish()
        thread.join()
        assert meddler.failure is None
        launch.wait_ready()
        check, machines = all_is_back(launch)
        assert check["ok"], check
        assert len(machines) == 4
        assert all(status == 0 for status in launch.stop().values())
    for client in clients:
        assert not client.faults, (client.name, client.faults)
        told = list(zip([text.strip() for text in client.texts], client.finishes, strict=True))
        if client.finish == "cancelled":
            assert texts[client.name][0][0].startswith(told[0][0]), client.name
        else:
            assert told == texts[client.name], client.name
    assert sum(client.finish == "cancelled" for client in clients) >= REQUESTS // 20
    assert sum(client.reattached for client in clients) >= 5, "the daemon's death met no stream"
    replayed = subprocess.run(
        [sys.executable, "-m", "splitcore.cli", "replay", str(logs)], capture_output=True, text=True, check=False
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.fixture(scope="module")
def live(model):
    """A service with a prompt and a token worker, and what its model gives."""
    folder, reference = model
    with Launch(folder, prompt=1, token=1) as launch:
        launch.wait_ready()
        yield launch, reference


def official(launch):
    return openai.OpenAI(base_url=f"{launch.url}/v1", api_key="none", timeout=60, max_retries=0)


def test_the_official_client_streams_from_it(live):
    launch, reference = live
    client = official(launch)
    assert [model.id for model in client.models.list()] == ["tiny"]
    ask = live_kit.asks(2)[1]
    ((text, finish),) = live_kit.expected(reference, ask)
    asked = {"model": "tiny", "prompt": ask.tokens, "max_tokens": ask.outputs, "temperature": 0}
    whole = client.completions.create(**asked)
    assert (whole.choices[0].text.strip(), whole.choices[0].finish_reason) == (text, finish)
    assert whole.usage.prompt_tokens == len(ask.tokens)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices).strip() == text
    assert chunks[-1].usage == whole.usage
    said = [{"role": "user", "content": "w10 w11 w12"}]
    with client.chat.completions.stream(model="tiny", messages=said, max_tokens=8, seed=3) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
    again = client.chat.completions.create(model="tiny", messages=said, max_tokens=8, seed=3)
    assert "".join(pieces) == again.choices[0].message.content
    two = client.chat.completions.create(model="tiny", messages=said, max_tokens=8, seed=3, n=2)
    assert two.choices[0].message.content == again.choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="w10", max_tokens=1)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="tiny", prompt="w10", max_tokens=0)


@pytest.mark.timeout(300)
def test_the_demonstration_shows_what_its_clients_met_and_stops_at_ctrl_c(model, tmp_path):
    folder, _ = model
    pair = ("--prompt", "1", "--token", "1", "--keep")
    load = ("--requests", "3", "--rate", "5", "--prompt-max", "40", "--output-max", "4")
    command = ("-m", "splitcore.cli", "demo", "--model", str(folder), "--listen", "127.0.0.1:0", *pair, *load)
    with terminal(*command, columns=200, TMPDIR=str(tmp_path)) as run:
        run.wait_for("stays up until Ctrl-C")
        started = children(run.process.pid)
        assert len(started) == 3
        run.type(b"\x03")
        assert run.end() == 0, run.said
        wait_gone(started)
    assert "3 requests: 3 completed" in run.said
    # The three, and the question; what warmed the workers is not counted.
    assert "KV of 4 requests moved layer-wise (layer by layer during the prefill)" in run.said, run.said
    for name in ("prompt-0", "token-0"):
        assert f"{name}: stopped; " in run.said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["ctrl-c", "killed"])
def test_the_demonstration_ends_while_it_loads_the_model(how, model, tmp_path):
    folder, _ = model
    command = ("-m", "splitcore.cli", "demo", "--model", str(folder), "--listen", "127.0.0.1:0")
    with terminal(*command, columns=200, TMPDIR=str(tmp_path)) as run:
        run.wait_for("starting a service")
        while len(children(run.process.pid)) < 5:
            assert run.process.poll() is None, run.said
        started = children(run.process.pid)
        if how == "ctrl-c":
            run.type(b"\x03")
        else:
            run.process.kill()
        assert run.end() == (130 if how == "ctrl-c" else -9), run.said
        wait_gone(started)
    assert "error" not in run.said
    assert how == "killed" or list(tmp_path.iterdir()) == []


def test_the_page_shows_machines_handoffs_and_why_in_a_browser(live, tmp_path):
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if browser is None:
        assert not os.environ.get("CI"), "there is no chromium to open the page in"
        pytest.skip("there is no chromium")
    launch, _ = live
    official(launch).completions.create(model="tiny", prompt=list(range(3, 60)), max_tokens=4)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=4000"]
    home = ["--user-data-dir=" + str(tmp_path / "profile"), "--window-size=1300,1100"]

    def opened(*more):
        command = [browser, *flags, *home, *more, launch.url + "/"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    page = opened("--dump-dom")
    for shown in ["prompt-0", "token-0", "Last handoffs", "serialized", "landed", "prompt: own at load", "free"]:
        assert shown in page, shown
    picture = tmp_path / "page.png"
    opened(f"--screenshot={picture}")
    assert picture.stat().st_size > 10_000
