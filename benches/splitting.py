"""What splitting costs a request of the demo model, which the PyTorch environment runs: `engine.py`."""

import json
import os
import subprocess
from pathlib import Path

from table import Row, Skipped


def measure(root: Path, python: Path | None) -> list[Row | Skipped]:
    if python is None or not python.exists():
        return [Skipped("split beside unsplit", "no PyTorch environment: --torch says where its interpreter is")]
    environ = {**os.environ, "PYTHONPATH": str(root / "python"), "HF_HUB_OFFLINE": "1"}
    command = [python, root / "benches/engine.py", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if done.returncode != 0:
        return [Skipped("split beside unsplit", done.stderr.strip().splitlines()[-1])]
    rows: list[Row | Skipped] = []
    for one in json.loads(done.stdout):
        if one["way"] == "unsplit":
            continue
        notes = ", ".join(
            [
                f"{one['kv_mb']:.0f} MB",
                f"second token after {one['second_ms']:.0f} ms, {one['delay_ms']:+.1f} beside unsplit",
                f"whole request {one['whole_ms']:.0f} ms, {one['more_percent']:+.1f} %",
            ]
        )
        name = f"SmolLM2, {one['prompt']} tokens, {one['way']}: second token waits for KV"
        rows.append(Row(name, one["waited_ms"], "ms", notes=notes, details=one))
    return rows
