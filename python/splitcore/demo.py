"""The demonstration: a service, workers that run a real model, and a slice of real conversation traffic."""

import contextlib
import http
import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from splitcore import ending, tables
from splitcore.demo_model import demo_model
from splitcore.launch import Launch
from splitcore.load import LoadSummary, Request, Seen, Target, run, send
from splitcore.progress import Bar

__all__ = ["LISTEN", "Plan", "main"]

LISTEN = "127.0.0.1:8090"
QUESTION = "Why would one run the prompt and the answer of a language model on different machines? One sentence."
ANSWER_TOKENS_MAX = 48
_TIMEOUT_S = 240
_HANDOFFS_KEPT = 32
# A worker's first passes are slow: memory is touched, and code for the shapes of a batch is made.
_WARM_EACH, _WARM_PROMPT_TOKENS, _WARM_TOKENS = 2, 96, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is started, and what is sent."""

    model: Path | None = None
    """Folder of a model; None takes SmolLM2-135M-Instruct."""
    listen: str | None = None
    """Address of the service; None takes `LISTEN`, or a free port where that is taken."""
    prompt: int = 2
    token: int = 2
    requests: int = 16
    # What two cores carry with time to spare: two workers of each kind share them.
    prompt_max: int = 128
    output_max: int = 24
    rate: float = 0.4
    transfer: str = "layer-wise"
    """As of ``splitcore serve``, whose own default would not go layer by layer for prompts as short as these."""
    seed: int = 0
    event_log: Path | None = None
    keep: bool = False
    """Stay up after the load, until a signal ends it."""


def main(plan: Plan) -> bool:
    """Start everything, send the traffic, ask one question, print what came of it, and stop everything.

    Ctrl-C, SIGTERM and SIGHUP end it at any time: what has come until then is printed, and everything is stopped. While
    it stays up because of `Plan.keep`, that is how it ends; before, the signal's exception goes on.

    Args:
        plan: What is started and sent.

    Returns:
        Whether every request was completed.

    Raises:
        ProcessError: If a process does not start, or ends; with its last words.
    """
    out = tables.console()
    with ending.ending():
        folder = demo_model() if plan.model is None else plan.model
        out.print(f"starting a service, {plan.prompt} prompt and {plan.token} token workers of {folder.name}")
        with _launch(folder, plan, out) as launch:
            with Bar("loading the model") as bar:
                launch.wait_ready(progress=bar.update)
            out.print(f"listening on {launch.url}", soft_wrap=True)
            with Bar("first passes of every worker") as bar:
                _warm(launch, folder.name, bar)
            is_whole = _serve(launch, folder.name, plan, out)
            if plan.keep:
                _stay(launch.url, folder.name, out)
            _stop(launch, out)
    return is_whole


def _launch(folder: Path, plan: Plan, out: Console) -> Launch:
    logged = [] if plan.event_log is None else ["--event-log", str(plan.event_log)]
    return Launch(
        folder,
        prompt=plan.prompt,
        token=plan.token,
        listen=plan.listen or _free(out),
        serve_options=["--transfer", plan.transfer, *logged],
        worker_options=["--blocks", "256", *logged],
    )


def _free(out: Console) -> str:
    """Choose the address that one expects, or a free one."""
    host, port = LISTEN.split(":")
    with socket.socket() as probe:
        # As the service does: connections of an earlier one that are being closed are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            out.print(f"{LISTEN}: {error.strerror}; taking another port (--listen chooses one)", soft_wrap=True)
            return f"{host}:0"
    return LISTEN


def _warm(launch: Launch, model: str, bar: Bar) -> None:
    """Have every worker run its first passes, so that the traffic does not meet them."""
    count = _WARM_EACH * len(launch.roles)
    target = Target(url=launch.url, model=model, prompts="words", timeout_s=_TIMEOUT_S)
    at_once = [Seen(Request(number, 0.0, _WARM_PROMPT_TOKENS, _WARM_TOKENS)) for number in range(count)]
    ending.run(send(target, at_once, bar.update))


def _serve(launch: Launch, model: str, plan: Plan, out: Console) -> bool:
    """Send the traffic and a question, and tell what came of it, whatever ends it."""
    summary: LoadSummary | None = None
    warmed = {each["request_id"] for each in _handoffs(launch.url)}

    def keep(what: LoadSummary) -> None:
        nonlocal summary
        summary = what

    try:
        with Bar("requests") as bar:
            keep(
                run(
                    Target(url=launch.url, model=model, prompts="words", timeout_s=_TIMEOUT_S, seed=plan.seed),
                    {"trace": "azure-conv", "rate": plan.rate, "seed": plan.seed},
                    max_requests=plan.requests,
                    prompt_max=plan.prompt_max,
                    output_max=plan.output_max,
                    progress=bar.update,
                    interrupted=keep,
                )
            )
        _ask(launch.url, model, out)
    finally:
        if summary is not None:
            handoffs = [each for each in _handoffs(launch.url) if each["request_id"] not in warmed]
            _tell(summary, handoffs, out)
    return summary is not None and summary["requests"]["completed"] == summary["requests"]["submitted"]


def _tell(summary: LoadSummary, handoffs: list[Any], out: Console) -> None:
    out.print(f"{summary['requests']['submitted']} requests: {tables.ends(summary['requests'])}")
    if summary["first_error"] is not None:
        out.print(f"the first error: {summary['first_error']}", soft_wrap=True)
    out.print(tables.latencies(summary))
    for line in _moved(handoffs):
        out.print(line, soft_wrap=True)


def _moved(handoffs: list[Any]) -> Iterator[str]:
    """Tell how KV was moved, one line for each way."""
    moved = [each for each in handoffs if each["exposed_ms"] is not None]
    if not moved:
        yield "no KV was moved: every request ran on one machine"
    for way, count in Counter(each["transfer"] for each in moved).most_common():
        times = [each["exposed_ms"] for each in moved if each["transfer"] == way]
        when = "layer by layer during the prefill" if way == "layer-wise" else "after the prefill"
        yield (
            f"KV of {count} requests moved {way} ({when}): "
            f"it was there {mean(times):.1f} ms after the prefill, at most {max(times):.1f} ms"
        )
    if len(moved) == _HANDOFFS_KEPT:
        yield f"these are the last {_HANDOFFS_KEPT}: the service keeps no more"


def _handoffs(url: str) -> list[Any]:
    try:
        return list(_fetch(url, "/v1/overview")["handoffs"])
    except (OSError, http.client.HTTPException):
        # The service has ended; that is told where it is stopped.
        return []


def _ask(url: str, model: str, out: Console) -> None:
    """Print a question, and its answer as it comes."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": ANSWER_TOKENS_MAX,
        "temperature": 0,
        "stream": True,
    }
    out.print(f"\n> {QUESTION}", soft_wrap=True)
    for piece in _stream(url, "/v1/chat/completions", body):
        out.print(piece, end="", soft_wrap=True)
        out.file.flush()
    out.print("\n")


