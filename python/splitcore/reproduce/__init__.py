"""Published comparisons, end to end, and whether they hold."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from splitcore import _native
from splitcore.engines import engine as engine_named
from splitcore.errors import wrong
from splitcore.reproduce import distserve, splitwise
from splitcore.reproduce.lab import Lab
from splitcore.reproduce.results import Row, Section, Table

__all__ = ["SYSTEMS", "reproduce"]

SYSTEMS = ("splitwise", "distserve")

Told = Callable[[str, float, float], object]


def reproduce(
    system: str,
    *,
    quick: bool = False,
    jobs: int | None = None,
    cache: str | None = None,
    progress: Told | None = None,
) -> Section:
    """Make the published comparisons of a system again.

    Args:
        system: ``"splitwise"`` or ``"distserve"``.
        quick: Short workloads and coarse searches, to see that everything runs: the numbers mean nothing.
        jobs: Runs made at a time; one for each processor by default.
        cache: A file that keeps every judged run, so that one that was interrupted goes on where it was.
        progress: Called now and then with the name of the experiment under way, the share of all work that is done and
            the seconds left, as far as can be told.

    Returns:
        Claims, numbers and verdicts, for `splitcore.reproduce.page.section`.

    Raises:
        ConfigError: If there is no such system, or `jobs` is out of range.
    """
    if system not in SYSTEMS:
        raise wrong("system", " or ".join(SYSTEMS), system)
    experiments = {"splitwise": splitwise, "distserve": distserve}[system]
    clock = _Clock(progress)
    effort = experiments.QUICK if quick else experiments.FULL
    engine = engine_named("local", jobs)
    with TemporaryDirectory() as temporary:
        # Kept runs are known by the path of their trace, so it has to be the same the next time.
        folder = Path(temporary) if cache is None else Path(cache).resolve().parent
        kept = None if cache is None else _native.Cache(cache)
        lab = Lab(effort, engine, jobs, kept, folder, clock.tell)
        rows: list[Row] = []
        tables: list[Table] = []
        total = sum(weight for _, weight, _ in experiments.STEPS)
        done = 0.0
        for name, weight, work in experiments.STEPS:
            clock.begin(name, done / total, weight / total)
            more_rows, more_tables = work(lab)
            rows += more_rows
            tables += more_tables
            done += weight
        return Section(system, experiments.TITLE, experiments.MODELS, experiments.about(lab), rows, tables)


class _Clock:
    """Tells how far all experiments are together."""

    def __init__(self, told: Told | None) -> None:
        self._told = told
        self._start = monotonic()
        self._name = ""
        # Of all work: what is done, what is left of this experiment, and how far the search under way is.
        self._done, self._left, self._at = 0.0, 0.0, 0.0

    def begin(self, name: str, done: float, share: float) -> None:
        """Begin an experiment that is a share of everything."""
        self._name, self._done, self._left, self._at = name, done, share, done
        self._tell(done)

    def tell(self, done: int, total: int) -> None:
        """Advance within a search, one of several: a tenth of what is left of the experiment is taken for it."""
        here = self._done + 0.1 * self._left * (done / total if total else 0.0)
        self._at = max(self._at, here)
        self._tell(self._at)
        if done >= total:
            self._left -= self._at - self._done
            self._done = self._at

    def _tell(self, share: float) -> None:
        if self._told is not None:
            passed = monotonic() - self._start
            self._told(self._name, share, passed * (1 - share) / share if share > 0 else float("inf"))
