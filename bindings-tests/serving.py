"""A `splitcore serve` process for tests, and a client of it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 20


class Served:
    """The process, its log and one kept connection."""

    def __init__(
        self, process: "subprocess.Popen[str]", port: int, log: list[str], connection: http.client.HTTPConnection
    ) -> None:
        self.process = process
        self.port = port
        self.log = log
        self.connection = connection

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {} if body is None else {"content-type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if answer.headers["content-type"] == "application/json" else text

    def add_pair(self) -> None:
        machines = [
            {"name": name, "role": role, "kv_blocks": 1000} for name, role in [("p0", "prompt"), ("t0", "token")]
        ]
        assert self.call("POST", "/v1/machines", machines) == (201, {"joined": 2})

    def end(self, number: int) -> int:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@contextmanager
def served(*options: str) -> Iterator[Served]:
    """Run the command on a free port until the block ends."""
    command = [sys.executable, "-m", "splitcore.cli", "serve", "--listen", "127.0.0.1:0", *options]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent / "python"), "NO_COLOR": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        log: list[str] = []
        listening = threading.Event()

        def read(lines: Iterator[str]) -> None:
            for line in lines:
                sys.stderr.write(line)
                log.append(line)
                if "listening on" in line:
                    listening.set()
            listening.set()

        reader = threading.Thread(target=read, args=[iter(process.stderr)])
        reader.start()
        try:
            assert listening.wait(LIMIT_S), "it does not listen"
            port = next(int(line.rsplit(":", 1)[1]) for line in log if "listening on" in line)
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
                yield Served(process, port, log, connection)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(LIMIT_S)
            reader.join(LIMIT_S)