def _stream(url: str, path: str, body: dict[str, Any]) -> Iterator[str]:
    with contextlib.closing(http.client.HTTPConnection(url.split("//")[1], timeout=_TIMEOUT_S)) as connection:
        for line in _answer(connection, path, body):
            data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
            if data and data != "[DONE]":
                for choice in json.loads(data)["choices"]:
                    yield choice["delta"].get("content") or ""


def _fetch(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    with contextlib.closing(http.client.HTTPConnection(url.split("//")[1], timeout=_TIMEOUT_S)) as connection:
        return json.loads(_answer(connection, path, body).read())


def _answer(connection: http.client.HTTPConnection, path: str, body: dict[str, Any] | None) -> http.client.HTTPResponse:
    if body is None:
        connection.request("GET", path)
    else:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != http.HTTPStatus.OK:
        raise OSError(f"{path}: {answer.status} {answer.read().decode(errors='replace')}")
    return answer


def _stay(url: str, model: str, out: Console) -> None:
    example = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    with contextlib.suppress(KeyboardInterrupt, ending.Ended):
        out.print(f"\nit stays up until Ctrl-C; see {url}/ or\n", soft_wrap=True)
        out.print(f"  curl -N {url}/v1/chat/completions \\", soft_wrap=True)
        out.print(f"    -H 'content-type: application/json' -d '{json.dumps(example)}'\n", soft_wrap=True)
        out.file.flush()
        while True:
            time.sleep(3600)


def _stop(launch: Launch, out: Console) -> None:
    """Stop everything and print what each worker says it has done."""
    status = launch.stop()
    for name in launch.roles:
        out.print(f"{name:>9}: {_last_words(launch.children[name].lines)}", soft_wrap=True)
    wrong = {name: code for name, code in status.items() if code}
    for name, code in wrong.items():
        raise launch.children[name].failed(f"ended with {code}")


def _last_words(lines: Iterable[str]) -> str:
    said = [line for line in lines if "passes" in line]
    return said[-1].removeprefix("splitcore worker: ") if said else "(said nothing)"
