"""One place, prefill_done and finish in a steady state, by number of machines: in Rust, in Python, beside numpy."""

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from table import Row, Skipped

CURVE = (16, 64, 256, 1024, 4096, 16384)
MACHINES = 10_000
LIVE = 8192
LIVE_MANY = 40_000
STEPS = 200_000
PYTHON_STEPS = 100_000
BATCH = 1024
SEED = 1
PROMPT_TOKENS_MAX = 2048


def measure(timings: Path, repetitions: int) -> list[Row | Skipped]:
    shapes = [("external", machines, LIVE, STEPS) for machines in CURVE]
    shapes += [("external", MACHINES, LIVE, STEPS), ("external", MACHINES, LIVE_MANY, STEPS)]
    shapes += [("managed", MACHINES, LIVE, STEPS), ("linear", MACHINES, LIVE, STEPS // 10)]
    # In rounds over all shapes, so that a slow minute of the machine hits all of them alike.
    rounds = [[rust_once(timings, *shape) for shape in shapes] for _ in range(repetitions)]
    rust = [rust_row(*shape, runs) for shape, runs in zip(shapes, zip(*rounds, strict=True), strict=True)]
    curve = rust[: len(CURVE)]
    rust[len(CURVE)].aim = 0.5
    growth = median(one[len(CURVE) - 1]["cpu_ns"] / one[0]["cpu_ns"] for one in rounds)
    grown = Row(f"Rust, growth from {CURVE[0]} to {CURVE[-1]:,} machines", growth, "times", aim=3)
    return [*curve, grown, *rust[len(CURVE) :], numpy_argmins(repetitions), *python_rows(repetitions)]


def rust_once(timings: Path, books: str, machines: int, live: int, steps: int) -> dict[str, float]:
    """Nanoseconds of one step, after as many steps to warm up."""
    arguments = ["place", books, *map(str, (machines, live, steps, 1))]
    result = json.loads(subprocess.check_output([timings, *arguments], text=True))
    return result | {"cpu_ns": result["cpu_ns"][0], "wall_ns": result["wall_ns"][0]}


def rust_row(books: str, machines: int, live: int, steps: int, runs: tuple[dict[str, float], ...]) -> Row:
    commands = f", {runs[0]['commands']:g} commands" if runs[0]["commands"] else ""
    cpu, wall = ([run[key] / 1e3 for run in runs] for key in ("cpu_ns", "wall_ns"))
    return Row(
        f"Rust, {books}, {machines:,} machines",
        median(cpu),
        "us",
        wall=median(wall),
        notes=f"{live:,} live{commands}",
        details={"cpu_us": cpu, "wall_us": wall, "steps": steps},
    )


def repeat(step: Callable[[], Any], steps: int, repetitions: int) -> tuple[list[float], list[float]]:
    """Microseconds of one step, on the processor and in all, by repetition."""
    cpu, wall = [], []
    for _ in range(repetitions + 1):
        started, started_cpu = time.perf_counter_ns(), time.process_time_ns()
        step()
        cpu.append((time.process_time_ns() - started_cpu) / steps / 1e3)
        wall.append((time.perf_counter_ns() - started) / steps / 1e3)
    # The first one warms up.
    return cpu[1:], wall[1:]


def numpy_argmins(repetitions: int) -> Row:
    """The least that a pair decision costs with numpy: two argmins and two increments, no books of requests."""
    prompt_load = np.zeros(MACHINES // 2, np.int64)
    token_load = np.zeros(MACHINES // 2, np.int64)
    prompts = prompt_lengths(20_000)

    def run() -> None:
        for tokens in prompts:
            prompt_load[prompt_load.argmin()] += tokens
            token_load[token_load.argmin()] += tokens

    cpu, wall = repeat(run, len(prompts), repetitions)
    return Row(f"numpy, argmin pair, {MACHINES:,} machines", median(cpu), "us", wall=median(wall), notes="no finish")


def prompt_lengths(count: int) -> list[int]:
    draws = random.Random(SEED)
    return [draws.randint(1, PROMPT_TOKENS_MAX) for _ in range(count)]


def python_rows(repetitions: int) -> list[Row | Skipped]:
    try:
        from splitcore import Cluster
    except ImportError as error:
        return [Skipped("Python, external", f"the bindings are not built ({error})")]
    cpu, wall = place_one_by_one(Cluster, repetitions)
    name = f"Python, external, {MACHINES:,} machines"
    one = Row(name, median(cpu), "us", aim=2, wall=median(wall), notes=f"{LIVE:,} live")
    cpu, wall = place_many(Cluster, repetitions)
    name = f"Python, place_many, {MACHINES:,} machines"
    many = Row(name, median(cpu), "us", aim=0.6, wall=median(wall), notes=f"{BATCH:,} a call, place only")
    return [one, many]


def steady_cluster(make: Callable[..., Any]) -> Any:
    cluster = make(prompt_pending_tokens_max=1 << 40)
    for machine in range(MACHINES):
        cluster.add_machine(f"m{machine}", role="token" if machine % 2 else "prompt", kv_blocks=1 << 31)
    return cluster


def place_one_by_one(make: Callable[..., Any], repetitions: int) -> tuple[list[float], list[float]]:
    cluster = steady_cluster(make)
    place, prefill_done, finish = cluster.place, cluster.prefill_done, cluster.finish
    total = LIVE + PYTHON_STEPS * (repetitions + 1)
    prompts = prompt_lengths(total)
    draws = random.Random(SEED)
    # Which of the requests that decode ends next.
    ends = [draws.randrange(LIVE - LIVE // 4) for _ in range(total)]
    decoding: list[int] = []
    for request in range(LIVE):
        place(request, prompts[request], 512)
        if request >= LIVE // 4:
            prefill_done(request - LIVE // 4)
            decoding.append(request - LIVE // 4)
    state = {"next": LIVE}

    def run() -> None:
        first = state["next"]
        for request in range(first, first + PYTHON_STEPS):
            place(request, prompts[request], 512)
            prefilled = request - LIVE // 4
            prefill_done(prefilled)
            at = ends[request]
            ended, decoding[at] = decoding[at], prefilled
            finish(ended)
        state["next"] = first + PYTHON_STEPS

    return repeat(run, PYTHON_STEPS, repetitions)


def place_many(make: Callable[..., Any], repetitions: int) -> tuple[list[float], list[float]]:
    """Time of `place_many` alone; the requests before end between the calls."""
    cluster = steady_cluster(make)
    prompts = np.array(prompt_lengths(BATCH), np.uint32)
    cpu, wall = [], []
    live: list[np.ndarray] = []
    calls = PYTHON_STEPS // BATCH
    for repetition in range(repetitions + 1):
        spent_cpu = spent = 0
        for call in range(calls):
            requests = np.arange(BATCH, dtype=np.uint64) + (repetition * calls + call) * BATCH
            started, started_cpu = time.perf_counter_ns(), time.process_time_ns()
            cluster.place_many(requests, prompts)
            spent_cpu += time.process_time_ns() - started_cpu
            spent += time.perf_counter_ns() - started
            live.append(requests)
            if len(live) > LIVE // BATCH:
                for request in live.pop(0).tolist():
                    cluster.finish(request)
        cpu.append(spent_cpu / calls / BATCH / 1e3)
        wall.append(spent / calls / BATCH / 1e3)
    return cpu[1:], wall[1:]
