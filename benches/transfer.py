"""How fast KV moves between two processes, beside what the machine can do at best in the same run."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from table import Row, Skipped

PLANNED_BLOCKS = 4096


def measure(timings: Path, repetitions: int) -> list[Row | Skipped]:
    return [*planned(timings, repetitions), *moved(repetitions)]


def planned(timings: Path, repetitions: int) -> list[Row | Skipped]:
    rows: list[Row | Skipped] = []
    for table, aim in (("order", 20.0), ("scattered", None)):
        command = [timings, "kv-plan", table, str(PLANNED_BLOCKS), str(repetitions)]
        took = json.loads(subprocess.check_output(command, text=True))
        speeds = [PLANNED_BLOCKS / nanoseconds * 1e3 for nanoseconds in took["cpu_ns"]]
        where = "contiguous" if table == "order" else table
        name = f"KV transfer plan, {PLANNED_BLOCKS:,} blocks, {where}"
        rows.append(Row(name, median(speeds), "M blocks/s", aim, at_least=True, details={"speeds": speeds}))
    return rows


def moved(repetitions: int) -> list[Row | Skipped]:
    command = [
        sys.executable,
        "-m",
        "splitcore.cli",
        "bench-transfer",
        "--json",
        "-",
        "--repetitions",
        str(repetitions),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [Skipped("KV transfers", done.stderr.strip())]
    rows: list[Row | Skipped] = []
    for one in json.loads(done.stdout):
        rows += transport(one)
    return rows


def transport(one: dict[str, Any]) -> list[Row | Skipped]:
    name = one["backend"]
    ceiling = {"shm": "one-thread memcpy", "tcp": "one plain socket"}.get(name, "one-thread memcpy")
    rows: list[Row | Skipped] = []
    for speed in one["bandwidth"]:
        rate, best, block = speed["bytes_per_second"], speed["ceiling_bytes_per_second"], speed["block_bytes"]
        aimed = (name == "shm" and block >= 64 << 10) or (name == "tcp" and block == 256 << 10)
        rows.append(
            Row(
                f"{name}, blocks of {block >> 10} KiB",
                rate / best,
                f"of {ceiling}",
                aim=0.9 if aimed else None,
                at_least=True,
                notes=f"{rate / 1e9:.2f} of {best / 1e9:.2f} GB/s",
            )
        )
    notify = one["notify"]
    aim = 10.0 if name == "shm" else None
    rows.append(
        Row(
            f"{name}, layer seen, one way", notify["p50_ns"] / 1e3, "us", aim, notes=f"p99 {notify['p99_ns'] / 1e3:.0f}"
        )
    )
    if "exposed" in one:
        wise, serial = one["exposed"]["layer_wise_ns"], one["exposed"]["serialized_ns"]
        note = f"{wise / 1e6:.2f} of {serial / 1e6:.1f} ms after the prefill"
        rows.append(
            Row(f"{name}, layer-wise exposed under a throttle", wise / serial, "of serialized", 0.1, notes=note)
        )
    if "queued" in one:
        queued = one["queued"]
        first, last = queued["first_per_second"], queued["last_per_second"]
        note = f"{first:,.0f} and {last:,.0f} a second"
        rows.append(
            Row(f"{name}, {queued['transfers']:,} queued: last tenth", last / first, "of the first", notes=note)
        )
    return rows
