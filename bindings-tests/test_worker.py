"""The worker's command line and its loop, without an engine."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import splitcore
from splitcore._native import KvLayout, Pool, Worker
from splitcore.engine.plan import Ran, Sampling
from splitcore.units import OptionError, size
from splitcore.worker import run

GIVEN = {"--connect": "127.0.0.1:1", "--model": "here"}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--role", "both"), "--role: expected prompt, token, mixed, got both"),
        (("--connect", "nowhere"), "--connect: expected host:port or unix:/path, got nowhere"),
        (("--peer-listen", "host:99999"), "--peer-listen: expected host:port or unix:/path, got host:99999"),
        (("--transfer-listen", "unix:/here"), "--transfer-listen: expected IP:PORT or none, got unix:/here"),
        (("--transfer", "pigeon"), "--transfer: expected auto, shm, tcp, cuda-ipc, got pigeon"),
        (("--blocks", "0"), "--blocks: expected at least 1, got 0"),
        (("--blocks", "8", "--kv-memory", "1GiB"), "--kv-memory: expected it or --blocks, got both"),
        (("--kv-memory", "much"), "--kv-memory: expected a size as 2GiB, 512MiB or bytes, above zero, got much"),
        (("--threads", "0"), "--threads: expected at least 1, got 0"),
        (("--model", "there"), "--model: expected a folder with a config.json, got there"),
        (("--secret-file", "none"), "none: No such file or directory"),
        (("--tls-name", "here"), "--tls-name: expected a --tls-ca with it, got none"),
        (("--tls-ca", "none"), "--tls-ca: expected a file of certificates in PEM, got none: No such file or directory"),
        (
            ("--tls-ca", "here/config.json"),
            "--tls-ca: expected a file of certificates in PEM, got here/config.json: no certificate in it",
        ),
        (
            ("--connect", "unix:/here", "--tls-ca", "here/config.json"),
            "--tls-ca: expected a --connect that is host:port, got unix:/here",
        ),
    ],
)
@pytest.mark.usefixtures("model")
def test_bad_input_is_one_clear_error(cli, options, told):
    given = [word for pair in GIVEN.items() if pair[0] not in options for word in pair]
    done = cli("worker", *given, *options, code=2)
    assert done.stderr.splitlines() == [f"splitcore: error: {told}"]


@pytest.mark.usefixtures("model")
def test_sigterm_ends_it_while_it_loads_its_model(tmp_path):
    stub = tmp_path / "stub" / "torch"
    stub.mkdir(parents=True)
    # As an import that takes long, and that takes an exception for a reason to try something else.
    (stub / "__init__.py").write_text(
        "import sys, time\n"
        "try:\n    print('importing', file=sys.stderr, flush=True)\n    time.sleep(600)\nexcept BaseException: pass\n"
    )
    paths = os.pathsep.join([str(tmp_path / "stub"), str(Path(splitcore.__file__).parent.parent)])
    with subprocess.Popen(
        [sys.executable, "-m", "splitcore.cli", "worker", *(word for pair in GIVEN.items() for word in pair)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        said = iter(process.stderr)
        try:
            assert any("importing" in line for line in said)
            process.terminate()
            assert process.wait(20) == 0
            assert list(said) == ["splitcore worker: stopped while it loaded\n"]
        finally:
            process.kill()


def test_a_daemon_and_a_model_must_be_named(cli):
    assert "--connect" in cli("worker", code=2).stderr


def test_sizes_are_read():
    assert [size(text, "kv-memory") for text in ("2GiB", "1.5GB", "512 MiB", "4096")] == [
        2 << 30,
        1_500_000_000,
        512 << 20,
        4096,
    ]
    for text in ("", "-1", "0", "2GiB/s", "5Gb", "1e300GB"):
        with pytest.raises(OptionError):
            size(text, "kv-memory")


class Passes:
    """Stands for a native worker with these passes."""

    def __init__(self, *passes):
        self.passes, self.done, self.ended, self.failed = list(passes), [], None, None
        self.leaves = 0

    def leave(self):
        self.leaves += 1

    def next_pass(self, _):
        if not self.passes:
            self.ended = ("stopped", "")
            return None
        return self.passes.pop(0)

    def pass_done(self, batch, tokens):
        self.done.append((batch.number, tokens))

    def stop(self):
        return self.ended or ("stopped", "")

    def fail(self, reason):
        self.ended = self.failed = ("failed", reason)
        return self.ended


def batch(number, *spans):
    layers = []
    return SimpleNamespace(number=number, spans=list(spans), layers=layers, put_layer=lambda *put: layers.append(put))


class Engine:
    """Draws the sum of a span's tokens, and puts two layers."""

    def __init__(self):
        self.spans = []

    def run(self, spans):
        self.spans += spans
        for span in spans:
            for put in span.puts:
                for layer in range(2):
                    put.sender.put_layer(put.transfer, layer)
        return Ran({span.request: sum(span.tokens) for span in spans if span.sampling is not None})


