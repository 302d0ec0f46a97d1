"""Command-line options that several commands share, written down once."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from splitcore.plan_schema import THRESHOLDS
from splitcore.units import bandwidth

__all__ = ["BUILT_IN_TRACES", "Machines", "Pools", "Rules", "Thresholds", "Workload", "option", "takes"]

BUILT_IN_TRACES = ("azure-conv", "azure-code")
"""What `--trace` takes beside files."""

_Switch = Literal["on", "off"]


def option(panel: str, metavar: str, about: str, *names: str) -> Any:
    """Describe an option for the help.

    Args:
        panel: Under which it is listed.
        metavar: What its value is called.
        about: What it does.
        names: As it is spelled; by default as its parameter.
    """
    return typer.Option(*names, metavar=metavar, help=about, rich_help_panel=panel)


_machines = partial(option, "Machines")
_workload = partial(option, "Workload")
_rules = partial(option, "Scheduling and costs")
_thresholds = partial(option, "Thresholds")


class Pools:
    """Which machines there are."""

    prompt: Annotated[str | None, _machines("NxMACHINE", "Prompt pool, as 25xdgx-h100 or 4xdgx-a100:tp4.")] = None
    token: Annotated[str | None, _machines("NxMACHINE", "Token pool.")] = None
    mixed: Annotated[str | None, _machines("NxMACHINE", "Mixed pool.")] = None
    unsplit: Annotated[str | None, _machines("NxMACHINE", "Machines that each serve whole requests.")] = None
    only: Annotated[str | None, _machines("PHASE", "Of an unsplit cluster, prefill or decode alone.")] = None


class Machines:
    """What machines are like."""

    machines: Annotated[Path | None, _machines("FILE.toml", "Machine types of your own, beside the built-in ones.")] = (
        None
    )
    link_bandwidth: Annotated[str | None, _machines("RATE", "Of every machine, as 200GiB/s.")] = None
    contention: Annotated[_Switch, _machines("on|off", "Transfers share the links.")] = "on"
    kv_limit: Annotated[_Switch, _machines("on|off", "Memory bounds the KV cache.")] = "on"
    faults: Annotated[
        str | None, _machines("SPEC", "Crashes: mtbf=S, repair=S, kill=NAME@S; kill=cluster@S, restart=S, grace=S.")
    ] = None


class Workload:
    """What arrives."""

    model: Annotated[str, _workload("NAME", "bloom-176b or llama2-70b; opt-13b or opt-66b with distserve.")] = (
        "bloom-176b"
    )
    trace: Annotated[str, _workload("NAME|FILE", "azure-conv, azure-code, or a trace in a file.")] = "azure-conv"
    rate: Annotated[float | None, _workload("PER_S", "Requests a second; a trace is stretched to it.")] = None
    duration: Annotated[float | None, _workload("S", "Seconds of arrivals.")] = None
    arrivals: Annotated[str | None, _workload("NAME", "poisson, bursty, or trace for a file's own times.")] = None
    cv: Annotated[float, _workload("X", "Coefficient of variation of bursty gaps.")] = 4.0
    sampling: Annotated[str, _workload("NAME", "Lengths drawn joint or independent.")] = "joint"
    seed: Annotated[int, _workload("N", "Of every random draw.")] = 0
    requests_limit: Annotated[int | None, _workload("N", "Stop arrivals after N.")] = None
    classes: Annotated[Path | None, _workload("FILE.toml", "Kinds of traffic with shares, limits and priorities.")] = (
        None
    )
    invalid_rows: Annotated[str, _workload("NAME", "Rows of a trace that are no requests: error, or skip.")] = "error"
    missing_output: Annotated[int | None, _workload("TOKENS", "Of answers whose length a trace does not say.")] = None
    later_turns: Annotated[
        str, _workload("NAME", "Turns with a delay and no time: error, or after-arrival of the turn before.")
    ] = "error"
    tokenizer: Annotated[str | None, _workload("FILE.json", "Counts the tokens of a trace of texts.")] = None
    max_in_flight: Annotated[int | None, _workload("N", "Reject arrivals while N are served.")] = None
    slo_ttft: Annotated[float | None, _workload("S", "Limit on the time to the first token.")] = None
    slo_tbt: Annotated[float | None, _workload("S", "Limit on the time between tokens.")] = None


class Rules:
    """How it is served."""

    admission: Annotated[str, _rules("NAME", "By bounds; or by limits, early or predicted.")] = "bounds"
    recovery_headroom: Annotated[float, _rules("SHARE", "Left free for work that comes back after faults.")] = 0.0
    split_from: Annotated[int, _rules("TOKENS", "Shorter prompts are not split.")] = 0
    policy: Annotated[str | None, _rules("NAME", "splitwise, jsq, least-requests, round-robin or power-of-two.")] = None
    costs: Annotated[str, _rules("NAME", "measured, splitwise-sim, distserve, distserve-overhead, distserve-vllm.")] = (
        "measured"
    )
    profile: Annotated[str | None, _rules("FILE.toml", "Costs from 'splitcore profile fit'.")] = None
    transfer: Annotated[str, _rules("NAME", "auto, serialized or layer-wise.")] = "auto"
    mixed_return: Annotated[str, _rules("NAME", "Machines leave the mixed pool drained or idle.")] = "drained"
    reserve: Annotated[str, _rules("NAME", "KV blocks at-arrival or at-source-done.")] = "at-arrival"
    cut: Annotated[str, _rules("NAME", "Split requests at-prompt or before-last.")] = "at-prompt"
    ties: Annotated[str, _rules("NAME", "Of equally loaded machines, the first or last.")] = "first"
    message_delay: Annotated[float, _rules("S", "Added to each message.")] = 0.0


class Thresholds:
    """What the schedulers hold things against; by default as they have it."""

    prompt_pending_tokens_max: Annotated[
        int | None, _thresholds("TOKENS", "A prompt machine with work is over beyond this load; 8192.")
    ] = None
    kv_fill_max: Annotated[
        float | None, _thresholds("SHARE", "Of its KV, for a token machine not to be over; 0.95.")
    ] = None
    mixed_hold: Annotated[float | None, _thresholds("S", "Least time in the mixed pool; 0.")] = None
    priority_ageing: Annotated[float | None, _thresholds("S", "Waiting that outweighs a step of priority; 10.")] = None
    attempts_max: Annotated[int | None, _thresholds("N", "Tries of a request that faults meet; 4.")] = None
    retry_interval: Annotated[float | None, _thresholds("S", "What waits is tried again; 1.")] = None
    park_limit: Annotated[float | None, _thresholds("S", "What does not go on is taken back; 30.")] = None
    rejoin_limit: Annotated[float | None, _thresholds("S", "A machine without a session is lost; 5.")] = None
    batch_tokens_max: Annotated[int | None, _thresholds("TOKENS", "Prompt tokens and decodes in a pass; 2048.")] = None
    batch_requests_max: Annotated[int | None, _thresholds("N", "Requests in a pass; 512.")] = None
    prefill_chunk_tokens: Annotated[int | None, _thresholds("TOKENS", "Longer prompts are computed in chunks.")] = None
    sit_out_max: Annotated[int | None, _thresholds("N", "Passes that a decode sits out at most; 4.")] = None
    evictions_max: Annotated[int | None, _thresholds("N", "Evictions of a request until it is spared; 4.")] = None
    block_tokens: Annotated[int | None, _thresholds("TOKENS", "In a KV block; 16.")] = None
    handoff_floor_blocks: Annotated[int | None, _thresholds("BLOCKS", "That only incoming handoffs may take.")] = None
    quarantine_limit: Annotated[float | None, _thresholds("SHARE", "Of blocks in quarantine at most; 0.1.")] = None
    report_interval: Annotated[float | None, _thresholds("S", "Between reports of a machine; 1.")] = None
    sends_max: Annotated[int | None, _thresholds("N", "Transfers a source runs at once.")] = None
    receives_max: Annotated[int | None, _thresholds("N", "Transfers a destination takes at once.")] = None


# Python keywords of options that the command line spells otherwise, and how values with a unit are read.
_KEYWORDS = {
    "duration": "duration_s",
    "message_delay": "message_delay_s",
    "requests_limit": "requests",
    "slo_tbt": "slo_tbt_s",
    "slo_ttft": "slo_ttft_s",
    **{name.removesuffix("_s"): name for name in THRESHOLDS if name.endswith("_s")},
}
_READERS: dict[str, Callable[[Any], object]] = {
    "contention": lambda switch: switch == "on",
    "kv_limit": lambda switch: switch == "on",
    "link_bandwidth": bandwidth,
}


def takes(
    *groups: type, without: tuple[str, ...] = (), defaults: Mapping[str, object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command take groups of options beside its own.

    Args:
        groups: `Pools`, `Machines`, `Workload`, `Rules` or `Thresholds`, in the order of the help.
        without: Options of these that the command does not take.
        defaults: Other defaults than in `splitcore simulate`.

    Returns:
        A decorator of commands. The command's first argument will be the keywords of `splitcore.simulate`.
    """
    shared = {
        name: inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=(defaults or {}).get(name, getattr(group, name)),
            annotation=annotation,
        )
        for group in groups
        for name, annotation in get_type_hints(group, include_extras=True).items()
        if name not in without
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command).parameters.values()

        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in shared}
            for name in _READERS.keys() & given.keys():
                given[name] = _READERS[name](given[name])
            command({_KEYWORDS.get(name, name): value for name, value in given.items()}, **values)

        parameters = [*shared.values(), *own]
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate
