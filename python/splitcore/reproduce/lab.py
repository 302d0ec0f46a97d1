"""Makes the runs of the experiments, each once, and writes down how each can be made again."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path
from typing import Any, ClassVar, cast

import splitcore
from splitcore import _native, planning
from splitcore.designs import PRESETS, design
from splitcore.engines import Engine
from splitcore.plan_schema import Capacity, Plan, Price, Probe, Verdict

__all__ = ["MEASURED", "PUBLISHED", "Cluster", "Costs", "Effort", "Lab"]


@dataclass(frozen=True)
class Costs:
    """What time and links cost."""

    name: str
    options: Mapping[str, Any] = field(hash=False)


PUBLISHED = Costs(
    "published",
    {"costs": "splitwise-sim", "transfer": "serialized", "link_bandwidth": 200.0 * 2**30, "contention": False},
)
"""As the public simulator of Splitwise counts."""
MEASURED = Costs("measured", {})
"""The defaults."""


@dataclass(frozen=True)
class Effort:
    """How much work to spend."""

    seeds: int
    """Workloads that answers are averaged over: seeds 0 and on."""
    search_seeds: int
    """Workloads that pool sizes are found with; others than those that answers are measured with."""
    resolution: float
    duration_s: float
    step: int
    """Of pool sizes."""
    requests: int
    """Of the runs of single requests."""
    few_seeds: int
    """Of what takes long."""
    load: float = 1.0
    """Factor of overloads."""

    FIRST_SEARCH_SEED: ClassVar[int] = 1000


@dataclass(frozen=True)
class Cluster:
    """Machines of a design."""

    design: str
    prompt: int
    """Prompt machines, or all of an unsplit cluster."""
    token: int = 0

    @property
    def pools(self) -> dict[str, str]:
        """Machines by pool, as `splitcore.simulate` takes them."""
        machines = PRESETS[self.design]
        if "unsplit" in machines:
            return {"unsplit": f"{self.prompt}x{machines['unsplit']}"}
        return {"prompt": f"{self.prompt}x{machines['prompt']}", "token": f"{self.token}x{machines['token']}"}

    @property
    def sizes(self) -> str:
        """Its sizes, as ``"25P + 15T"``."""
        return f"{self.prompt}P + {self.token}T" if self.token else str(self.prompt)

    def total(self, prices: str) -> Price:
        """What it takes by a price table."""
        known = design(self.design, prices, [])
        prompt, token = known["prompt_price"], known["token_price"]

        def both(of_prompt: float, of_token: float) -> float:
            return self.prompt * of_prompt + self.token * of_token

        return {
            "cost_per_hour": both(prompt["cost_per_hour"], token["cost_per_hour"]),
            "power_w": both(prompt["power_w"], token["power_w"]),
            "rack_units": both(prompt["rack_units"], token["rack_units"]),
        }


class Lab:
    """Where experiments are made."""

    def __init__(
        self,
        effort: Effort,
        engine: Engine,
        jobs: int | None = None,
        cache: _native.Cache | None = None,
        folder: Path | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Prepare.

        Args:
            effort: How much work to spend.
            engine: Makes the runs that are judged.
            jobs: Other runs made at a time; None is one for each processor.
            cache: Keeps the verdicts.
            folder: For traces that have to be written.
            progress: Called with the runs made in the search under way and those there will be.
        """
        self.effort = effort
        self._engine = engine
        self._jobs = jobs or cpu_count() or 1
        self._cache = cache
        self.folder = folder or Path()
        self._progress = progress
        self._known: dict[str, Any] = {}
        self.runs = 0
        """Simulations made, and verdicts taken from the cache."""

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        text = repr(key)
        if text not in self._known:
            self._known[text] = make()
        return self._known[text]

    def traffic(self, trace: str, **more: Any) -> dict[str, Any]:
        """Write the workload of the published comparisons down: Poisson arrivals, lengths drawn independently."""
        return {"trace": trace, "duration_s": self.effort.duration_s, "sampling": "independent", **more}

    def capacity(
        self, run: Mapping[str, Any], *, seeds: int | None = None, step: float | None = None, slo: Any = "splitwise"
    ) -> Capacity:
        """Find the highest rate of a cluster.

        Args:
            run: Its options, as of `splitcore.capacity`.
            seeds: Workloads; by default as many as the effort says.
            step: Only multiples of this rate are tried.
            slo: A set by name, or as data.
        """
        count = self.effort.seeds if seeds is None else seeds

        def make() -> Capacity:
            spec = planning.capacity_spec(seeds=count, resolution=self.effort.resolution, step=step, **run)
            if not isinstance(slo, str):
                spec["slo"] = slo
            elif slo != "splitwise":
                spec["slo"] = _native.slo_set(slo)
            found = cast("Capacity", self._engine.search("capacity", spec, self._cache, self._progress))
            self.runs += found["probes"]
            return found

        return cast("Capacity", self._once(("capacity", sorted(run.items()), count, step, slo), make))

    def rates(self, run: Mapping[str, Any], **more: Any) -> list[float]:
        """Find the highest rate of a cluster for each seed; arguments are those of `capacity`."""
        return [seed["max_rate"] for seed in self.capacity(run, **more)["seeds"]]

    def plan(self, **spec: Any) -> Plan:
        """Find the best cluster; arguments are those of `splitcore.plan`."""

        def make() -> Plan:
            asked = planning.plan_spec(**spec)
            found = cast("Plan", self._engine.search("provision", asked, self._cache, self._progress))
            self.runs += found["probes"]
            return found

        return cast("Plan", self._once(("plan", sorted(spec.items())), make))

    def place(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Find how to cut a model over GPUs; `spec` is plain data, as the native call takes it."""

        def make() -> dict[str, Any]:
            found = self._engine.search("placement", dict(spec), self._cache, self._progress)
            self.runs += found["probes"]
            return found

        return cast("dict[str, Any]", self._once(("place", sorted(spec.items())), make))

    def verdicts(self, run: Mapping[str, Any], rate: float, seeds: int, slo: str = "splitwise") -> list[Verdict]:
        """Run a cluster to the end at a rate, once for each seed."""

        def make() -> list[Verdict]:
            options = planning.run_options(run)
            probes: list[Probe] = [
                {"options": {**options, "rate": rate, "seed": seed}, "slo": _native.slo_set(slo), "whole": True}
                for seed in range(seeds)
            ]
            self.runs += len(probes)
            return self._engine.judge(probes, self._progress)

        return cast("list[Verdict]", self._once(("verdicts", sorted(run.items()), rate, seeds, slo), make))

    def simulate(self, runs: Sequence[Mapping[str, Any]]) -> list[splitcore.Report]:
        """Simulate and keep every request; each run has the arguments of `splitcore.simulate`."""

        def make(run: Mapping[str, Any]) -> splitcore.Report:
            return splitcore.simulate(**run)

        def make_all() -> list[splitcore.Report]:
            self.runs += len(runs)
            with ThreadPoolExecutor(self._jobs) as pool:
                return list(pool.map(make, runs))

        return cast("list[splitcore.Report]", self._once(("simulate", [sorted(run.items()) for run in runs]), make_all))
