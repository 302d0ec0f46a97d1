"""What handing the KV over costs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitcore.reproduce.lab import MEASURED, PUBLISHED, Costs, Lab
from splitcore.reproduce.results import Column, Made, Part, Table, command, shown
from splitcore.reproduce.splitwise.common import (
    BOTH,
    CODE,
    row,
    seeds_told,
)
from splitcore.reproduce.verdicts import Estimate, estimate, exactly

__all__ = ["transfers"]

_RATE_RPS = 1e-4
"""So few that the longest request of the trace is over before the next comes."""

_NONE = "the public simulator knows no layer-wise transfer"

_Values = NDArray[np.float64]


def transfers(lab: Lab) -> Made:
    """Measure what handing the KV over costs a request alone."""
    shares: dict[tuple[str, str, str], list[Estimate]] = {}
    crossover, rows, commands = {}, [], []
    for costs in BOTH:
        modes = ("serialized",) if costs is PUBLISHED else ("serialized", "layer-wise")
        for machine in ("dgx-a100", "dgx-h100"):
            extras: dict[str, tuple[_Values, _Values]] = {}
            for mode in modes:
                runs = _two_machines(lab, costs, machine, mode)
                commands += [command("simulate", run) for run in runs[:2]]
                alike = [_against_one(*pair) for pair in _pairs(lab.simulate(runs))]
                found = [estimate([values[at] for values, _, _ in alike]) for at in range(4)]
                shares[costs.name, machine, mode] = found
                extras[mode] = (alike[0][1], alike[0][2])
                rows.append([machine, costs.name, mode, *(shown(each, "percent") for each in found)])
            if "layer-wise" in extras:
                prompts, extra = extras["serialized"]
                slope = float(prompts @ extra / (prompts @ prompts))
                crossover[costs.name, machine] = float(np.mean(extras["layer-wise"][1])) / slope
    made = []
    for name, mode, at in (
        ("transfer-share", "serialized", 0),
        ("e2e-layer-wise", "layer-wise", 1),
        ("e2e-serialized", "serialized", 2),
        ("second-layer-wise", "layer-wise", 3),
        ("second-serialized", "serialized", 3),
    ):
        columns = {}
        for costs in BOTH:
            machines = (("A100", "dgx-a100"), ("H100", "dgx-h100"))
            known = [(label, shares.get((costs.name, machine, mode))) for label, machine in machines]
            parts = [Part(label, found[at]) for label, found in known if found is not None]
            one_link = "the public simulator gives all machines one link" if costs is PUBLISHED else ""
            columns[costs.name] = Column(parts, one_link if parts else _NONE)
        made.append(row(name, columns, commands, seeds_told(lab.effort.seeds)))
    nothing = Column((), _NONE)
    made.append(
        row(
            "crossover",
            {
                PUBLISHED.name: nothing,
                MEASURED.name: Column(
                    [Part("", exactly(crossover[MEASURED.name, "dgx-h100"]))],
                    "of the fixed 5 ms, which goes in, and the link",
                ),
            },
            commands,
            "0",
        )
    )
    given = Column((), "it goes into our model as printed: no evidence")
    made.append(row("visible", {PUBLISHED.name: nothing, MEASURED.name: given}, [], "-"))
    head = (
        "machines", "model", "transfer", "of prompt time", "of E2E", "of E2E, longest tenth of prompts", "second token",
    )  # fmt: skip
    about = (
        f"{lab.effort.requests} coding requests each of seeds {seeds_told(lab.effort.seeds)}, one after another: "
        "what a prompt and a token machine add to one machine that serves whole requests; medians over requests."
    )
    return made, [Table("What the transfer costs a request alone", about, head, rows)]


def _two_machines(lab: Lab, costs: Costs, machine: str, mode: str) -> list[dict[str, Any]]:
    """For each seed a run on two machines and one of the same requests on one."""
    alone = {"trace": CODE, "sampling": "independent", "rate": _RATE_RPS, "requests": lab.effort.requests}
    rules = {**costs.options, "transfer": mode}
    runs: list[dict[str, Any]] = []
    for seed in range(lab.effort.seeds):
        split = {"prompt": f"1x{machine}", "token": f"1x{machine}"}
        for pools in (split, {"unsplit": f"1x{machine}"}):
            runs.append({**pools, **alone, "duration_s": 10.0 / _RATE_RPS * lab.effort.requests, **rules, "seed": seed})
    return runs


def _pairs(reports: Sequence[Any]) -> list[tuple[NDArray[np.void], NDArray[np.void]]]:
    return [(reports[at].requests, reports[at + 1].requests) for at in range(0, len(reports), 2)]


def _against_one(
    split: NDArray[np.void], whole: NDArray[np.void]
) -> tuple[tuple[float, float, float, float], _Values, _Values]:
    """Tell what two machines add: as shares of prompt time, E2E, E2E of long prompts and a token; prompts; seconds."""
    extra: _Values = split["e2e_s"] - whole["e2e_s"]
    prompts: _Values = whole["prompt_tokens"].astype(np.float64)
    is_long = prompts >= np.quantile(prompts, 0.9)
    shares = (
        float(np.median(extra / whole["ttft_s"])),
        float(np.median(extra / whole["e2e_s"])),
        float(np.median((extra / whole["e2e_s"])[is_long])),
        float(np.nanmedian(extra / whole["tbt_mean_s"])),
    )
    return shares, prompts, extra
