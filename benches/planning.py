"""Whole searches of the planner, each in a process of its own, on two cores."""

import json
import subprocess
import sys
from statistics import median
from typing import Any

from table import Row

CORES = 2

# The published pool sizes of equal power, conversation.
ISO_POWER = (
    {"unsplit": "70xdgx-a100"},
    {"unsplit": "40xdgx-h100"},
    {"prompt": "45xdgx-a100", "token": "25xdgx-a100"},
    {"prompt": "25xdgx-h100", "token": "15xdgx-h100"},
    {"prompt": "25xdgx-h100", "token": "26xdgx-a100"},
    {"prompt": "25xdgx-h100", "token": "21xdgx-h100-cap"},
)

GRID = """
import json, sys, time
import splitcore
began, cpu = time.perf_counter(), time.process_time()
found = splitcore.plan(
    designs=["splitwise-hh"], goal="min-cost", rate=70, machines_max=39, whole_map=True, seeds=1, jobs=JOBS
)
print(json.dumps({
    "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "probes": found["probes"],
    "cells": len(found["map"]), "holding": sum(cell["holds"] for cell in found["map"]),
    "best": found["best"] and found["best"]["candidate"],
}))
"""

CAPACITIES = """
import json, sys, time
import splitcore
began, cpu = time.perf_counter(), time.process_time()
found = [splitcore.capacity(**cluster, duration_s=120, seeds=5, jobs=JOBS) for cluster in json.loads(sys.argv[1])]
print(json.dumps({
    "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu,
    "probes": sum(one["probes"] for one in found), "rates": [one["max_rate"] for one in found],
}))
"""


def measure(repetitions: int) -> list[Row]:
    """Measure both searches.

    The aims are wall time; a search takes long enough to be measured three times at most.
    """
    few = min(repetitions, 3)
    grid = [run(GRID) for _ in range(few)]
    rates = [run(CAPACITIES, json.dumps(ISO_POWER)) for _ in range(few)]
    same = {json.dumps([one["best"], one["holding"]]) for one in grid} | {json.dumps(one["rates"]) for one in rates}
    if len(same) != 2:
        raise SystemExit(f"the same search gave different answers: {sorted(same)}")
    cells, holding = grid[0]["cells"], grid[0]["holding"]
    return [
        row(
            "plan, 39 x 39 HH at 70/s, every pair",
            grid,
            180,
            f"{cells:,} pairs, {holding} hold, {grid[0]['probes']:,} runs",
        ),
        row("six iso-power capacities, conversation", rates, 60, f"5 seeds to 1 %, {rates[0]['probes']} runs"),
    ]


def row(name: str, runs: list[dict[str, Any]], aim: float, notes: str) -> Row:
    wall_s, cpu_s = (median(run[key] for run in runs) for key in ("wall_s", "cpu_s"))
    return Row(name, wall_s, "s", aim=aim, notes=f"{notes}; {cpu_s:.3g} s of processor time", details=runs[0])


def run(program: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", program.replace("JOBS", str(CORES)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
