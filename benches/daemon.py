"""The placement service under load: pairs of place and delete over kept connections, joins, reports, memory.

The load generator runs on the same machine. Anything but 2xx is a failure, and a run with one counts for nothing.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from table import Row, Skipped

CONNECTIONS = 16
SECONDS = 3
PAIRS_AIM = {64: 25_000.0, 4096: 20_000.0}
REPORTING = 4096
REPORTS_PER_CALL = 64
TICKS = os.sysconf("SC_CLK_TCK")


def build(root: Path) -> Path:
    """Build the service and the load generator; give their folder."""
    command = ["cargo", "build", "--release", "--quiet", "-p", "splitcore-daemon"]
    subprocess.run([*command, "--bin", "splitcore-daemon", "--example", "load"], cwd=root, check=True)
    return root / "target/release"


def measure(root: Path, repetitions: int) -> list[Row | Skipped]:
    target = build(root)
    rows: list[Row | Skipped] = []
    for machines in PAIRS_AIM:
        rows += pairs(target, machines, repetitions)
    return [*rows, reporting(target)]


@contextmanager
def service(target: Path) -> Iterator[tuple[int, str]]:
    """Process id and address of a service with no machines."""
    command = [target / "splitcore-daemon", "--listen", "127.0.0.1:0", "--drain-s", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stderr or ())
            line = next(line for line in lines if "listening on" in line)
            yield process.pid, line.rsplit("/", 1)[1].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=10)


def load(target: Path, address: str, *options: object) -> Any:
    command = [target / "examples/load", address, *(str(option) for option in options)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def tries(target: Path, address: str, *options: object) -> bool:
    """Whether a load meets no failure."""
    command = [target / "examples/load", address, *(str(option) for option in options)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pairs(target: Path, machines: int, repetitions: int) -> list[Row | Skipped]:
    runs = []
    for _ in range(repetitions):
        with service(target) as (pid, address):
            asked = ["--machines", machines, "--connections", CONNECTIONS, "--seconds", SECONDS]
            runs.append(load(target, address, *asked) | {"rss_bytes": resident_bytes(pid)})

    def middle(name: str) -> float:
        return median(run[name] for run in runs)

    where = f"{machines:,} machines"
    notes = ", ".join(
        [
            f"place p50 {middle('place_p50_us'):.0f} us, p99 {middle('place_p99_us'):.0f} us",
            f"{CONNECTIONS} connections",
            f"{middle('rss_bytes') / 2**20:.0f} MiB resident",
        ]
    )
    rate = Row(
        f"service, place + delete, {where}",
        middle("pairs_per_s"),
        "pairs/s",
        aim=PAIRS_AIM[machines],
        at_least=True,
        notes=notes,
        details={"runs": runs},
    )
    return [rate, Row(f"service, {where} join in one call", middle("register_s"), "s", aim=0.3)]


def reporting(target: Path) -> Row:
    with service(target) as (pid, address):
        load(target, address, "--machines", REPORTING, "--seconds", 1)
        before = processor_s(pid)
        # Known already, so nothing joins: the option only says how many report.
        told = load(target, address, "--known", REPORTING, "--seconds", SECONDS, "--reports", REPORTS_PER_CALL)
        share = (processor_s(pid) - before) / SECONDS
    notes = f"{REPORTS_PER_CALL} in a call, p99 {told['p99_us']} us"
    return Row(f"service, {REPORTING:,} machines report at 1 Hz", 100 * share, "% of a core", aim=5.0, notes=notes)


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
