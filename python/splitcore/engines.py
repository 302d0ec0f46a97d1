"""Where the runs of a search are made: on the cores of this machine, or elsewhere."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from os import cpu_count
from typing import Any, Literal, Protocol

from splitcore import _native
from splitcore.errors import wrong
from splitcore.plan_schema import Probe, Verdict

__all__ = ["ENGINES", "JOBS_MAX", "Engine", "Kind", "Local", "Progress", "engine"]

ENGINES = ("local", "ray")
JOBS_MAX = 1024

Kind = Literal["capacity", "provision", "placement"]
Progress = Callable[[int, int], object]


class Engine(Protocol):
    """Makes runs. What it answers does not hang on how many it makes at a time, or where."""

    def search(
        self, kind: Kind, spec: dict[str, Any], cache: _native.Cache | None, progress: Progress | None
    ) -> dict[str, Any]:
        """Drive a search to its end and return its answer."""

    def judge(self, probes: Sequence[Probe], progress: Progress | None) -> list[Verdict]:
        """Judge probes; the verdicts are in their order."""


def engine(name: str, jobs: int | None = None) -> Engine:
    """Look an engine up.

    Args:
        name: ``"local"`` or ``"ray"``.
        jobs: Runs that it makes at a time; None is as many as there are processors.

    Returns:
        The engine.

    Raises:
        ConfigError: If there is no such engine, it is not installed, or `jobs` is out of range.
    """
    if jobs is not None and not 1 <= jobs <= JOBS_MAX:
        raise wrong("jobs", f"1 to {JOBS_MAX}", jobs)
    if name == "local":
        return Local(jobs)
    if name == "ray":
        from splitcore.ray_engine import Ray

        return Ray(jobs)
    raise wrong("engine", " or ".join(ENGINES), name)


class Local:
    """Threads of this process."""

    def __init__(self, jobs: int | None) -> None:
        """Make so many runs at a time; None is one for each processor."""
        self._jobs = jobs

    def search(
        self, kind: Kind, spec: dict[str, Any], cache: _native.Cache | None, progress: Progress | None
    ) -> dict[str, Any]:
        """Drive a search to its end and return its answer."""
        drive: Callable[..., Any] = getattr(_native, kind)
        found: dict[str, Any] = drive(spec, self._jobs, cache, progress)
        return found

    def judge(self, probes: Sequence[Probe], progress: Progress | None) -> list[Verdict]:
        """Judge probes; the verdicts are in their order."""
        with ThreadPoolExecutor(self._jobs or cpu_count() or 1) as pool:
            runs = [pool.submit(_native.judge, probe) for probe in probes]
            try:
                for done, _ in enumerate(as_completed(runs), start=1):
                    if progress is not None:
                        progress(done, len(runs))
            except BaseException:
                # What has not begun never will; the pool waits for the rest.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [run.result() for run in runs]
