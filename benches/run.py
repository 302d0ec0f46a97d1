"""Builds and runs the benchmarks, prints one table and writes out/bench.json.

``make bench`` calls it without options. Times inform; only instruction counts can fail it.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import counts
import daemon
import peers
import placement
import planning
import simulation
import splitting
import transfer
from table import Row, Skipped, show

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("placement", "simulation", "planning", "transfer", "splitting", "daemon", "peers", "counts")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only; may be repeated")
    parser.add_argument("--repetitions", type=int, default=5, help="of each measurement, after one to warm up")
    parser.add_argument("--update", action="store_true", help="take the instruction counts as the new baseline")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="interpreter that has PyTorch")
    options = parser.parse_args()
    parts = options.only or PARTS

    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "splitcore-benches"], cwd=ROOT, check=True)
    timings = ROOT / "target/release/timings"
    about = circumstances()
    print(*(f"{key}: {value}" for key, value in about.items()), sep="\n")

    rows: list[Row | Skipped] = []
    with tempfile.TemporaryDirectory() as folder:
        if "placement" in parts:
            rows += placement.measure(timings, options.repetitions)
        if "simulation" in parts:
            rows += simulation.measure(timings, options.repetitions, Path(folder), ROOT)
        if "planning" in parts:
            rows += planning.measure(options.repetitions)
        if "transfer" in parts:
            rows += transfer.measure(timings, options.repetitions)
        if "splitting" in parts:
            rows += splitting.measure(ROOT, options.torch)
        if "daemon" in parts:
            rows += daemon.measure(ROOT, options.repetitions)
        if "peers" in parts:
            rows += peers.measure(ROOT, options.repetitions)
        show(rows)
        failed = False
        counted = {}
        if "counts" in parts:
            counted, failed = counts.check(ROOT, Path(folder), about["compiler"], update=options.update)

    out = ROOT / "out/bench.json"
    out.parent.mkdir(exist_ok=True)
    result = {"about": about, "rows": [row.as_json() for row in rows], "counts": counted}
    out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if failed else 0


def circumstances() -> dict[str, str]:
    """What the numbers hold for."""
    commit = output("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    changed = " with changes" if output("git", "status", "--porcelain", "--untracked-files=no") else ""
    return {
        "commit": commit + changed,
        "compiler": counts.compiler(),
        "machine": f"{cpus()} ({platform.system()} {platform.machine()})",
        "python": platform.python_version(),
    }


def cpus() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.processor()


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
