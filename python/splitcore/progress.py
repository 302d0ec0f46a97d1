"""A progress bar that only long runs show, and only on a terminal."""

import contextlib
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from splitcore.ending import ending
from splitcore.tables import console

__all__ = ["Bar"]

_PATIENCE_S = 0.7


class _Rate(ProgressColumn):
    """How many a second, of late."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} {self._unit}/s", style="progress.data.speed")


class Bar:
    """Drawn on stderr and gone at the end, so that what is piped or kept is only the result."""

    def __init__(self, label: str, unit: str | None = None) -> None:
        """Prepare the bar.

        Args:
            label: In front of it.
            unit: Of what is done, to show how many a second; None shows no rate.
        """
        err = console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            *([] if unit is None else [_Rate(unit)]),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._task = self._bar.add_task(label, total=None)
        self._begun = self._bar.get_time()
        self._shown = False
        # What is drawn is taken away at SIGTERM too.
        self._ending = ending()

    def update(self, done: int, total: int) -> None:
        """Advance it; the callback of `splitcore.simulate` and `splitcore.swarm`.

        Args:
            done: What has ended.
            total: All of it.
        """
        if not self._shown and self._bar.get_time() - self._begun > _PATIENCE_S:
            self._bar.start()
            self._shown = True
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        """Begin; nothing is drawn yet."""
        self._ending.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._shown:
            # A terminal that has closed takes no bar away.
            with contextlib.suppress(OSError):
                self._bar.stop()
        self._ending.__exit__(kind, error, trace)
