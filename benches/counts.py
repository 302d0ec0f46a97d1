"""Instruction counts of fixed workloads under callgrind, against the baseline of this platform.

Counts repeat to a fraction of a per cent on a shared machine, so growth beyond `GROWTH_MAX` is a failure. They depend
on the compiler: with another one than the baseline's they are shown and fail nothing.
"""

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path

from simulation import SIZES_CSV

GROWTH_MAX = 0.03
# What recovery from failures may cost where nothing fails, over the last version that handled none (e7849ff). All
# that has come since then counts, admission and pipelines too, so a miss is shown and fails nothing.
RECOVERY_MAX = 0.05
TRACE_ROWS = 10_000


def check(root: Path, folder: Path, rustc: str, *, update: bool) -> tuple[dict[str, int], bool]:
    """The counts, and whether one of them has grown too much."""
    print()
    if shutil.which("valgrind") is None:
        print("instruction counts: skipped, valgrind is not installed")
        return {}, False
    now = count_all(root / "target/release/counts", folder)
    path = root / f"benches/baselines/{platform.machine()}.json"
    baseline = json.loads(path.read_text()) if path.exists() else {"compiler": rustc, "instructions": {}}
    if update:
        path.parent.mkdir(exist_ok=True)
        baseline |= {"compiler": rustc, "instructions": now}
        path.write_text(json.dumps(baseline, indent=2) + "\n")
        print(f"instruction counts: wrote {path.relative_to(root)}")
    before, without = baseline["instructions"], baseline.get("without_recovery", {})
    gates = baseline["compiler"] == rustc
    offenders, costly = [], []
    print(f"| {'instructions':24} | {'baseline':>13} | {'now':>13} | change | since before recovery |")
    print(f"| {'-' * 24} | {'-' * 12}: | {'-' * 12}: | -----: | {'-' * 20}: |")
    for name, count in now.items():
        old = before.get(name)
        change = "new" if old is None else f"{count / old - 1:+.2%}"
        since = f"{count / without[name] - 1:+.2%}" if name in without else ""
        print(f"| {name:24} | {old or 0:13,} | {count:13,} | {change:>6} | {since:>21} |")
        if name in without and count > without[name] * (1 + RECOVERY_MAX):
            costly.append(f"{name} {since}")
        if old is not None and count > old * (1 + GROWTH_MAX):
            offenders.append(f"{name} {change}")
    if costly and gates:
        print(f"MISS, shown only: more than {RECOVERY_MAX:.0%} over the version without recovery: {', '.join(costly)}")
    if not before:
        print(f"no baseline for {platform.machine()}; `benches/run.py --update` writes one")
    if not gates:
        print(f"the baseline is of {baseline['compiler']}, this is {rustc}: shown only")
    elif offenders:
        print(f"MISS: grown by more than {GROWTH_MAX:.0%}: {', '.join(offenders)}")
    return now, gates and bool(offenders)


def count_all(program: Path, folder: Path) -> dict[str, int]:
    (folder / "sizes.csv").write_text(SIZES_CSV)
    rows = (f"{n * 0.0137:.6f},1,{1 + n * 7919 % 4000},{1 + n * 104729 % 600}\n" for n in range(TRACE_ROWS))
    (folder / "trace.csv").write_text(SIZES_CSV.partition("\n")[0] + "\n" + "".join(rows))
    names = subprocess.check_output([program], text=True).split()
    return {name: count(program, name, folder) for name in names}


def count(program: Path, name: str, folder: Path) -> int:
    command = ["valgrind", "--tool=callgrind", "--toggle-collect=*splitcore_counted*"]
    command += [f"--callgrind-out-file={folder / 'callgrind.out'}", str(program), name, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    collected = int(found[1]) if found else 0
    if collected == 0:
        raise SystemExit(f"callgrind counted nothing of {name}:\n{done.stderr}")
    return collected


def compiler() -> str:
    lines = subprocess.check_output(["rustc", "-vV"], text=True).splitlines()
    facts = dict(line.split(": ", 1) for line in lines if ": " in line)
    return f"{lines[0]}, LLVM {facts['LLVM version']}"
