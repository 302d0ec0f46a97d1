"""The placement service beside its peers, each from PyPI in an environment of its own, in one run and in turns.

- Dynamo's selection service (`ai-dynamo-runtime`): select-and-reserve + free. It chooses one worker a call, of all that
  are registered; ours chooses a pair.
- `sglang-router` in its prefill-decode mode: a proxy, so what it is measured by is completions a second through it to
  workers that answer at once. Another job, and so only a figure to hold ours against.
"""

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import daemon
from table import Row, Skipped

RATIO_AIM = {64: 1.0, 4096: 5.0}
ROUTED = 32
STARTS_WITHIN_S = 60


def measure(root: Path, repetitions: int) -> list[Row | Skipped]:
    target = daemon.build(root)
    rows: list[Row | Skipped] = []
    dynamo = environment(root, "dynamo")
    for machines in RATIO_AIM:
        rows += (
            [Skipped(f"beside Dynamo, {machines:,} machines", dynamo)]
            if isinstance(dynamo, str)
            else beside(target, dynamo, machines, repetitions)
        )
    sglang = environment(root, "sglang")
    rows.append(Skipped("through sglang-router", sglang) if isinstance(sglang, str) else routed(target, sglang))
    return rows


def environment(root: Path, name: str) -> Path | str:
    """Python of a peer's environment, made if need be; or why there is none."""
    pins = root / "benches/peers" / f"{name}.txt"
    key = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "splitcore"
    folder = cache / f"peer-{name}-{key}"
    python = folder / "bin/python"
    if not (folder / ".made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--requirement", pins]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        (folder / ".made").touch()
    return python


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def peer(command: list[Any], port: int, variables: dict[str, str] | None = None) -> Iterator[tuple[int, str]]:
    """Process id and address of a peer that takes connections."""
    environ = {**os.environ, **(variables or {})}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ) as process:
        try:
            until = time.monotonic() + STARTS_WITHIN_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until:
                        raise
                    time.sleep(0.05)
            yield process.pid, f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def beside(target: Path, python: Path, machines: int, repetitions: int) -> list[Row | Skipped]:
    asked = ["--machines", machines, "--connections", daemon.CONNECTIONS, "--seconds", daemon.SECONDS]
    ours, theirs = [], []
    for _ in range(repetitions):
        with daemon.service(target) as (_, address):
            ours.append(daemon.load(target, address, *asked))
        port = free_port()
        command = [python, "-m", "dynamo.select_service", "--port", port, "--threads", 2]
        with peer([str(part) for part in command], port, {"DYN_ROUTER_USE_KV_EVENTS": "false"}) as (pid, address):
            run = daemon.load(target, address, "--api", "dynamo", *asked)
            theirs.append(run | {"rss_bytes": daemon.resident_bytes(pid)})

    def middle(runs: list[Any], name: str) -> float:
        return median(run[name] for run in runs)

    ratio = median(our["pairs_per_s"] / their["pairs_per_s"] for our, their in zip(ours, theirs, strict=True))
    notes = ", ".join(
        [
            f"{middle(ours, 'pairs_per_s'):,.0f} pairs/s to {middle(theirs, 'pairs_per_s'):,.0f}",
            f"p99 of a pair {middle(ours, 'pair_p99_us'):.0f} us to {middle(theirs, 'pair_p99_us'):.0f}",
            f"registered in {middle(ours, 'register_s'):.3f} s to {middle(theirs, 'register_s'):.3f}",
            f"theirs {middle(theirs, 'rss_bytes') / 2**20:.0f} MiB resident",
        ]
    )
    details = {"ours": ours, "theirs": theirs}
    name = f"service beside Dynamo's, {machines:,} machines"
    return [Row(name, ratio, "x", aim=RATIO_AIM[machines], at_least=True, notes=notes, details=details)]


def routed(target: Path, python: Path) -> Row:
    """Completions through sglang-router to workers that answer at once."""
    with workers(2 * ROUTED) as ports:
        port, metrics = free_port(), free_port()
        command: list[Any] = [python, "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        command += ["--policy", "round_robin", "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics]
        for at in ports[:ROUTED]:
            command += ["--prefill", f"http://127.0.0.1:{at}"]
        for at in ports[ROUTED:]:
            command += ["--decode", f"http://127.0.0.1:{at}"]
        with peer([str(part) for part in command], port) as (pid, address):
            asked = ["--api", "completions", "--connections", daemon.CONNECTIONS]
            # Until it has found its workers healthy, it answers 503.
            until = time.monotonic() + STARTS_WITHIN_S
            while not daemon.tries(target, address, *asked, "--seconds", 1):
                if time.monotonic() > until:
                    raise TimeoutError("sglang-router does not route")
            run = daemon.load(target, address, *asked, "--seconds", daemon.SECONDS)
            notes = f"p99 {run['place_p99_us']} us, {daemon.resident_bytes(pid) / 2**20:.0f} MiB resident"
    name = f"sglang-router 0.3.2, {ROUTED} + {ROUTED} workers that answer at once"
    return Row(name, run["pairs_per_s"], "completions/s", notes=notes, details={"run": run})


class Answers(asyncio.Protocol):
    """A worker that answers every request with the same 400 bytes."""

    BODY = b'{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"' + b"x" * 230
    BODY += b'","finish_reason":"length"}],"usage":{"prompt_tokens":512,"completion_tokens":1,"total_tokens":513}}'
    HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.held = b""

    def data_received(self, data: bytes) -> None:
        self.held += data
        while (head := self.held.find(b"\r\n\r\n")) >= 0:
            at = self.held[:head].lower().find(b"content-length: ")
            length = int(self.held[at + 16 : head].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.held) < head + 4 + length:
                return
            self.held = self.held[head + 4 + length :]
            self.transport.write(self.HEAD + self.BODY)


@contextmanager
def workers(count: int) -> Iterator[list[int]]:
    """Ports of workers, all in one thread."""
    loop, ports, ready = asyncio.new_event_loop(), [], threading.Event()

    async def serve() -> None:
        for _ in range(count):
            server = await loop.create_server(Answers, "127.0.0.1", 0)
            ports.append(server.sockets[0].getsockname()[1])
        ready.set()

    def run() -> None:
        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(STARTS_WITHIN_S)
    try:
        yield ports
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
