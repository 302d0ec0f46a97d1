"""The demonstration: a service, workers that run a real model, and a slice of real conversation traffic."""

import contextlib
import http
import http.client
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from splitcore import tables
from splitcore.demo_model import demo_model
from splitcore.launch import Launch
from splitcore.load import Target, run
from splitcore.progress import Bar

__all__ = ["Plan", "main"]

QUESTION = "Why would one run the prompt and the answer of a language model on different machines? One sentence."
ANSWER_TOKENS_MAX = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is started, and what is sent."""

    model: Path | None = None
    """Folder of a model; None takes SmolLM2-135M-Instruct."""
    prompt: int = 2
    token: int = 2
    requests: int = 16
    prompt_max: int = 512
    output_max: int = 64
    rate: float = 0.5
    seed: int = 0
    event_log: Path | None = None
    keep: bool = False
    """Stay up after the load, until Ctrl-C."""


def main(plan: Plan) -> None:
    """Start everything, send the traffic, ask one question, print what came of it, and stop everything.

    Args:
        plan: What is started and sent.

    Raises:
        SplitcoreError: If a process does not start, or ends; with its last words.
    """
    out = tables.console()
    folder = demo_model() if plan.model is None else plan.model
    logged = [] if plan.event_log is None else ["--event-log", str(plan.event_log)]
    out.print(f"starting a service, {plan.prompt} prompt and {plan.token} token workers of {folder.name}")
    with Launch(
        folder, prompt=plan.prompt, token=plan.token, serve_options=logged, worker_options=["--blocks", "256", *logged]
    ) as launch:
        with Bar("loading the model") as bar:
            launch.wait_ready(progress=bar.update)
        out.print(f"listening on {launch.url}")
        summary = _load(launch.url, folder.name, plan)
        _ask(launch.url, folder.name, out)
        handoffs = _fetch(launch.url, "/v1/overview")["handoffs"]
        out.print(f"{summary['requests']['submitted']} requests: {tables.ends(summary['requests'])}")
        out.print(tables.latencies(summary))
        out.print(_exposed([each["exposed_ms"] for each in handoffs if each["exposed_ms"] is not None]))
        if plan.keep:
            _stay(launch.url, folder.name, out)
        status = launch.stop()
        for name in launch.roles:
            out.print(f"{name:>9}: {_last_words(launch, name)}", soft_wrap=True)
        wrong = {name: code for name, code in status.items() if code}
        if wrong:
            raise launch.children[next(iter(wrong))].failed(f"ended with {next(iter(wrong.values()))}")


def _load(url: str, model: str, plan: Plan) -> Any:
    with Bar("requests") as bar:
        return run(
            Target(url=url, model=model, prompts="words", timeout_s=240, seed=plan.seed),
            {"trace": "azure-conv", "rate": plan.rate, "seed": plan.seed},
            max_requests=plan.requests,
            prompt_max=plan.prompt_max,
            output_max=plan.output_max,
            progress=bar.update,
        )


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
    connection = http.client.HTTPConnection(url.split("//")[1], timeout=240)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise OSError(f"{path}: {answer.status} {answer.read().decode(errors='replace')}")
        for line in answer:
            data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
            if data and data != "[DONE]":
                for choice in json.loads(data)["choices"]:
                    yield choice["delta"].get("content") or ""
    finally:
        connection.close()


def _fetch(url: str, path: str) -> Any:
    connection = http.client.HTTPConnection(url.split("//")[1], timeout=30)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _stay(url: str, model: str, out: Console) -> None:
    example = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    out.print(f"\nit stays up until Ctrl-C; see {url}/ or\n", soft_wrap=True)
    out.print(f"  curl -N {url}/v1/chat/completions \\", soft_wrap=True)
    out.print(f"    -H 'content-type: application/json' -d '{json.dumps(example)}'\n", soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def _exposed(times: list[float]) -> str:
    if not times:
        return "no KV was moved: every request ran on one machine"
    beyond = f"beyond the prefill that took {mean(times):.1f} ms, at most {max(times):.1f} ms"
    return f"KV of {len(times)} requests moved; {beyond}"


def _last_words(launch: Launch, name: str) -> str:
    lines = [line for line in launch.children[name].lines if "passes" in line]
    return lines[-1].removeprefix("splitcore worker: ") if lines else "(said nothing)"
