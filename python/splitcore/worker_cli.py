"""The command ``splitcore worker``."""

import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitcore._native import SplitcoreError
from splitcore.errors import wrong
from splitcore.options import option
from splitcore.service_options import trusting
from splitcore.units import size

if TYPE_CHECKING:
    from splitcore.engine.model import CausalLM

__all__ = ["worker"]

_place = partial(option, "Its place")
_model = partial(option, "The model")
_memory = partial(option, "KV")
_rules = partial(option, "Scheduling")

_ROLES = ("prompt", "token", "mixed")
_TRANSFERS = {"auto": None, "shm": "shm", "tcp": "tcp", "cuda-ipc": "cuda-ipc"}
_KV_MEMORY = "1GiB"


def worker(
    *,
    connect: Annotated[str, _place("ADDR", "Of the daemon's worker port: host:port or unix:/path.")],
    model: Annotated[Path, _model("DIR", "Folder with config.json and weights.")],
    role: Annotated[str, _place("NAME", "Its home pool: prompt, token or mixed.")] = "mixed",
    name: Annotated[str | None, _place("NAME", "Unique, and kept over restarts; by default new each time.")] = None,
    peer_listen: Annotated[
        str | None, _place("ADDR", "Where it takes other workers; by default where the daemon's network reaches it.")
    ] = None,
    secret_file: Annotated[Path | None, _place("FILE", "Shared secret of daemon and workers.")] = None,
    tls_ca: Annotated[Path | None, _place("FILE", "Speak TLS with the daemon; the certificates to trust, PEM.")] = None,
    tls_name: Annotated[str | None, _place("NAME", "In the daemon's certificate; by default the host.")] = None,
    event_log: Annotated[Path | None, _place("DIR", "Write down what its scheduler hears and does.")] = None,
    event_log_keep: Annotated[int | None, _place("N", "Segments of that, 64 MiB each, to keep, or all.")] = None,
    model_name: Annotated[str | None, _model("NAME", "As the daemon calls it; by default the folder's.")] = None,
    device: Annotated[str, _model("NAME", "cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str | None, _model("NAME", "f32, f16 or bf16; by default the file's.")] = None,
    threads: Annotated[int, _model("N", "Of PyTorch.")] = 1,
    blocks: Annotated[int | None, _memory("N", "KV blocks.")] = None,
    kv_memory: Annotated[str | None, _memory("SIZE", f"Of all KV blocks; {_KV_MEMORY} by default.")] = None,
    block_tokens: Annotated[int, _memory("N", "Tokens of a block.")] = 16,
    transfer: Annotated[str, _memory("NAME", "How KV is sent: auto, shm, tcp or cuda-ipc.")] = "auto",
    transfer_listen: Annotated[
        str | None,
        _memory("IP:PORT", "Where it takes KV by TCP, or none; by default as other hosts need it."),
    ] = None,
    transfer_limit_s: Annotated[float, _memory("S", "A transfer may take.")] = 20.0,
    batch_tokens_max: Annotated[int, _rules("N", "Prompt tokens and decodes in a pass.")] = 2048,
    batch_requests_max: Annotated[int, _rules("N", "Requests in a pass.")] = 512,
    prefill_chunk_tokens: Annotated[
        int | None, _rules("N", "Prompt tokens in a pass: longer prompts are computed in chunks. By default whole.")
    ] = None,
    report_interval_s: Annotated[float, _rules("S", "Between two reports.")] = 1.0,
    park_limit_s: Annotated[float, _rules("S", "Work may wait for room.")] = 30.0,
    orphan_limit_s: Annotated[float, _rules("S", "Work is kept without a daemon.")] = 120.0,
    leave_limit_s: Annotated[float, _rules("S", "After SIGTERM, to hand work over.")] = 30.0,
) -> None:
    """Run a model for a `splitcore serve` that has one, as one of its machines.

    It looks for its daemon until there is one. On SIGTERM what it holds goes on elsewhere, and it ends with exit status
    0 when it holds nothing any more, at most --leave-limit-s later; while it loads the model, at once.
    """
    _check(connect, peer_listen, transfer_listen, role, transfer)
    _check_tls(connect, tls_ca, tls_name)
    counts = {"threads": threads, "blocks": blocks, "block_tokens": block_tokens}
    for of, count in counts.items():
        if count is not None and count < 1:
            raise wrong(of, "at least 1", count)
    if blocks is not None and kv_memory is not None:
        raise wrong("kv_memory", "it or --blocks", "both")
    memory = size(kv_memory or _KV_MEMORY, "kv-memory")
    if not (model / "config.json").is_file():
        raise wrong("model", "a folder with a config.json", model)
    given: dict[str, Any] = {
        "connect": connect,
        "name": name or f"{role}-{socket.gethostname()}-{os.getpid()}",
        "role": role,
        "model": model_name or model.resolve().name,
        "secret": None if secret_file is None else secret_file.read_bytes(),
        "tls_ca": tls_ca,
        "tls_name": tls_name,
        "peer_listen": peer_listen,
        "transfer_listen": transfer_listen,
        "backend": _TRANSFERS[transfer],
        "event_log": event_log,
        "event_log_keep": event_log_keep,
        "transfer_limit_s": transfer_limit_s,
        "batch_tokens_max": batch_tokens_max,
        "batch_requests_max": batch_requests_max,
        "prefill_chunk_tokens": prefill_chunk_tokens,
        "report_interval_s": report_interval_s,
        "park_limit_s": park_limit_s,
        "orphan_limit_s": orphan_limit_s,
    }
    stops = _Stops()
    loaded = _load(model, device, dtype, threads)
    stops.holds_nothing = False
    count = blocks or memory // loaded.layout(block_tokens).block_bytes
    if count < 1:
        raise wrong("kv_memory", f"at least a block, {loaded.layout(block_tokens).block_bytes} bytes", memory)
    _serve(loaded, count, block_tokens, given, stops, leave_limit_s)


class _Stops:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.asked = False
        self.holds_nothing = True
        """As while it loads: nobody waits for anything of it, so it ends where it stands."""
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
        if self.holds_nothing:
            # Not by an exception, which an import may take for its own.
            os.write(2, b"splitcore worker: stopped while it loaded\n")
            os._exit(0)

    def __call__(self) -> bool:
        return self.asked


def _check(connect: str, peer_listen: str | None, transfer_listen: str | None, role: str, transfer: str) -> None:
    # All of this is checked again where it is used, but that is after a model has been loaded.
    if role not in _ROLES:
        raise wrong("role", ", ".join(_ROLES), role)
    if transfer not in _TRANSFERS:
        raise wrong("transfer", ", ".join(_TRANSFERS), transfer)
    for of, address in {"connect": connect, "peer_listen": peer_listen, "transfer_listen": transfer_listen}.items():
        if address is None or (of, address) == ("transfer_listen", "none"):
            continue
        host, _, port = address.rpartition(":")
        is_path = of != "transfer_listen" and address.startswith("unix:") and len(address) > len("unix:")
        if not is_path and not (host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise wrong(of, "IP:PORT or none" if of == "transfer_listen" else "host:port or unix:/path", address)


def _check_tls(connect: str, ca: Path | None, name: str | None) -> None:
    if ca is None:
        if name is not None:
            raise wrong("tls_name", "a --tls-ca with it", "none")
        return
    if connect.startswith("unix:"):
        raise wrong("tls_ca", "a --connect that is host:port", connect)
    trusting(ca)


def _tell(line: str) -> None:
    # In one piece, as what is native does.
    sys.stderr.write(f"splitcore worker: {line}\n")


def _load(folder: Path, device: str, dtype: str | None, threads: int) -> "CausalLM":
    from splitcore.engine import load_model

    _tell(f"loading {folder}")
    began = time.monotonic()
    loaded = load_model(folder, device=device, dtype=dtype)
    from torch import set_num_threads

    set_num_threads(threads)
    _tell(f"{loaded.layers} layers in {loaded.dtype} on {loaded.device}, loaded in {time.monotonic() - began:.1f} s")
    return loaded


def _serve(
    loaded: "CausalLM", blocks: int, block_tokens: int, given: dict[str, Any], stops: _Stops, leave_limit_s: float
) -> None:
    from splitcore._native import CudaPool
    from splitcore.engine import Engine
    from splitcore.transfer import KvPool
    from splitcore.worker import Worker, run

    layout = loaded.layout(block_tokens)
    if loaded.device.type == "cuda":
        on_device = CudaPool(layout, blocks, loaded.device.index)
        native, engine = on_device.pool, Engine(loaded, on_device)
    else:
        pool = KvPool(layout, blocks)
        native, engine = pool.native, Engine(loaded, pool)
    _tell(f"{blocks} KV blocks of {block_tokens} tokens, {blocks * layout.block_bytes / (1 << 20):.0f} MiB")
    how = "given-up"
    while how == "given-up" and not stops():
        worker = Worker(native, **given, context=loaded.context, vocabulary=loaded.vocabulary)
        try:
            _tell(f"{given['name']} takes other workers at {worker.peer_address}")
            how, why = run(worker, engine, stops, leave_limit_s)
            stats = worker.stats()
        finally:
            worker.close()
        if how == "refused":
            raise SplitcoreError(f"the daemon at {given['connect']} does not take this worker: {why}")
        _tell(f"{how}{': ' if why else ''}{why}; {_summary(stats)}")
    if how == "failed":
        raise typer.Exit(1)


def _summary(stats: dict[str, Any]) -> str:
    mean = stats["exposed_s"] / stats["transfers"] if stats["transfers"] else 0.0
    computed = f"{stats['passes']} passes, {stats['prefill_tokens']} prompt tokens, {stats['decode_tokens']} decoded"
    moved = f"{stats['transfers']} handoffs, {mean * 1e3:.1f} ms each after their prefill"
    return f"{computed} in batches of {stats['decode_batch_mean']:.1f}, {moved}"
