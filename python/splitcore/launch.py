"""A service and its workers as processes of this machine, started, watched and stopped together.

No process outlives its launcher, however that ends: orderly, by an exception, or killed (`splitcore.launched`). Each
has a process group of its own, so that Ctrl-C in a terminal comes to the launcher alone, which ends them in order.
"""

import contextlib
import fcntl
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from splitcore._native import SplitcoreError
from splitcore.errors import ProcessError

__all__ = ["Child", "Launch", "Role"]

Role = Literal["prompt", "token", "mixed"]

_SERVICE = "service"
_LISTENING = re.compile(r"listening on (https?://\S+)")
_LINES_KEPT, _LINES_TOLD = 400, 20
_POLL_S = 0.05
_FOLDER = "splitcore-launch-"


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
            command,
            # Nothing is written to it: its end of file says that nobody is there any more.
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(environment),
            process_group=0,
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
            ProcessError: If it ended, or did not say it in time; with its last words.
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

    def failed(self, what: str) -> ProcessError:
        """Make an error that carries its last words."""
        return ProcessError(f"{self.name} {what}", list(self.lines)[-_LINES_TOLD:])

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def end(self, number: int, limit_s: float) -> int:
        """Send a signal and wait for the end; after the limit it is killed.

        Returns:
            The exit status.
        """
        self.process.send_signal(number)
        return self.wait(limit_s)

    def wait(self, limit_s: float) -> int:
        """Wait for the end; after the limit, or at an exception, it is killed.

        Returns:
            The exit status.
        """
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        except BaseException:
            self.process.kill()
            raise
        self._reader.join()
        for stream in (self.process.stdin, self.process.stderr):
            if stream is not None:
                stream.close()
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
        listen: str = "127.0.0.1:0",
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
            listen: Address of the service; port 0 takes a free one.
            serve_options: More options of ``splitcore serve``.
            worker_options: More options of ``splitcore worker``.
            environment: Added to that of the processes.
        """
        self.model = model
        roles: list[tuple[Role, int]] = [("prompt", prompt), ("token", token), ("mixed", mixed)]
        self.roles: dict[str, Role] = {f"{role}-{at}": role for role, count in roles for at in range(count)}
        self.children: dict[str, Child] = {}
        self.url = ""
        self._kept = folder
        self._made: _Folder | None = None
        self._serve_options, self._worker_options = list(serve_options), list(worker_options)
        # One thread for each process: two workers on two cores have no more.
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **(environment or {})}
        self._listen = listen
        self._starts = 0
        self._is_ready = self._is_stopped = False
        # The kernel ends a child with the thread that started it, so there is one that stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="launch")

    def __enter__(self) -> Self:
        """Start the service, then the workers."""
        try:
            if self._kept is None:
                self._made = _Folder()
            self.start_service()
            for name in self.roles:
                self.start_worker(name)
        except BaseException:
            self.stop(limit_s=0)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop whatever still runs; at once, if it was never ready."""
        self.stop(60 if self._is_ready else 0)

    @property
    def folder(self) -> Path:
        """Where sockets and logs lie."""
        if self._kept is not None:
            return self._kept
        if self._made is None:
            raise SplitcoreError("there is no folder before the block begins")
        return self._made.path

    def _start(self, name: str, arguments: Sequence[str]) -> Child:
        return self._starter.submit(self._start_here, name, arguments).result()

    def _start_here(self, name: str, arguments: Sequence[str]) -> Child:
        # Known at once, so that nothing is left behind by an exception in the thread that waits.
        log = self.folder / f"{name}.log"
        child = self.children[name] = Child(name, self._command(arguments), self._environment, log)
        return child

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "splitcore.launched", str(os.getpid()), *arguments]

    def start_service(self, limit_s: float = 30) -> None:
        """Start the service, the second time at the address of the first; return when it listens."""
        again = self._starts > 0
        self._starts += 1
        # Nobody comes back to the first one.
        grace = [] if again or "--grace-s" in self._serve_options else ["--grace-s", "0"]
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
            ProcessError: If a process ended, or time is up.
        """
        deadline = time.monotonic() + limit_s
        for here in self._workers_here():
            if progress is not None:
                progress(here, len(self.roles))
            if here == len(self.roles):
                self._is_ready = True
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
        """End all processes: the service first, which finishes what runs, then all workers.

        An exception meanwhile, as of another Ctrl-C, kills what still runs.

        Returns:
            The exit status of each that was still running.
        """
        if self._is_stopped:
            return {}
        self._is_stopped = True
        try:
            # Whoever is being started is there after this.
            self._starter.submit(lambda: None).result()
            return self._stop(limit_s)
        finally:
            self._starter.shutdown(wait=False)
            for child in self.children.values():
                child.process.kill()
            if self._made is not None:
                self._made.remove()

    def _stop(self, limit_s: float) -> dict[str, int]:
        running = {name: child for name, child in self.children.items() if child.is_running}
        status = {}
        if _SERVICE in running:
            status[_SERVICE] = running.pop(_SERVICE).end(signal.SIGTERM, limit_s)
        for child in running.values():
            child.process.send_signal(signal.SIGTERM)
        status |= {name: child.wait(limit_s) for name, child in running.items()}
        for name in self.children.keys() - status.keys():
            self.children[name].wait(limit_s)
        return status


class _Folder:
    """A temporary folder that is swept by the next process that makes one, if its own was killed.

    It is locked for as long as its process lives, and has no name that is swept until then.
    """

    def __init__(self) -> None:
        """Make it, and sweep what others have left."""
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{_FOLDER}*"):
            _sweep(left)
        draft = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}", dir=parent))
        self._lock = _locked(draft)
        self.path = draft.rename(parent / draft.name.removeprefix("."))

    def remove(self) -> None:
        """Remove it with all that it holds."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sweep(left: Path) -> None:
    # Somebody else's is not ours to remove.
    with contextlib.suppress(OSError):
        if left.is_symlink() or left.stat().st_uid != os.getuid():
            return
        lock = _locked(left)
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder as this process; None where another one lives that has done so."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    return opened
