"""Scheduler core and simulator for phase-split LLM inference.

`Cluster` places requests on machines, `Machine` batches on one of them, `simulate` drives both over a workload, `swarm`
through failures; `capacity` and `plan` simulate until they know what a cluster holds, and which one to take.
"""

from collections.abc import Callable

from splitcore._native import (
    Cluster,
    ConfigError,
    DuplicateMachineError,
    DuplicateRequestError,
    EventError,
    Handled,
    HandshakeError,
    InputError,
    Leg,
    Machine,
    PlacedMany,
    Placement,
    Polled,
    Recovery,
    RejectedError,
    Report,
    SimulationStuckError,
    Snapshot,
    SplitcoreError,
    TransferError,
    UnknownIdError,
    Why,
    __version__,
    profile_fit,
    replay,
    swarm,
)
from splitcore._native import simulate as _simulate
from splitcore.cutting import parallelism
from splitcore.planning import capacity, plan, run_options

__all__ = [
    "Cluster",
    "ConfigError",
    "DuplicateMachineError",
    "DuplicateRequestError",
    "EventError",
    "Handled",
    "HandshakeError",
    "InputError",
    "Leg",
    "Machine",
    "PlacedMany",
    "Placement",
    "Polled",
    "Recovery",
    "RejectedError",
    "Report",
    "SimulationStuckError",
    "Snapshot",
    "SplitcoreError",
    "TransferError",
    "UnknownIdError",
    "Why",
    "__version__",
    "capacity",
    "parallelism",
    "plan",
    "profile_fit",
    "replay",
    "simulate",
    "swarm",
]


