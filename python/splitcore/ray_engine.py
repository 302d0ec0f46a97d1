"""Spreads the runs of a search over a Ray cluster: ``pip install 'splitcore[ray]'`` on every node.

The search itself stays here and hands out runs as plain data; so files that options name, traces and profiles, must
be readable under the same path on every node. The answer is the one that threads of this machine give.
"""

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from splitcore import _native
from splitcore.engines import Kind, Progress
from splitcore.errors import wrong
from splitcore.plan_schema import Probe, Verdict

__all__ = ["Ray"]

# A task should take long against the millisecond or so that Ray needs for it, and all nodes should have some.
_BATCH_MAX = 16
_BATCHES_PER_JOB = 4


def _judge_all(probes: list[Probe], expected: str) -> list[Verdict]:
    """Judge probes on a node."""
    here = version("splitcore")
    if here != expected:
        raise _native.SplitcoreError(f"a Ray node has splitcore {here}, expected {expected}")
    return [_native.judge(probe) for probe in probes]


class Ray:
    """Tasks on the Ray cluster of ``RAY_ADDRESS`` or of this machine; one is started on this machine if none runs."""

    def __init__(self, jobs: int | None) -> None:
        """Have so many tasks at a time; None is one for each processor of the cluster.

        Raises:
            ConfigError: If Ray is not installed.
        """
        if find_spec("ray") is None:
            raise wrong("engine", "Ray (pip install 'splitcore[ray]')", "no such package")
        self._jobs = jobs

    def search(
        self, kind: Kind, spec: dict[str, Any], cache: _native.Cache | None, progress: Progress | None
    ) -> dict[str, Any]:
        """Drive a search to its end and return its answer."""
        search: _native.Search = getattr(_native.Search, kind)(spec)
        with _connected():
            while asked := search.ask():
                search.tell(self._round(asked, cache, progress, *search.progress()))
        return search.found()

    def judge(self, probes: Sequence[Probe], progress: Progress | None) -> list[Verdict]:
        """Judge probes; the verdicts are in their order."""
        with _connected():
            return self._round(probes, None, progress, 0, len(probes))

    def _round(
        self,
        probes: Sequence[Probe],
        cache: _native.Cache | None,
        progress: Progress | None,
        done: int,
        expected: int,
    ) -> list[Verdict]:
        """Judge what the cache does not know; `done` runs were made before."""
        known = [None if cache is None else cache.get(probe) for probe in probes]
        missing = [index for index, verdict in enumerate(known) if verdict is None]
        done += len(probes) - len(missing)
        for batch, verdicts in self._batches(probes, missing):
            for index, verdict in zip(batch, verdicts, strict=True):
                known[index] = verdict
                if cache is not None:
                    cache.put(probes[index], verdict)
            done += len(batch)
            if progress is not None:
                progress(done, expected)
        return [verdict for verdict in known if verdict is not None]

    def _batches(self, probes: Sequence[Probe], indices: Sequence[int]) -> Iterator[tuple[list[int], list[Verdict]]]:
        """Run tasks, and yield each with its verdicts as it ends.

        An error is that of the first probe in order, as with any other engine.
        """
        import ray

        processors = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]
        jobs = self._jobs or max(1, int(processors))
        size = min(_BATCH_MAX, max(1, len(indices) // (_BATCHES_PER_JOB * jobs)))
        waiting = deque(list(indices[start : start + size]) for start in range(0, len(indices), size))
        # Runs give the same result each time, so a task lost with its node is simply run again.
        judge_all = ray.remote(_judge_all).options(max_retries=3)
        running: dict[Any, list[int]] = {}
        failed: dict[int, BaseException] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    batch = waiting.popleft()
                    running[judge_all.remote([probes[index] for index in batch], version("splitcore"))] = batch
                (task, *_), _ = ray.wait(list(running))
                batch = running.pop(task)
                try:
                    verdicts = ray.get(task)
                except ray.exceptions.RayTaskError as error:
                    # What was asked before may yet fail too; nothing after it counts.
                    failed[batch[0]] = error.cause
                    waiting.clear()
                else:
                    yield batch, verdicts
        finally:
            for task in running:
                ray.cancel(task)
        if failed:
            raise failed[min(failed)]


@contextmanager
def _connected() -> Iterator[None]:
    """Connect to Ray unless the caller has; what is begun here ends here."""
    import ray

    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        # One that is named and does not answer is not to be taken for none.
        if os.environ.get("RAY_ADDRESS"):
            raise
        # Nobody else needs to reach it.
        ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    try:
        yield
    finally:
        ray.shutdown()
