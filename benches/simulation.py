"""Whole runs of the simulator, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from table import Row, Skipped

SIZES_CSV = "arrival_timestamp,batch_size,prompt_size,token_size\n0,1,1024,64\n"
"""A trace of one request: with generated arrivals, all are of its size."""
RATE_PER_PROMPT_MACHINE = 7.5
TRACE = "rr_conv_70_300s.csv"

PYTHON_RUN = """
import json, resource, sys, time
import splitcore
options = json.loads(sys.argv[1])
wall, cpu = time.perf_counter(), time.process_time()
report = splitcore.simulate(**options)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
requests = report.summary["requests"]
print(json.dumps({
    "cpu_s": cpu, "wall_s": wall, "rss_max_kib": rss, "rejected": requests["rejected"],
    "requests": requests["submitted"], "digest": report.summary["digest"],
}))
"""


def measure(timings: Path, repetitions: int, folder: Path, root: Path) -> list[Row | Skipped]:
    sizes = folder / "sizes.csv"
    sizes.write_text(SIZES_CSV)
    rust = [str(timings), "simulate"]
    rows = trace_rows(rust, repetitions, root)
    for machines, requests, aim in ((4, 100_000, 200_000), (512, 200_000, 100_000)):
        group = f"{machines}xdgx-h100"
        options = {"prompt": group, "token": group, "trace": str(sizes), "arrivals": "poisson", "requests": requests}
        runs = several(rust, options | {"rate": RATE_PER_PROMPT_MACHINE * machines}, repetitions)
        name = f"simulate {machines}P{machines}D, 1024 in, 64 out"
        # Throughput is promised by the wall clock; the processor's is what a quiet machine would give.
        wall_s, cpu_s = middle(runs, "wall_s"), middle(runs, "cpu_s")
        rows.append(Row(name, requests / wall_s, "req/s", aim=aim, at_least=True, notes=facts(runs), details=runs[0]))
        rows.append(Row("  by CPU time", requests / cpu_s, "req/s"))
    rows += large_rows(rust, repetitions)
    return rows


def trace_rows(rust: list[str], repetitions: int, root: Path) -> list[Row | Skipped]:
    name = "simulate 25P/26T HA, conversation 70/s, 300 s"
    trace = Path(os.environ.get("SPLITCORE_DATA", root.parent / "shared/data")) / TRACE
    if not trace.exists():
        return [Skipped(name, f"no {TRACE}; SPLITCORE_DATA names its folder")]
    options = {"prompt": "25xdgx-h100", "token": "26xdgx-a100", "trace": str(trace)}
    runs = several(rust, options, repetitions)
    rows: list[Row | Skipped] = [
        Row(name, middle(runs, "cpu_s"), "s", aim=0.3, wall=middle(runs, "wall_s"), notes=facts(runs), details=runs[0]),
    ]
    python = [sys.executable, "-c", PYTHON_RUN]
    probe = subprocess.run([sys.executable, "-c", "import splitcore"], capture_output=True, text=True, check=False)
    if probe.returncode:
        error = probe.stderr.strip().rpartition("\n")[2]
        return [*rows, Skipped("  from Python", f"the bindings are not built ({error})")]
    runs = several(python, options, repetitions)
    rows.append(Row("  from Python", middle(runs, "cpu_s"), "s", aim=0.3, wall=middle(runs, "wall_s")))
    rows.append(Row("  memory of the process", middle(runs, "rss_max_kib") / 1024, "MiB", aim=150))
    return rows


def large_rows(rust: list[str], repetitions: int) -> list[Row | Skipped]:
    options = {"prompt": "2048xdgx-h100", "token": "2048xdgx-h100", "rate": 5600, "requests": 300_000}
    runs = several(rust, options, min(repetitions, 3))
    name = "simulate 2048P/2048T, conversation 5600/s"
    cpu_s, wall_s = middle(runs, "cpu_s"), middle(runs, "wall_s")
    return [
        Row(name, cpu_s, "s", aim=5, wall=wall_s, notes=facts(runs), details=runs[0]),
        Row("  memory of the process", middle(runs, "rss_max_kib") / 1024, "MiB", aim=1024),
    ]


def several(command: list[str], options: dict[str, Any], repetitions: int) -> list[dict[str, Any]]:
    """Runs after one that warms up. All of them must come to the same result."""
    runs = []
    for _ in range(repetitions + 1):
        out = subprocess.check_output([*command, json.dumps(options | {"seed": 0})], text=True)
        runs.append(json.loads(out))
    digests = {run["digest"] for run in runs}
    if len(digests) > 1:
        raise SystemExit(f"equal runs gave different digests: {digests}")
    return runs[1:]


def middle(runs: list[dict[str, Any]], key: str) -> float:
    return median(run[key] or 0 for run in runs)


def facts(runs: list[dict[str, Any]]) -> str:
    run = runs[0]
    return (
        f"{run['requests']:,} requests, {run['rejected']} rejected, mean decode batch {run['decode_batch_mean']:.1f}, "
        f"{run['events'] / run['requests']:.1f} events each"
    )
