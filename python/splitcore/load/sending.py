"""Sends requests at their times, whatever has come back of earlier ones, and notes when tokens come."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from splitcore._native import SplitcoreError
from splitcore.client.needs import checked, httpx
from splitcore.load.plan import Prompts, Request
from splitcore.load.report import Seen

__all__ = ["Target", "base_url", "model_of", "send"]

_REJECTED = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go and what they look like."""

    url: str
    """Of the service, without ``/v1``."""
    model: str
    call: Literal["completions", "chat"] = "completions"
    prompts: Prompts = "tokens"
    vocab: int = 1000
    seed: int = 0
    ignore_eos: bool = False
    """Ask for outputs of the planned lengths, which is no part of OpenAI's interface."""
    secret: str | None = None
    tls: ssl.SSLContext | None = None
    """For ``https``; None trusts who the system trusts."""
    timeout_s: float | None = None
    """Without a word of the service, until a request counts as failed; None waits for ever."""

    @property
    def path(self) -> str:
        """Of the call."""
        return "/v1/completions" if self.call == "completions" else "/v1/chat/completions"

    @property
    def headers(self) -> dict[str, str]:
        """Of every call."""
        return {} if self.secret is None else {"authorization": f"Bearer {self.secret}"}

    def body(self, request: Request) -> dict[str, Any]:
        """Make the body of a call.

        Args:
            request: That is sent.

        Returns:
            Its fields.
        """
        how: Prompts = "words" if self.call == "chat" else self.prompts
        prompt = request.prompt(how, seed=self.seed, vocab=self.vocab)
        asked = (
            {"prompt": prompt} if self.call == "completions" else {"messages": [{"role": "user", "content": prompt}]}
        )
        length = {"ignore_eos": True, "min_tokens": request.output_tokens} if self.ignore_eos else {}
        return {
            "model": self.model,
            **asked,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **length,
        }


def base_url(url: str) -> str:
    """Bring an address into its short form.

    Args:
        url: With or without ``/v1``.

    Returns:
        Without it.

    Raises:
        ConfigError: If it is no address of HTTP.
    """
    return checked(url).rstrip("/").removesuffix("/v1").rstrip("/")


def _client(target: Target) -> "httpx.AsyncClient":
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(
        headers=target.headers,
        timeout=target.timeout_s,
        limits=limits,
        # Neither proxies nor credentials that somebody has set for something else.
        trust_env=False,
        verify=ssl.create_default_context() if target.tls is None else target.tls,
    )


def model_of(url: str, secret: str | None, timeout_s: float | None, tls: ssl.SSLContext | None = None) -> str:
    """Ask a service what it serves.

    Args:
        url: Of the service.
        secret: It asks for.
        timeout_s: To answer.
        tls: For ``https``; None trusts who the system trusts.

    Returns:
        The first model's name.

    Raises:
        SplitcoreError: If it does not say so.
    """
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    try:
        verify = ssl.create_default_context() if tls is None else tls
        with httpx.Client(headers=headers, timeout=timeout_s, trust_env=False, verify=verify) as client:
            answer = client.get(f"{url}/v1/models").raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise SplitcoreError(
            f"{url}/v1/models: expected a list of models, got {error}; or name one: --model"
        ) from error


async def send(target: Target, seen: Sequence[Seen], progress: Callable[[int, int], object] | None = None) -> None:
    """Send requests at their arrivals and wait for all of them.

    Args:
        target: Where they go.
        seen: The requests, by arrival; what comes of each is noted here.
        progress: Called with the requests that have ended and the total.
    """
    checked(target.url)
    begun = time.perf_counter() - seen[0].request.arrival_s
    done = 0

    def ended(_: "asyncio.Task[None]") -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(seen))

    async with _client(target) as client, asyncio.TaskGroup() as tasks:
        for one in seen:
            # Made before its time, so that long prompts cost no lateness.
            body = json.dumps(target.body(one.request)).encode()
            await asyncio.sleep(max(0.0, begun + one.request.arrival_s - time.perf_counter()))
            tasks.create_task(_send(client, target, one, body, begun)).add_done_callback(ended)


async def _send(client: "httpx.AsyncClient", target: Target, seen: Seen, body: bytes, begun: float) -> None:
    seen.sent_s = time.perf_counter() - begun
    headers = {"content-type": "application/json"}
    try:
        async with client.stream("POST", target.url + target.path, content=body, headers=headers) as answer:
            if answer.status_code != 200:
                content = await answer.aread()
                seen.outcome = "rejected" if answer.status_code in _REJECTED else "failed"
                seen.why, seen.said = f"{answer.status_code} {_code(content)}".strip(), _message(content)
            else:
                await _follow(answer, seen, begun)
    except httpx.TimeoutException:
        seen.outcome, seen.why = "failed", "timeout"
    except httpx.HTTPError as error:
        seen.outcome, seen.why = "failed", type(error).__name__ + (f": {error}" if str(error) else "")
    finally:
        seen.ended_s = time.perf_counter() - begun


async def _follow(answer: "httpx.Response", seen: Seen, begun: float) -> None:
    """Note when text comes. Only an end that is said is one: a stream that just stops has failed."""
    counted = None
    finish = None
    async for event in _events(answer):
        now_s = time.perf_counter() - begun
        if "error" in event:
            content = json.dumps(event).encode()
            seen.outcome, seen.why, seen.said = "failed", f"stream: {_code(content)}", _message(content)
            return
        usage = event.get("usage") or {}
        counted = usage.get("completion_tokens", counted)
        for choice in event.get("choices") or ():
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                seen.events_s.append(now_s)
            finish = choice.get("finish_reason") or finish
    if finish is None or finish == "error":
        seen.outcome = "failed"
        seen.why = "the stream broke off" if finish is None else "finish_reason error"
        return
    seen.outcome = "completed"
    seen.output_tokens = len(seen.events_s) if counted is None else int(counted)
    if not seen.events_s:
        # Nothing but an end, as where the first token is the last: it came with that.
        seen.events_s.append(time.perf_counter() - begun)


async def _events(answer: "httpx.Response") -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            try:
                event = json.loads(data)
            except ValueError:
                event = {"error": {"code": "an event that is no JSON"}}
            yield event if isinstance(event, dict) else {"error": {"code": "an event that is no object"}}


def _code(content: bytes) -> str:
    """What an error calls itself."""
    error = _error(content)
    return str(error.get("code") or error.get("type") or error.get("message") or "")


def _message(content: bytes) -> str:
    """What an error says to people."""
    return str(_error(content).get("message") or "")


def _error(content: bytes) -> dict[str, Any]:
    try:
        error = json.loads(content)["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": error}