def simulate(
    *,
    prompt: str | None = None,
    token: str | None = None,
    mixed: str | None = None,
    unsplit: str | None = None,
    only: str | None = None,
    model: str = "bloom-176b",
    trace: str = "azure-conv",
    rate: float | None = None,
    duration_s: float | None = None,
    arrivals: str | None = None,
    cv: float = 4.0,
    sampling: str = "joint",
    seed: int = 0,
    policy: str | None = None,
    costs: str = "measured",
    profile: str | None = None,
    transfer: str = "auto",
    link_bandwidth: float | None = None,
    contention: bool = True,
    mixed_return: str = "drained",
    reserve: str = "at-arrival",
    cut: str = "at-prompt",
    ties: str = "first",
    message_delay_s: float = 0.0,
    max_in_flight: int | None = None,
    admission: str = "bounds",
    slo_ttft_s: float | None = None,
    slo_tbt_s: float | None = None,
    recovery_headroom: float = 0.0,
    split_from: int = 0,
    kv_limit: bool = True,
    requests: int | None = None,
    faults: str | None = None,
    check: bool = False,
    machines: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Simulate a workload on a set of machines.

    The code that places and batches is the code that runs live; only time, costs and links are modelled. The same
    arguments always give the same report.

    Args:
        prompt: Machines of the prompt pool, as ``"25xdgx-h100"`` or ``"4xdgx-a100:tp4"``.
        token: Machines of the token pool.
        mixed: Machines whose home is the mixed pool.
        unsplit: Machines that each serve whole requests; excludes the three pools.
        only: ``"prefill"`` or ``"decode"``, one phase of an unsplit cluster alone: requests end with their first
            token, or arrive with it and their KV.
        model: ``"bloom-176b"`` or ``"llama2-70b"``; under DistServe's costs ``"opt-13b"`` or ``"opt-66b"``.
        trace: ``"azure-conv"`` or ``"azure-code"`` (built-in length distributions), or the path of a CSV or JSONL
            trace.
        rate: Requests per second. Built-in workloads need it; the timestamps of a file are rescaled to it.
        duration_s: Arrivals are cut after this many seconds; 300 by default for built-in workloads.
        arrivals: ``"poisson"``, ``"bursty"`` or ``"trace"``.
        cv: Coefficient of variation of the gaps between bursty arrivals.
        sampling: ``"joint"`` draws prompt and output length together, ``"independent"`` apart.
        seed: Of every random draw.
        policy: Which machines a request gets; ``"splitwise"`` for pools, ``"jsq"`` for unsplit machines by default.
        costs: ``"measured"``, ``"splitwise-sim"``, or DistServe's formulas: ``"distserve"``, ``"distserve-vllm"`` (its
            baseline), ``"distserve-overhead"``.
        profile: The path of a profile that `profile_fit` wrote, instead of the built-in one.
        transfer: ``"auto"``, ``"serialized"`` or ``"layer-wise"``.
        link_bandwidth: Of every machine, in bytes per second, each way.
        contention: Whether transfers share the links.
        mixed_return: When a machine leaves the mixed pool: ``"drained"`` or ``"idle"``.
        reserve: When KV blocks are reserved: ``"at-arrival"`` or ``"at-source-done"``.
        cut: Where a request is split: ``"at-prompt"`` or ``"before-last"``.
        ties: Which of equally loaded machines is taken: ``"first"`` or ``"last"``; results should not hang on it.
        message_delay_s: Added to each message between cluster and machines.
        max_in_flight: Arrivals are rejected while this many requests are being served.
        admission: What arrivals are held against: ``"bounds"`` alone, or also the two limits below, ``"early"`` by
            what the chosen machines have to do now or ``"predicted"`` by what they will have to do when the prompt
            is computed.
        slo_ttft_s: Limit on the time to the first token.
        slo_tbt_s: Limit on the time between tokens.
        recovery_headroom: Share of slots and KV memory, below 1, that arrivals leave free for work that comes back
            after faults.
        split_from: Prompts of fewer tokens run whole on their token machine.
        kv_limit: Whether the memory of the machines bounds their KV cache.
        requests: Arrivals are cut after this many.
        faults: Faults, as ``"mtbf=600,repair=30,kill=t0@20"``: mean seconds that one machine is up, seconds until a
            crashed one is back (30 by default), and machines to crash at a time.
            ``"kill=cluster@20,restart=1,grace=1"`` loses the Cluster's state: seconds until there is another, and
            seconds in which machines register with it (1 by default, both). The workload is then simulated twice: the
            report is that of requests that resume, and its summary's ``faults`` tells what faults cost there and where
            requests restart from scratch.
        check: Recount every invariant after every event; slow, for those who change the scheduler.
        machines: The path of a TOML file of machine types, which the pools may name beside the built-in ones.
        progress: Called now and then with the requests that have ended and the total, both twice with faults.

    Returns:
        The report: summary, one row per request, and batch sizes over time.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a trace, profile or file of machine types is bad; it names file, line and field.
        SimulationStuckError: If events go on but no request ends.
    """
    options = {
        "prompt": prompt,
        "token": token,
        "mixed": mixed,
        "unsplit": unsplit,
        "only": only,
        "model": model,
        "trace": trace,
        "rate": rate,
        "duration_s": duration_s,
        "arrivals": arrivals,
        "cv": cv,
        "sampling": sampling,
        "seed": seed,
        "policy": policy,
        "costs": costs,
        "profile": profile,
        "transfer": transfer,
        "link_bandwidth": link_bandwidth,
        "contention": contention,
        "mixed_return": mixed_return,
        "reserve": reserve,
        "cut": cut,
        "ties": ties,
        "message_delay_s": message_delay_s,
        "max_in_flight": max_in_flight,
        "admission": admission,
        "slo_ttft_s": slo_ttft_s,
        "slo_tbt_s": slo_tbt_s,
        "recovery_headroom": recovery_headroom,
        "split_from": split_from,
        "kv_limit": kv_limit,
        "requests": requests,
        "faults": faults,
        "check": check,
        "machines": machines,
    }
    return _simulate(run_options(options), progress)
