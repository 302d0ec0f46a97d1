"""The command ``splitcore serve``."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from splitcore import _native
from splitcore.errors import wrong
from splitcore.options import option

__all__ = ["serve"]

_service = partial(option, "Service")
_limit = partial(option, "Limits")
_rules = partial(option, "Scheduling")
_model = partial(option, "Model")


def serve(
    *,
    listen: Annotated[str, _service("ADDR", "Address to listen on; port 0 takes a free one.")] = "127.0.0.1:8090",
    secret_file: Annotated[Path | None, _service("FILE", "Shared secret that every request must bear.")] = None,
    model: Annotated[Path | None, _model("DIR", "Give tokens by workers of its own, that run this.")] = None,
    model_name: Annotated[str | None, _model("NAME", "What it is called; by default its folder's name.")] = None,
    workers: Annotated[str, _model("ADDR", "Where workers connect: host:port, or unix:/path.")] = "127.0.0.1:8091",
    grace_s: Annotated[float, _model("S", "For workers of an earlier service to come back, after the start.")] = 5.0,
    rejoin_limit_s: Annotated[float, _model("S", "For a worker whose session broke to come back.")] = 5.0,
    hedge_after_s: Annotated[
        float, _model("S", "Without a session, until a worker's requests go on elsewhere; 0: when it is lost.")
    ] = 0.5,
    reattach_s: Annotated[float, _model("S", "For clients to come back to a request.")] = 60.0,
    tls_cert: Annotated[Path | None, _service("FILE", "Certificate chain in PEM: speak TLS, with workers too.")] = None,
    tls_key: Annotated[Path | None, _service("FILE", "Private key of the certificate in PEM.")] = None,
    event_log: Annotated[Path | None, _service("DIR", "Log every event, for splitcore replay.")] = None,
    event_log_keep: Annotated[int | None, _service("N", "Segments of it, 64 MiB each, to keep, or all.")] = None,
    drain_s: Annotated[float, _service("S", "To go on after SIGTERM while placements live.")] = 30.0,
    lease_s: Annotated[float, _service("S", "Without a word of a placement until it expires; 0: never.")] = 60.0,
    log_level: Annotated[str, _service("NAME", "off, error, warn, info, debug or trace.")] = "info",
    header_timeout_s: Annotated[float, _limit("S", "Until the head of the next request is whole.")] = 60.0,
    body_timeout_s: Annotated[float, _limit("S", "Until a body is whole.")] = 10.0,
    write_timeout_s: Annotated[float, _limit("S", "Until a client takes 16 KiB more, or all that waits.")] = 10.0,
    body_bytes_max: Annotated[int, _limit("N", "Bytes of a body.")] = 4 << 20,
    bodies_bytes_max: Annotated[int, _limit("N", "Bytes of all bodies on their way.")] = 64 << 20,
    connections_max: Annotated[int, _limit("N", "Connections at once.")] = 4096,
    batch_max: Annotated[int, _limit("N", "Items of one call for many.")] = 65536,
    machines_max: Annotated[int, _limit("N", "Machines known, lost ones included.")] = 65536,
    requests_max: Annotated[int, _limit("N", "Live placements.")] = 1_000_000,
    events_max: Annotated[int, _limit("N", "Events kept for those who ask later.")] = 65536,
    event_wait_max_s: Annotated[float, _limit("S", "One call may wait for an event.")] = 60.0,
    policy: Annotated[
        str, _rules("NAME", "splitwise, jsq, least-requests, round-robin or power-of-two.")
    ] = "splitwise",
    prompt_pending_tokens_max: Annotated[int, _rules("N", "Queued prompt tokens of a full prompt machine.")] = 8192,
    kv_fill_max: Annotated[float, _rules("SHARE", "Of its KV tokens, in use on a full token machine.")] = 0.95,
    mixed_return: Annotated[str, _rules("NAME", "Machines leave the mixed pool drained or idle.")] = "drained",
    mixed_hold_s: Annotated[float, _rules("S", "At least, in the mixed pool.")] = 0.0,
    reserve: Annotated[str, _rules("NAME", "KV blocks at-arrival or at-source-done.")] = "at-arrival",
    cut: Annotated[str, _rules("NAME", "Split requests at-prompt or before-last.")] = "at-prompt",
    transfer: Annotated[str, _rules("NAME", "auto, serialized or layer-wise.")] = "auto",
    kv_bytes_per_token: Annotated[int | None, _rules("N", "On one machine, for auto.")] = None,
    split_from_tokens: Annotated[int, _rules("N", "Shorter prompts are not split.")] = 0,
    ties: Annotated[str, _rules("NAME", "Equally loaded machines in turn, the first or last.")] = "first",
    admission: Annotated[str, _rules("NAME", "By bounds; or by limits, early or predicted.")] = "bounds",
    recovery_headroom: Annotated[
        float | None, _rules("SHARE", "Left free for work that comes back; by default 0.02 with a model, else 0.")
    ] = None,
    priority_ageing_s: Annotated[float, _rules("S", "Of waiting outweigh a step of priority; 0: nothing does.")] = 10.0,
    attempts_max: Annotated[int, _rules("N", "Tries of one request.")] = 4,
    transfer_failures_max: Annotated[int, _rules("N", "Failed transfers in a row set a machine aside.")] = 3,
    aside_s: Annotated[float, _rules("S", "Until a machine that was set aside is tried again.")] = 30.0,
    report_limit_s: Annotated[float, _rules("S", "A machine's report counts without a further one.")] = 30.0,
    unplaceable_limit_s: Annotated[float, _rules("S", "A request waits that no machine known could hold.")] = 60.0,
    retry_interval_s: Annotated[float, _rules("S", "Between tries to place what waits.")] = 1.0,
    handoff_limit_s: Annotated[float, _rules("S", "A handoff may stand still before it is taken back.")] = 30.0,
    seed: Annotated[int, _rules("N", "Of every draw.")] = 0,
) -> None:
    """Place requests over HTTP, for engines that bring their own workers; with --model, give tokens by its own.

    SIGTERM ends it: it is not ready at once, goes on while placements live, at most --drain-s, and exits with 0.
    """
    options = {name: str(value) if isinstance(value, Path) else value for name, value in locals().items()}
    try:
        _native.serve(options)
    except _native.ConfigError:
        raise
    except _native.SplitcoreError as error:
        raise _of_option(str(error), options) from None


def _of_option(message: str, options: dict[str, Any]) -> _native.SplitcoreError:
    """Name the option as the command line does, where the message begins with its name."""
    name, _, rest = message.partition(": ")
    if name not in options:
        return _native.SplitcoreError(message)
    if rest.startswith("OverflowError"):
        return wrong(name, "a whole number that is not negative, nor so large", options[name])
    return _native.SplitcoreError(f"--{name.replace('_', '-')}: {rest}")
