"""A NIXL agent over one registered pool: its messages, its progress, and who of its peers still lives.

NIXL moves bytes only while both sides call it. There is no progress thread of its own, which would spin: whoever waits
here makes progress meanwhile, with naps that grow, and a thread does so as long as a sender has writes under way.
"""

import base64
import contextlib
import importlib
import json
import logging
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitcore._native import HandshakeError, Pool, SplitcoreError, TransferError, TransferKey, new_incarnation

__all__ = [
    "Agent",
    "Alive",
    "Gone",
    "Message",
    "Naps",
    "available",
    "handshake_error",
    "key_of",
    "numbers",
    "shared_agent",
    "transfer_error",
    "where",
]

# With or without the package that chooses one.
_PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13")
_NAP_MIN_S, _NAP_MAX_S = 50e-6, 1e-3
# Each step takes up to 8 KiB of a stream's buffer of a few MB; without anything to take it is a microsecond.
_DRAIN = 2000
# A thread that has nothing to send looks this often whether it is told to stop.
_IDLE_S = 0.05
_DRAM = "DRAM"

Message = dict[str, Any]


class Gone(Exception):  # noqa: N818
    """A peer does not take messages any more."""


def _api() -> ModuleType:
    """Import NIXL, and keep its chatter off standard output.

    Raises:
        HandshakeError: If no NIXL package can be imported.
    """
    why = []
    for package in _PACKAGES:
        try:
            api = importlib.import_module(f"{package}._api")
        except ImportError as error:
            why.append(str(error))
            continue
        if not os.environ.get("NIXL_LOG_LEVEL"):
            logging.getLogger("nixl").setLevel(logging.WARNING)
        return api
    raise handshake_error("no-backend", f"NIXL cannot be imported (pip install --no-deps nixl-cu12): {'; '.join(why)}")


def available() -> str | None:
    """Say what keeps NIXL from being used, or None where nothing does."""
    try:
        _api()
    except HandshakeError as error:
        return str(error)
    return None


def handshake_error(kind: str, text: str) -> HandshakeError:
    """Make the exception that the native half would."""
    error = HandshakeError(text)
    error.kind, error.field = kind, None
    return error


def transfer_error(kind: str, text: str, key: TransferKey | None = None, layer: int | None = None) -> TransferError:
    """Make the exception that the native half would."""
    error = TransferError(text)
    error.kind, error.key, error.layer = kind, key, layer
    return error


def numbers(key: TransferKey) -> list[int]:
    """Write a transfer's name into a message."""
    return [key.request, key.slot, key.generation]


def key_of(message: Message) -> TransferKey:
    """Take the transfer that a message is about; the inverse of writing its three numbers."""
    return TransferKey(*message["key"])


def where() -> Message:
    """Say which process this is, so that a peer on the same host can see it die."""
    return {
        "host": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "pids": str(Path("/proc/self/ns/pid").readlink()),
        "pid": os.getpid(),
        "start": _started(os.getpid()),
    }


