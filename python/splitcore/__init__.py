"""Scheduler core and simulator for phase-split LLM inference.

`Cluster` places requests on machines, `Machine` batches on one of them, `simulate` drives both over a workload, `swarm`
through failures; `capacity` and `plan` simulate until they know what a cluster holds, and which one to take.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from splitcore._native import (
    CallInterrupted,
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
    "CallInterrupted",
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
    classes: str | Sequence[Mapping[str, Any]] | None = None,
    invalid_rows: str = "error",
    missing_output: int | None = None,
    later_turns: str = "error",
    tokenizer: str | None = None,
    faults: str | None = None,
    check: bool = False,
    machines: str | None = None,
    prompt_pending_tokens_max: int | None = None,
    kv_fill_max: float | None = None,
    mixed_hold_s: float | None = None,
    priority_ageing_s: float | None = None,
    attempts_max: int | None = None,
    retry_interval_s: float | None = None,
    park_limit_s: float | None = None,
    rejoin_limit_s: float | None = None,
    batch_tokens_max: int | None = None,
    batch_requests_max: int | None = None,
    prefill_chunk_tokens: int | None = None,
    sit_out_max: int | None = None,
    evictions_max: int | None = None,
    block_tokens: int | None = None,
    handoff_floor_blocks: int | None = None,
    quarantine_limit: float | None = None,
    report_interval_s: float | None = None,
    sends_max: int | None = None,
    receives_max: int | None = None,
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
        trace: ``"azure-conv"`` or ``"azure-code"`` (built-in length distributions), or the path of a trace: CSV of
            Azure, BurstGPT, Vidur or splitwise-sim, JSON lines of Mooncake, Dynamo or AIPerf, JSON of vLLM's benchmark
            or ShareGPT. It begins with its first request; rows out of order are sorted, which a note tells.
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
        classes: Kinds of traffic that share the rate, each with ``name``, ``share`` and, if need be, ``trace``,
            ``priority``, ``slo_ttft_s`` and ``slo_tbt_s``; or the path of a TOML file with a ``[[class]]`` for each.
            The summary tells under ``classes`` what became of each.
        invalid_rows: Rows of a trace that are no requests, as of failed ones: ``"error"``, or ``"skip"`` with a note.
        missing_output: Tokens of answers whose length a trace does not say.
        later_turns: Turns of a session with a delay instead of a time: ``"error"``, or ``"after-arrival"`` lets each
            arrive its delay after the turn before arrived.
        tokenizer: The path of a model's ``tokenizer.json``, which counts the tokens of a trace of texts.
        faults: Faults, as ``"mtbf=600,repair=30,kill=t0@20"``: mean seconds that one machine is up, seconds until a
            crashed one is back (30 by default), and machines to crash at a time.
            ``"kill=cluster@20,restart=1,grace=1"`` loses the Cluster's state: seconds until there is another, and
            seconds in which machines register with it (1 by default, both). The workload is then simulated twice: the
            report is that of requests that resume, and its summary's ``faults`` tells what faults cost there and where
            requests restart from scratch.
        check: Recount every invariant after every event; slow, for those who change the scheduler.
        machines: The path of a TOML file of machine types, which the pools may name beside the built-in ones.
        prompt_pending_tokens_max: A prompt machine with work is over when its load and the prompt exceed this;
            8192.
        kv_fill_max: A token machine is over when it would hold more than this share of its KV tokens; 0.95.
        mixed_hold_s: A machine stays in the mixed pool at least this long; 0.
        priority_ageing_s: Waiting this long outweighs one step of priority; 10.
        attempts_max: Tries of one request at most, of which only faults count; 4.
        retry_interval_s: What waits is tried again at least this often; 1.
        park_limit_s: What holds blocks without going on is taken back after this time; 30.
        rejoin_limit_s: A machine whose session ended is lost after this time; 5.
        batch_tokens_max: Prompt tokens and decodes in one pass; 2048.
        batch_requests_max: Requests in one pass; 512.
        prefill_chunk_tokens: Longer prompts are computed in chunks of so many tokens; by default whole.
        sit_out_max: A decode that sat out this many passes goes before prompts; 4.
        evictions_max: A request evicted this often is spared; 4.
        block_tokens: Tokens in a KV block; 16.
        handoff_floor_blocks: KV blocks that only incoming handoffs may take; by default what the largest one needs.
        quarantine_limit: With more than this share of its blocks in quarantine a machine takes nothing new; 0.1.
        report_interval_s: Time between reports of a machine; 1.
        sends_max: Transfers that a source runs at once; by default any number.
        receives_max: Transfers that a destination takes at once; by default any number.
        progress: Called now and then with the requests that have ended and the total, both twice with faults.

    Returns:
        The report: summary, one row per request, and batch sizes over time.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a trace, profile or file of machine types is bad; it names file, line and field.
        SimulationStuckError: If the run goes in circles; it names a request that is stuck.
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
        "classes": classes,
        "invalid_rows": invalid_rows,
        "missing_output": missing_output,
        "later_turns": later_turns,
        "tokenizer": tokenizer,
        "faults": faults,
        "check": check,
        "machines": machines,
        "prompt_pending_tokens_max": prompt_pending_tokens_max,
        "kv_fill_max": kv_fill_max,
        "mixed_hold_s": mixed_hold_s,
        "priority_ageing_s": priority_ageing_s,
        "attempts_max": attempts_max,
        "retry_interval_s": retry_interval_s,
        "park_limit_s": park_limit_s,
        "rejoin_limit_s": rejoin_limit_s,
        "batch_tokens_max": batch_tokens_max,
        "batch_requests_max": batch_requests_max,
        "prefill_chunk_tokens": prefill_chunk_tokens,
        "sit_out_max": sit_out_max,
        "evictions_max": evictions_max,
        "block_tokens": block_tokens,
        "handoff_floor_blocks": handoff_floor_blocks,
        "quarantine_limit": quarantine_limit,
        "report_interval_s": report_interval_s,
        "sends_max": sends_max,
        "receives_max": receives_max,
    }
    return _simulate(run_options(options), progress)
