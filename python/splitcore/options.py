"""Command-line options that several commands share, written down once."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from splitcore.units import bandwidth

__all__ = ["BUILT_IN_TRACES", "Machines", "Pools", "Rules", "Workload", "option", "takes"]

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
    trace: Annotated[str, _workload("NAME|FILE", "azure-conv, azure-code, or a CSV or JSONL trace.")] = "azure-conv"
    rate: Annotated[float | None, _workload("PER_S", "Requests a second; a trace is stretched to it.")] = None
    duration: Annotated[float | None, _workload("S", "Seconds of arrivals.")] = None
    arrivals: Annotated[str | None, _workload("NAME", "poisson, bursty, or trace for a file's own times.")] = None
    cv: Annotated[float, _workload("X", "Coefficient of variation of bursty gaps.")] = 4.0
    sampling: Annotated[str, _workload("NAME", "Lengths drawn joint or independent.")] = "joint"
    seed: Annotated[int, _workload("N", "Of every random draw.")] = 0
    requests_limit: Annotated[int | None, _workload("N", "Stop arrivals after N.")] = None
    max_in_flight: Annotated[int | None, _workload("N", "Reject arrivals while N are served.")] = None
    slo_ttft: Annotated[float | None, _workload("S", "Limit on the time to the first token.")] = None
    slo_tbt: Annotated[float | None, _workload("S", "Limit on the time between tokens.")] = None


class Rules:
    """How it is served."""

    admission: Annotated[str, _rules("NAME", "By bounds; or by limits, early or predicted.")] = "bounds"
    recovery_headroom: Annotated[float, _rules("SHARE", "Left free for work that comes back after faults.")] = 0.0
    split_from: Annotated[int, _rules("TOKENS", "Shorter prompts are not split.")] = 0
    policy: Annotated[str | None, _rules("NAME", "splitwise, jsq, least-requests, round-robin or power-of-two.")] = None
    costs: Annotated[str, _rules("NAME", "measured, splitwise-sim, distserve or distserve-vllm.")] = "measured"
    profile: Annotated[str | None, _rules("FILE.toml", "Costs from 'splitcore profile fit'.")] = None
    transfer: Annotated[str, _rules("NAME", "auto, serialized or layer-wise.")] = "auto"
    mixed_return: Annotated[str, _rules("NAME", "Machines leave the mixed pool drained or idle.")] = "drained"
    reserve: Annotated[str, _rules("NAME", "KV blocks at-arrival or at-source-done.")] = "at-arrival"
    cut: Annotated[str, _rules("NAME", "Split requests at-prompt or before-last.")] = "at-prompt"
    ties: Annotated[str, _rules("NAME", "Of equally loaded machines, the first or last.")] = "first"
    message_delay: Annotated[float, _rules("S", "Added to each message.")] = 0.0


# Python keywords of options that the command line spells otherwise, and how values with a unit are read.
_KEYWORDS = {
    "duration": "duration_s",
    "message_delay": "message_delay_s",
    "requests_limit": "requests",
    "slo_tbt": "slo_tbt_s",
    "slo_ttft": "slo_ttft_s",
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
        groups: `Pools`, `Machines`, `Workload` or `Rules`, in the order of the help.
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