def _started(pid: int) -> int | None:
    """When a process began: with the number, it names the process for good."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


class Alive:
    """Sees whether a process of this host has died; of any other process it knows nothing."""

    def __init__(self, at: Message) -> None:
        """Watch the process that `where` described."""
        here = where()
        self._fd: int | None = None
        self.is_dead = False
        self.is_near = at.get("host") == here["host"]
        if any(at.get(field) != here[field] for field in ("host", "pids")):
            return
        try:
            self._fd = os.pidfd_open(int(at["pid"]))
        except (OSError, KeyError, TypeError, ValueError):
            self.is_dead = True
        # Taken after the descriptor: had the number been given to another process before, this tells.
        if self._fd is not None and _started(int(at["pid"])) != at.get("start"):
            self.is_dead = True

    def look(self) -> bool:
        """Say whether it is known to be dead."""
        if not self.is_dead and self._fd is not None:
            watched = select.poll()
            watched.register(self._fd, select.POLLIN)
            self.is_dead = bool(watched.poll(0))
        return self.is_dead

    def close(self) -> None:
        """Stop watching."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Naps:
    """How long to sleep when nothing happened: longer each time."""

    def __init__(self, within: float) -> None:
        """Begin a wait of at most so many seconds."""
        self._deadline = time.monotonic() + within
        self._nap = _NAP_MIN_S

    def next(self) -> float | None:
        """Give the next nap in seconds, or None when the time is up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return None
        self._nap, nap = min(2 * self._nap, _NAP_MAX_S), self._nap
        return min(nap, left)


_shared: "dict[int, Agent]" = {}
_sharing = threading.Lock()


class _Peer(NamedTuple):
    hear: Callable[[str, Message], None]
    progress: Callable[[], bool]


class Agent:
    """One NIXL agent and the pool registered with it. Safe to share between threads."""

    def __init__(self, pool: Pool) -> None:
        """Register the pool.

        Raises:
            HandshakeError: If NIXL is not there, or cannot begin.
        """
        self.api = _api()
        if pool.address is None:
            raise handshake_error("no-backend", "NIXL needs a pool in this process' memory")
        self.pool = pool
        self.lock = threading.RLock()
        self.name = f"splitcore-{new_incarnation():016x}"
        self.uses = 0
        self._peers: dict[int, _Peer] = {}
        self._graveyard: list[Any] = []
        self._met: Counter[str] = Counter()
        self._working = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None
        try:
            config = self.api.nixl_agent_config(enable_prog_thread=False)
            self._agent = self.api.nixl_agent(self.name, config)
            self._registered = self._agent.register_memory([(pool.address, pool.bytes, 0, "")], _DRAM)
        except Exception as error:
            raise handshake_error("no-backend", f"NIXL cannot begin: {type(error).__name__}: {error}") from error

    def metadata(self) -> str:
        """Say how this agent is reached, as text."""
        return base64.b64encode(self._agent.get_agent_metadata()).decode("ascii")

    def meet(self, metadata: str) -> str:
        """Take in how a peer is reached; gives its name here.

        Raises:
            Gone: If it is not a way to reach one.
        """
        with self.lock, self._gone():
            name = self._agent.add_remote_agent(base64.b64decode(metadata))
            name = name.decode() if isinstance(name, bytes) else str(name)
            self._met[name] += 1
            return name

    def forget(self, name: str, *, cut: bool = False) -> None:
        """Cut the connection to a peer when nobody here needs it any more, or even so."""
        with self.lock:
            self._met[name] -= 1
            if (self._met[name] <= 0 or cut) and self._met.pop(name, None) is not None:
                with contextlib.suppress(Exception):
                    self._agent.remove_remote_agent(name)

    def tell(self, name: str, message: Message) -> None:
        """Send a message, which has no order with writes.

        Raises:
            Gone: If the peer takes none.
        """
        with self.lock, self._gone():
            self._agent.send_notif(name, json.dumps(message, separators=(",", ":")).encode())

    @contextlib.contextmanager
    def _gone(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise Gone(f"{type(error).__name__}: {error}") from error

    def write(self, name: str, base: int, copies: NDArray[np.uint64], message: Message | None) -> Any:
        """Begin a one-sided write; the message arrives after its bytes. Gives a handle for `is_done`.

        Args:
            name: The peer.
            base: Where its pool begins.
            copies: Rows of place here, place there, bytes.
            message: What it hears afterwards.

        Raises:
            Gone: If the peer is gone.
            TransferError: If the peer has not registered all of it.
        """
        local, remote = np.zeros((2, len(copies), 3), dtype=np.uint64)
        local[:, 0], remote[:, 0] = copies[:, 0] + np.uint64(self.pool.address or 0), copies[:, 1] + np.uint64(base)
        local[:, 1] = remote[:, 1] = copies[:, 2]
        notification = b"" if message is None else json.dumps(message, separators=(",", ":")).encode()
        with self.lock:
            try:
                to = self._agent.get_xfer_descs(remote, _DRAM)
                handle = self._agent.initialize_xfer(
                    "WRITE", self._agent.get_xfer_descs(local, _DRAM), to, name, notification
                )
            except Exception as error:
                if type(error).__name__ == "nixlNotFoundError":
                    raise transfer_error(
                        "refused", f"the peer has not registered all of this memory ({error})"
                    ) from error
                raise Gone(f"{type(error).__name__}: {error}") from error
            try:
                with self._gone():
                    if self._agent.transfer(handle) == "ERR":
                        raise Gone("the write failed")
            except Gone:
                self.bury(handle)
                raise
            return handle

    def is_done(self, handle: Any) -> bool:
        """Say whether a write is complete.

        Raises:
            Gone: If it failed.
        """
        with self.lock, self._gone():
            state = self._agent.check_xfer_state(handle)
        if state == "ERR":
            raise Gone("the write failed")
        return bool(state == "DONE")

    def bury(self, handle: Any) -> None:
        """Give a write back, at once or when NIXL lets go of it."""
        with self.lock:
            self._graveyard.append(handle)
            self._graveyard = [handle for handle in self._graveyard if not self._released(handle)]

    @staticmethod
    def _released(handle: Any) -> bool:
        try:
            handle.release()
        except Exception:
            return False
        return True

    def join(self, life: int, hear: Callable[[str, Message], None], progress: Callable[[], bool]) -> None:
        """Take part: hear messages to an incarnation, and be called at every progress."""
        with self.lock:
            self._peers[life] = _Peer(hear, progress)

    def leave(self, life: int) -> None:
        """Take part no longer."""
        with self.lock:
            self._peers.pop(life, None)

    def progress(self) -> bool:
        """Hand out what has come, and let everyone go on; says whether anyone has work under way."""
        with self.lock:
            self._take_in()
            busy = [peer.progress() for peer in list(self._peers.values())]
            return any(busy)

    def drain(self) -> None:
        """Take in everything that a dead peer has left in the connection, bytes for the pool among it."""
        with self.lock:
            for _ in range(_DRAIN):
                self._take_in()

    def _take_in(self) -> None:
        for name, messages in self._news().items():
            for message in messages:
                self._hand_out(name, message)

    def _news(self) -> dict[str, list[bytes]]:
        if not self.uses:
            return {}
        try:
            news: dict[str, list[bytes]] = self._agent.get_new_notifs()
        except Exception:
            # A broken connection is told to whoever uses it.
            logging.getLogger(__name__).warning("NIXL gave no news", exc_info=True)
            return {}
        return news

    def _hand_out(self, name: str, message: bytes) -> None:
        try:
            said = json.loads(message)
            peer = self._peers.get(said["to"])
            if peer is not None:
                peer.hear(name, said)
        except (ValueError, KeyError, TypeError, SplitcoreError, Gone):
            # Not a message of ours, or of a peer that is not there any more; it changes nothing.
            logging.getLogger(__name__).warning("a message of %s was not taken", name, exc_info=True)

    def work(self) -> None:
        """Have progress made, by a thread, until nobody has work under way."""
        with self.lock:
            if self._thread is None and self.uses:
                self._thread = threading.Thread(target=self._work, name="kv-nixl", daemon=True)
                self._thread.start()
            self._working.notify_all()

    def _work(self) -> None:
        while True:
            naps = Naps(float("inf"))
            while self.progress():
                time.sleep(naps.next() or _NAP_MAX_S)
            with self.lock:
                if not self.uses:
                    return
                self._working.wait(_IDLE_S)

    def close(self) -> None:
        """Deregister the memory, when nobody uses the agent any more."""
        with _sharing:
            self.uses -= 1
            if self.uses > 0:
                return
            _shared.pop(id(self.pool), None)
        with self.lock:
            self._working.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self.lock, contextlib.suppress(Exception):
            self._agent.deregister_memory(self._registered)
            self._graveyard.clear()
            del self._agent


def shared_agent(pool: Pool) -> Agent:
    """Give the agent of a pool, the same for all who send from it or receive into it; each closes it once."""
    with _sharing:
        agent = _shared.get(id(pool))
        if agent is None:
            agent = _shared[id(pool)] = Agent(pool)
        agent.uses += 1
        return agent
