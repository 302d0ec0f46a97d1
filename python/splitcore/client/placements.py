"""A client of the placement service."""

import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from splitcore.client import calls, results
from splitcore.client.errors import UnreachableError
from splitcore.client.needs import checked, httpx, unreachable

__all__ = ["PlacementClient"]

T = TypeVar("T")


class PlacementClient:
    """Places requests by a service, as `splitcore serve` is one.

    It keeps its connections, tries nothing twice and has no time limit but the one it is given. Threads may share it.
    """

    def __init__(
        self, url: str, *, secret: str | None = None, timeout_s: float | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Prepare connections; none is made yet.

        Args:
            url: Of the service, as ``"http://127.0.0.1:8090"``.
            secret: That the service shares with its clients.
            timeout_s: To connect, to write, and without a byte of the answer, each; None waits for ever. What a call
                itself waits for comes on top.
            tls: For ``https``; None trusts who the system trusts.

        Raises:
            ConfigError: If the address is none.
        """
        self._url, self._timeout_s = checked(url), timeout_s
        self._http = httpx.Client(
            base_url=url,
            headers={} if secret is None else {"authorization": f"Bearer {secret}"},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None),
            # Neither proxies nor credentials that somebody has set for something else.
            trust_env=False,
            verify=ssl.create_default_context() if tls is None else tls,
        )

    def place(self, ask: results.Ask, *, dry_run: bool = False) -> results.Placement:
        """Place a request.

        Args:
            ask: The request.
            dry_run: Answer only, book nothing.

        Returns:
            Its machines.

        Raises:
            ServiceError: If it is turned away; `ServiceError.code` says why.
        """
        return self._do(calls.place(ask, dry_run=dry_run))

    def place_batch(self, asks: Sequence[results.Ask]) -> tuple[results.BatchResult, ...]:
        """Place many requests, in order and at one time.

        Args:
            asks: The requests.

        Returns:
            What each would have been answered alone.

        Raises:
            ServiceError: If an id is live or occurs twice; then nothing has been placed.
        """
        return self._do(calls.place_batch(asks))

    def show(self, request_id: int) -> results.Live:
        """Tell where a live request is.

        Args:
            request_id: Of a placement.

        Returns:
            Its machines, or that it waits.

        Raises:
            ServiceError: If it is not live.
        """
        return self._do(calls.show(request_id))

    def prefill_done(self, request_id: int, *, attempt: int | None = None) -> bool:
        """Say that the prompt is computed.

        Args:
            request_id: Of a placement.
            attempt: Which is meant; None is the live one.

        Returns:
            Whether it was in time.
        """
        return self._do(calls.fact(request_id, "prefill_done", attempt))

    def source_released(self, request_id: int, *, attempt: int | None = None) -> bool:
        """Say that the prompt machine has freed its blocks; the first `progress` says so as well.

        Args:
            request_id: Of a placement.
            attempt: Which is meant; None is the live one.

        Returns:
            Whether it was in time.
        """
        return self._do(calls.fact(request_id, "source_released", attempt))

    def renew(self, request_id: int, *, attempt: int | None = None) -> bool:
        """Say that a request is still wanted; every other word about it says so as well.

        Args:
            request_id: Of a placement.
            attempt: Which is meant; None is the live one.

        Returns:
            Whether it was in time.
        """
        return self._do(calls.fact(request_id, "renew", attempt))

    def progress(self, request_id: int, tokens: int, *, attempt: int | None = None) -> bool:
        """Say how many output tokens the client has.

        Args:
            request_id: Of a placement.
            tokens: So far, over all attempts.
            attempt: Which is meant; None is the live one.

        Returns:
            Whether it was in time.
        """
        return self._do(calls.progress(request_id, tokens, attempt))

    def end(
        self, request_id: int, outcome: Literal["finished", "cancelled"] = "finished", *, attempt: int | None = None
    ) -> bool:
        """Say that a request has ended.

        Args:
            request_id: Of a placement.
            outcome: How.
            attempt: Which is meant; None is the live one.

        Returns:
            Whether it was in time.
        """
        return self._do(calls.end(request_id, outcome, attempt))

    def events(self, since: int = 0, *, wait_s: float = 0.0) -> results.Events:
        """Tell what happened without a call.

        Args:
            since: `Events.next` of the call before.
            wait_s: To wait for the first event, if there is none yet.

        Returns:
            Events in order.
        """
        return self._do(calls.events(since, wait_s))

    def join(self, machines: results.NewMachine | Sequence[results.NewMachine]) -> int:
        """Add machines, all of them or none.

        Args:
            machines: One or many.

        Returns:
            How many have joined.

        Raises:
            ServiceError: If one is here already, or there are too many.
        """
        return self._do(calls.join([machines] if isinstance(machines, results.NewMachine) else machines))

    def machines(self) -> tuple[results.MachineRow, ...]:
        """Tell which machines are here.

        Returns:
            In the order of their joining.
        """
        return self._do(calls.machines())

    def drain(self, machine: str) -> bool:
        """Give a machine no more work.

        Args:
            machine: Its name.

        Returns:
            Whether it still has some.

        Raises:
            ServiceError: If it is not here.
        """
        return self._do(calls.drain(machine))

    def undrain(self, machine: str) -> bool:
        """Give a machine work again: takes a drain back.

        Args:
            machine: Its name.

        Returns:
            Whether it still drains: a machine that is leaving does.

        Raises:
            ServiceError: If it is not here.
        """
        return self._do(calls.undrain(machine))

    def lose(self, machine: str) -> results.Lost:
        """Say that a machine is gone; its name may join again.

        Args:
            machine: Its name.

        Returns:
            What became of its requests.

        Raises:
            ServiceError: If it is not here.
        """
        return self._do(calls.lose(machine))

    def report(self, reports: Sequence[results.MachineReport]) -> results.Reported:
        """Say what machines hold now.

        Args:
            reports: Of those that have changed.

        Returns:
            How many were of machines that are here.
        """
        return self._do(calls.report(reports))

    def set_class(self, number: int, *, ttft_s: float | None = None, tbt_s: float | None = None) -> results.Limits:
        """Give the requests of a class limits, for admission by them.

        Args:
            number: `Ask.class_`.
            ttft_s: On the time to the first token; None is no limit.
            tbt_s: On the time between tokens; None is no limit.

        Returns:
            The limits.
        """
        return self._do(calls.set_class(number, ttft_s, tbt_s))

    def requests(self, start: int = 0, *, most: int = 100) -> results.Requests:
        """Tell which requests are live.

        Args:
            start: The id to begin from: `Requests.next` of the call before.
            most: Requests at most, 1 to 1000.

        Returns:
            Some of them, and how many there are.
        """
        return self._do(calls.requests(start, most))

    def loads(self) -> tuple[results.Load, ...]:
        """Tell what is booked on every machine.

        Returns:
            In the order of their joining.
        """
        return self._do(calls.loads())

    def overview(self) -> results.Overview:
        """Tell everything at one moment, as the service's page shows it.

        Returns:
            Pools, machines and the last decisions.
        """
        return self._do(calls.overview())

    def check(self) -> results.Books:
        """Have the service recount everything and compare with its books.

        Returns:
            What it found; a fault is no error.
        """
        return self._do(calls.check())

    def healthz(self) -> str:
        """Tell whether the service is alive.

        Returns:
            ``"ok"``.

        Raises:
            ServiceError: If it has stopped at a bug.
        """
        return self._do(calls.status("healthz"))

    def readyz(self) -> str:
        """Tell whether a prompt and an output could be computed.

        Returns:
            ``"ready"``, or why not: ``"no_machines"``, ``"recovering"``, ``"shutting_down"`` or ``"stopped"``.
        """
        return self._do(calls.status("readyz"))

    def metrics(self) -> str:
        """Tell the metrics.

        Returns:
            In Prometheus's text format.
        """
        return self._do(calls.metrics())

    def openapi(self) -> dict[str, Any]:
        """Tell the description of all calls.

        Returns:
            As OpenAPI.
        """
        return self._do(calls.openapi())

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close its connections."""
        self.close()

    def _do(self, call: calls.Call[T]) -> T:
        timeout = None if self._timeout_s is None else self._timeout_s + call.wait_s
        headers = {} if call.body is None else {"content-type": "application/json"}
        try:
            got = self._http.request(
                call.method, call.path, content=call.content, params=call.params, headers=headers, timeout=timeout
            )
        except httpx.TransportError as error:
            raise UnreachableError(unreachable(call, self._url, error)) from error
        return calls.answer(call, got.status_code, got.headers.get("retry-after"), got.content)
