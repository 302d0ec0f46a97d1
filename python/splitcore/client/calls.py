"""The calls of the placement service, without a connection: what is sent, and how the answer is read."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from splitcore.client import results
from splitcore.client.errors import AnswerError, ServiceError
from splitcore.client.reading import plain, read

__all__ = ["Call", "answer"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call."""

    method: str
    path: str
    read: Callable[[bytes], T]
    body: object = None
    query: Mapping[str, object] | None = None
    wait_s: float = 0.0
    """Seconds that the service may take before it answers."""
    accepts: tuple[int, ...] = ()
    """Statuses that are answers like those below 400."""

    @property
    def content(self) -> bytes | None:
        """The body as JSON."""
        return None if self.body is None else json.dumps(plain(self.body), allow_nan=False).encode()

    @property
    def params(self) -> dict[str, str]:
        """The query, without what was not given."""
        return {name: str(value) for name, value in (self.query or {}).items() if value is not None}


def answer(call: Call[T], status: int, retry_after: str | None, content: bytes) -> T:
    """Read an answer.

    Args:
        call: That it answers.
        status: Of HTTP.
        retry_after: The header of that name.
        content: The body.

    Returns:
        What the call gives.

    Raises:
        ServiceError: If it says that the call was not carried out.
        AnswerError: If it is not what the service answers.
    """
    if status < 400 or (status in call.accepts and b'"error"' not in content):
        return call.read(content)
    try:
        error = read(results.Refusal, json.loads(content)["error"], "error")
    except (ValueError, KeyError, TypeError, AnswerError):
        error = results.Refusal(content.decode(errors="replace")[:500].strip() or "no message", "", None, "unknown")
    after = float(retry_after) if retry_after and retry_after.isdecimal() else None
    raise ServiceError(status, error.code, error.message, error.param, after)


def _json(kind: type[T]) -> Callable[[bytes], T]:
    return lambda content: read(kind, _loaded(content))


def _field(name: str, kind: type[T]) -> Callable[[bytes], T]:
    def field(content: bytes) -> T:
        data = _loaded(content)
        if not isinstance(data, dict) or name not in data:
            raise AnswerError(f"answer: expected a field {name}")
        return read(kind, data[name], f"answer.{name}")

    return field


def _loaded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise AnswerError(f"answer: expected JSON, got {content[:80]!r}") from error


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _of(request_id: int, what: str = "") -> str:
    return f"/v1/placements/{request_id}{what and '/'}{what}"


def place(ask: results.Ask, *, dry_run: bool = False) -> Call[results.Placement]:
    body = plain(ask) | {"dry_run": dry_run}
    return Call("POST", "/v1/placements", _json(results.Placement), body)


def place_batch(asks: Sequence[results.Ask]) -> Call[tuple[results.BatchResult, ...]]:
    reader = _field("results", tuple[results.BatchResult, ...])
    return Call("POST", "/v1/placements/batch", reader, {"placements": list(asks)})


def show(request_id: int) -> Call[results.Live]:
    return Call("GET", _of(request_id), _json(results.Live))


def fact(request_id: int, what: Literal["prefill_done", "source_released", "renew"], attempt: int | None) -> Call[bool]:
    return Call("POST", _of(request_id, what), _field("applied", bool), {"attempt": attempt})


def progress(request_id: int, tokens: int, attempt: int | None) -> Call[bool]:
    body = {"tokens": tokens, "attempt": attempt}
    return Call("POST", _of(request_id, "progress"), _field("applied", bool), body)


def end(request_id: int, outcome: Literal["finished", "cancelled"], attempt: int | None) -> Call[bool]:
    query = {"outcome": outcome, "attempt": attempt}
    return Call("DELETE", _of(request_id), _field("applied", bool), query=query)


def events(since: int, wait_s: float) -> Call[results.Events]:
    query = {"since": since, "wait_s": wait_s}
    return Call("GET", "/v1/events", _json(results.Events), query=query, wait_s=wait_s)


def join(machines: Sequence[results.NewMachine]) -> Call[int]:
    return Call("POST", "/v1/machines", _field("joined", int), list(machines))


def machines() -> Call[tuple[results.MachineRow, ...]]:
    return Call("GET", "/v1/machines", _field("machines", tuple[results.MachineRow, ...]))


def drain(name: str) -> Call[bool]:
    return Call("POST", f"/v1/machines/{quote(name, safe='')}/drain", _field("draining", bool))


def undrain(name: str) -> Call[bool]:
    return Call("POST", f"/v1/machines/{quote(name, safe='')}/undrain", _field("draining", bool))


def lose(name: str) -> Call[results.Lost]:
    return Call("DELETE", f"/v1/machines/{quote(name, safe='')}", _json(results.Lost))


def report(reports: Sequence[results.MachineReport]) -> Call[results.Reported]:
    return Call("POST", "/v1/reports", _json(results.Reported), {"reports": list(reports)})


def set_class(number: int, ttft_s: float | None, tbt_s: float | None) -> Call[results.Limits]:
    body = {"ttft_s": ttft_s, "tbt_s": tbt_s}
    return Call("PUT", f"/v1/classes/{number}", _json(results.Limits), body)


def loads() -> Call[tuple[results.Load, ...]]:
    return Call("GET", "/v1/loads", _field("loads", tuple[results.Load, ...]))


def overview() -> Call[results.Overview]:
    return Call("GET", "/v1/overview", _json(results.Overview))


def requests(start: int, most: int) -> Call[results.Requests]:
    return Call("GET", "/v1/requests", _json(results.Requests), query={"from": start, "most": most})


def check() -> Call[results.Books]:
    return Call("GET", "/v1/check", _json(results.Books), accepts=(500,))


def status(what: Literal["healthz", "readyz"]) -> Call[str]:
    return Call("GET", f"/{what}", _field("status", str), accepts=(503,))


def metrics() -> Call[str]:
    return Call("GET", "/metrics", _text)


def openapi() -> Call[dict[str, Any]]:
    return Call("GET", "/openapi.json", _json(dict[str, Any]))
