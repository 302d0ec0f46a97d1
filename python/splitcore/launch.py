"""A service and its workers as processes of this machine, started, watched and stopped together."""

import contextlib
import http
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from splitcore._native import SplitcoreError

__all__ = ["Child", "Launch", "Role"]

Role = Literal["prompt", "token", "mixed"]

_SERVICE = "service"
_LISTENING = re.compile(r"listening on (https?://\S+)")
_LINES_KEPT = 400
_POLL_S = 0.05


class Child:
    """A process and the end of what it said."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it.

        Args:
            name: For messages.
            command: Program and arguments.
            environment: Of the process.
            log: File that its standard error is added to.
        """
        self.name = name
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._said = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(  # noqa: S603 - our own command line
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(environment)
        )
        self._reader = threading.Thread(target=self._read, args=[self.process.stderr or (), log], daemon=True)
        self._reader.start()

    def _read(self, stream: Iterable[str], log: Path) -> None:
        with log.open("a", encoding="utf-8") as file:
            for line in stream:
                file.write(line)
                file.flush()
                with self._said:
                    self.lines.append(line.rstrip("\n"))
                    self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    def wait_for(self, pattern: re.Pattern[str], limit_s: float) -> re.Match[str]:
        """Wait until it has said something.

        Raises:
            SplitcoreError: If it ended, or did not say it in time; with its last words.
        """
        deadline = time.monotonic() + limit_s
        with self._said:
            while True:
                found = next((match for line in self.lines if (match := pattern.search(line))), None)
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise self.failed("ended" if self._ended else f"did not start within {limit_s:g} s")
                self._said.wait(left)

    def failed(self, what: str) -> SplitcoreError:
        """Make an error that carries its last words."""
        said = "\n".join(list(self.lines)[-20:]) or "(it said nothing)"
        return SplitcoreError(f"{self.name} {what}:\n{said}")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def end(self, number: int, limit_s: float) -> int:
        """Send a signal and wait for the end; after the limit it is killed.

        Returns:
            The exit status.
        """
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return status


class Launch:
    """A service with workers, for as long as the block lasts.

    For example::

        with Launch(folder, prompt=2, token=2) as launch:
            launch.wait_ready()
            ...                                           # launch.url answers

    Sockets and logs lie in a folder that is removed at the end, unless one is given.
    """

    def __init__(
        self,
        model: Path,
        *,
        prompt: int = 0,
        token: int = 0,
        mixed: int = 0,
        folder: Path | None = None,
        serve_options: Sequence[str] = (),
        worker_options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Plan it; nothing is started yet.

        Args:
            model: Folder of the model.
            prompt: Workers of the prompt pool.
            token: Workers of the token pool.
            mixed: Workers of the mixed pool.
            folder: For sockets and logs.
            serve_options: More options of ``splitcore serve``.
            worker_options: More options of ``splitcore worker``.
            environment: Added to that of the processes.
        """
        self.model = model
        roles: list[tuple[Role, int]] = [("prompt", prompt), ("token", token), ("mixed", mixed)]
        self.roles: dict[str, Role] = {f"{role}-{at}": role for role, count in roles for at in range(count)}
        self.children: dict[str, Child] = {}
        self.url = ""
        self._made = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="splitcore-")) if folder is None else folder
        self._serve_options, self._worker_options = list(serve_options), list(worker_options)
        # One thread for each process: two workers on two cores have no more.
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **(environment or {})}
        self._listen = "127.0.0.1:0"
        self._starts = 0

    def __enter__(self) -> Self:
        """Start the service, then the workers."""
        try:
            self.start_service()
            for name in self.roles:
                self.start_worker(name)
        except BaseException:
            self.stop(limit_s=0)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop whatever still runs."""
        self.stop()

    def _start(self, name: str, arguments: Sequence[str]) -> Child:
        command = [sys.executable, "-m", "splitcore.cli", *arguments]
        child = Child(name, command, self._environment, self.folder / f"{name}.log")
        self.children[name] = child
        return child

    def start_service(self, limit_s: float = 30) -> None:
        """Start the service, the second time at the address of the first; return when it listens."""
        again = self._starts > 0
        self._starts += 1
        # Nobody comes back to the first one.
        grace = [] if again else ["--grace-s", "0"]
        where = ["--listen", self._listen, "--workers", f"unix:{self.folder / 'workers'}"]
        child = self._start(_SERVICE, ["serve", "--model", str(self.model), *where, *grace, *self._serve_options])
        self.url = child.wait_for(_LISTENING, limit_s)[1]
        self._listen = self.url.split("//")[1]

    def start_worker(self, name: str) -> None:
        """Start a worker, which connects when it has loaded the model."""
        options = ["--role", self.roles[name], "--name", name, "--connect", f"unix:{self.folder / 'workers'}"]
        self._start(name, ["worker", "--model", str(self.model), *options, *self._worker_options])

    def kill(self, *names: str) -> None:
        """End processes without warning, as a crash would: all at once, in this order."""
        for name in names:
            self.children[name].process.kill()
        for name in names:
            self.children[name].end(signal.SIGKILL, 30)

    def wait_ready(self, limit_s: float = 120, progress: Callable[[int, int], None] | None = None) -> None:
        """Wait until every worker has registered and the service takes requests.

        Args:
            limit_s: At most.
            progress: Called with how many workers are there, of how many.

        Raises:
            SplitcoreError: If a process ended, or time is up.
        """
        deadline = time.monotonic() + limit_s
        for here in self._workers_here():
            if progress is not None:
                progress(here, len(self.roles))
            if here == len(self.roles):
                return
            for child in self.children.values():
                if not child.is_running:
                    raise child.failed(f"ended with {child.process.returncode}")
            if time.monotonic() > deadline:
                late = next(iter(self.children.values()))
                raise late.failed(f"had {here} of {len(self.roles)} workers after {limit_s:g} s")
            time.sleep(_POLL_S)

    def _workers_here(self) -> Iterator[int]:
        while True:
            here = 0
            with contextlib.closing(http.client.HTTPConnection(self._listen, timeout=10)) as connection:
                try:
                    connection.request("GET", "/readyz")
                    answer = connection.getresponse()
                    is_ready = bool(answer.read()) and answer.status == http.HTTPStatus.OK
                    connection.request("GET", "/v1/machines")
                    machines = json.loads(connection.getresponse().read())["machines"]
                    here = sum(each["name"] in self.roles and each["state"] == "up" for each in machines)
                except OSError:
                    is_ready = False
            yield here if is_ready else min(here, len(self.roles) - 1)

    def stop(self, limit_s: float = 60) -> dict[str, int]:
        """End all processes: the service first, which finishes what runs.

        Returns:
            The exit status of each that was still running.
        """
        running = [child for child in self.children.values() if child.is_running]
        running.sort(key=lambda child: child.name != _SERVICE)
        status = {child.name: child.end(signal.SIGTERM, limit_s) for child in running}
        for child in self.children.values():
            if child.name not in status:
                child.end(signal.SIGKILL, limit_s)
        if self._made:
            shutil.rmtree(self.folder, ignore_errors=True)
        return status