def test_a_pass_becomes_spans_and_what_was_drawn_goes_back():
    first = batch(1, ([1, 2], 0, [7], None, 0, False), ([3, 4], 5, [8, 9], (0.5, 0.9, 42, [6]), 3, True))
    worker, engine = Passes(first, batch(2, ([5], 7, [8, 9], (0.0, 1.0, 0, []), 4, False))), Engine()
    assert run(worker, engine) == ("stopped", "")
    assert worker.done == [(1, [(1, 7)]), (2, [(0, 5)])]
    chunk, prompt, decode = engine.spans
    assert (chunk.tokens, chunk.start, chunk.blocks, chunk.sampling, chunk.puts) == ([1, 2], 0, [7], None, [])
    assert (prompt.start, prompt.sampling, prompt.output) == (
        5,
        Sampling(temperature=0.5, top_p=0.9, seed=42, forbidden=(6,)),
        3,
    )
    assert decode.sampling == Sampling()
    assert first.layers == [(1, 0), (1, 1)]


def test_an_engine_that_fails_is_told_to_the_daemon_and_raised():
    class Broken:
        def run(self, _):
            raise ValueError("no memory")

    worker = Passes(batch(4))
    with pytest.raises(ValueError, match="no memory"):
        run(worker, Broken())
    assert worker.failed == ("failed", "the engine fails pass 4: ValueError: no memory")


def test_a_worker_that_is_to_stop_says_so_once_and_goes_on_until_it_is_ended():
    worker = Passes(batch(1), batch(2))
    assert run(worker, Engine(), stopping=lambda: True) == ("stopped", "")
    assert (worker.leaves, [number for number, _ in worker.done]) == (1, [1, 2])


def test_a_worker_that_is_to_stop_takes_no_pass_after_its_limit():
    worker = Passes(batch(1))
    assert run(worker, Engine(), stopping=lambda: True, leave_limit_s=0) == ("stopped", "")
    assert (worker.leaves, worker.done) == (1, [])


def pool():
    return Pool.shared(KvLayout(layers=1, heads=1, head_dim=4, block_tokens=4, dtype="f32"), 4)


def test_a_native_worker_looks_for_its_daemon_until_it_is_stopped():
    worker = Worker(pool(), connect="127.0.0.1:1", name="w", role="mixed", model="m")
    assert worker.peer_address.startswith("127.0.0.1:")
    assert worker.next_pass(0.05) is None
    assert worker.ended is None
    assert worker.stats()["passes"] == 0
    assert worker.stop() == worker.ended == ("stopped", "")
    assert worker.next_pass() is None
    worker.close()
    with pytest.raises(splitcore.SplitcoreError, match="the worker is closed"):
        worker.next_pass()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("role", "both"),
        ("connect", "nowhere"),
        ("name", ""),
        ("backend", "pigeon"),
        ("transfer_listen", "here"),
        ("batch_tokens_max", 0),
        ("park_limit_s", 0),
    ],
)
def test_a_native_worker_names_the_option_that_is_wrong(option, value):
    given = {"connect": "127.0.0.1:1", "name": "w", "role": "mixed", "model": "m"} | {option: value}
    with pytest.raises(splitcore.ConfigError) as told:
        Worker(pool(), **given)
    assert told.value.option.removesuffix("_ns").removesuffix("_s") == option.removesuffix("_s")
