"""The comparisons of the Splitwise paper."""

from collections.abc import Callable, Sequence

from splitcore.reproduce.lab import PUBLISHED, Effort, Lab
from splitcore.reproduce.results import Made
from splitcore.reproduce.splitwise.same_power import best_splits, causes, grid, headlines, iso_power
from splitcore.reproduce.splitwise.same_rate import fig_12, iso_cost, iso_throughput
from splitcore.reproduce.splitwise.switches import batch, model_switch, workload_switch
from splitcore.reproduce.splitwise.transfers import transfers

__all__ = ["FULL", "MODELS", "QUICK", "STEPS", "TITLE", "about"]

TITLE = "Splitwise (ISCA 2024)"
MODELS = ("published model", "measured model")

FULL = Effort(seeds=8, few_seeds=4, search_seeds=2, resolution=0.01, duration_s=120.0, step=1, requests=400)
QUICK = Effort(seeds=2, few_seeds=2, search_seeds=1, resolution=0.5, duration_s=3.0, step=20, requests=20, load=0.5)


def about(lab: Lab) -> list[str]:
    """Say what one has to know to read the section."""
    effort = lab.effort
    plain = {name: f"{value:.12g}" if isinstance(value, float) else value for name, value in PUBLISHED.options.items()}
    costs = ", ".join(f"{name}={value}" for name, value in plain.items())
    return [
        "A cluster holds a rate if all nine objectives of the paper's Table VI do: TTFT, TBT and E2E at p50, p90 and "
        "p99, against the same request alone on an idle DGX-A100. Requests that do not finish are infinitely late. "
        "BLOOM-176B unless it says otherwise; arrivals are Poisson, prompt and output lengths drawn independently from "
        f"the Azure traces of November 2023, {effort.duration_s:g} s each; one seed is one workload, the same for all "
        "clusters, and at another rate the same requests closer together. Rates are bisected to "
        f"{effort.resolution:.2g} of themselves, except on the grid.",
        f"- **Published model**: `{costs}`, which is how the public simulator counts: a decode pass takes the same at "
        "any batch, and transfers never meet.\n"
        "- **Measured model**: splitcore's defaults: decode passes by batch and context as in the same measurements, "
        "layer-wise transfers where they are faster, links shared. Beyond batches of 64 nobody measured: there it is "
        "extrapolated.",
        f"{lab.runs:,} runs. Ratios and differences are those of the same seed, so that what a workload does to both "
        "clusters is not in their intervals.",
    ]


STEPS: Sequence[tuple[str, float, Callable[[Lab], Made]]] = (
    ("grid", 1, grid),
    ("same power", 20, iso_power),
    ("causes", 8, causes),
    ("best splits", 30, best_splits),
    ("headlines", 30, headlines),
    ("same cost", 2, iso_cost),
    ("same throughput", 30, iso_throughput),
    ("Fig. 12", 8, fig_12),
    ("workload switch", 8, workload_switch),
    ("model switch", 20, model_switch),
    ("transfers", 1, transfers),
    ("batch jobs", 4, batch),
)
"""Name, weight in the progress shown, and the work."""
