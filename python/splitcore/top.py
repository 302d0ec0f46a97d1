"""What a service does now, as a page for terminals: pools, machines, handoffs and the reasons of the last decisions."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from splitcore import tables
from splitcore.client import Decision, Handoff, MachineRow, Overview, RequestRow
from splitcore.tables import printable

__all__ = ["frame", "machine_table", "request_table"]

_BAR_CELLS_MIN, _BAR_CELLS = 4, 20
_NAME_LETTERS = 14
_STATES = {"up": "green", "draining": "yellow", "quarantined": "yellow", "away": "red", "lost": "red"}


def frame(url: str, overview: Overview, *, machines: int = 32, decisions: int = 10) -> Group:
    """Draw one moment.

    Args:
        url: Of the service.
        overview: What it tells.
        machines: So many are drawn at most.
        decisions: So many are drawn at most.

    Returns:
        What `splitcore.tables.console` prints.
    """
    counters = overview.counters
    head = f"{url}  {overview.live:,} live, {overview.parked:,} wait"
    counted = (
        f"placed {counters.placed:,}  finished {counters.finished:,}  rejected {counters.rejected:,}  "
        f"cancelled {counters.cancelled:,}  failed {counters.failed:,}  faults {counters.faults:,}  "
        f"to mixed {counters.to_mixed:,}  home {counters.to_home:,}"
    )
    left_out = (overview.machines_total or len(overview.machines)) - min(machines, len(overview.machines))
    return Group(
        Text(head, style="bold"),
        Text(counted),
        _pools(overview),
        machine_table(overview.machines[:machines]),
        *([Text(f"and {left_out:,} machines more")] if left_out > 0 else []),
        *([_handoffs(overview.handoffs[:decisions])] if overview.handoffs else []),
        _decisions(overview.decisions[:decisions]),
    )


def _pools(overview: Overview) -> Table:
    table = tables.ruled("pool", "machines", "waiting tokens mean", "max", "KV mean", "max")
    for pool in overview.pools:
        queue, usage = pool.queue_tokens, pool.kv_usage
        cells = (f"{queue.mean:,.0f}", f"{queue.max:,.0f}", f"{usage.mean:.0%}", f"{usage.max:.0%}")
        table.add_row(pool.pool, str(pool.machines), *cells)
    return table


def machine_table(rows: Iterable[MachineRow]) -> Table:
    """Draw machines, one on each line.

    Args:
        rows: What the service tells of them.

    Returns:
        What `splitcore.tables.console` prints.
    """
    table = tables.ruled("machine", "pool", "state", "requests", "waiting\ntokens", "KV", "")
    for row in rows:
        share = row.kv_tokens / max(1, row.kv_capacity_tokens)
        pool = row.pool if row.pool == row.role else f"{row.pool} (of {row.role})"
        state = Text(printable(row.state), style=_STATES.get(row.state, ""))
        counts = f"{row.legs:,}", f"{row.prompt_pending_tokens:,}", f"{share:.0%}"
        table.add_row(_short(row.name), printable(pool), state, *counts, _Fill(share))
    return table


def request_table(rows: Iterable[RequestRow]) -> Table:
    """Draw live requests, one on each line.

    Args:
        rows: What the service tells of them.

    Returns:
        What `splitcore.tables.console` prints.
    """
    table = tables.ruled("request", "age [s]", "machines", "transfer", "prompt", "output")
    for row in rows:
        age = "-" if row.age_ms is None else f"{row.age_ms / 1000:.1f}"
        attempt = f" #{row.attempt}" if (row.attempt or 1) > 1 else ""
        prompt = "-" if row.prompt_tokens is None else f"{row.prompt_tokens:,}"
        most = "" if row.max_new_tokens is None else f" of {row.max_new_tokens:,}"
        where = _pair(row.prompt, row.token) if row.state == "placed" else printable(row.state)
        cells = where, printable(row.transfer or "-"), prompt, f"{row.output_tokens:,}{most}"
        table.add_row(printable(row.name or str(row.request_id)) + attempt, age, *cells)
    return table


def _pair(prompt: str | None, token: str | None) -> str:
    first, second = _short(prompt or "-"), _short(token or "-")
    return first if prompt == token else f"{first} -> {second}"


class _Fill:
    """A bar that is as long as there is room."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_BAR_CELLS_MIN, _BAR_CELLS)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = min(_BAR_CELLS, options.max_width)
        filled = min(cells, round(self._share * cells))
        yield Text("█" * filled + "·" * (cells - filled), style="red" if self._share >= 0.95 else "cyan")


def _handoffs(handoffs: Iterable[Handoff]) -> Table:
    table = tables.ruled("handoff of", "from", "to", "tokens", "how", "stage", "not hidden [ms]")
    for one in handoffs:
        exposed = "-" if one.exposed_ms is None else f"{one.exposed_ms:.1f}"
        way = _short(one.from_), _short(one.to), f"{one.prompt_tokens:,}"
        name = _short(one.name or str(one.request_id))
        table.add_row(name, *way, printable(one.transfer or "-"), printable(one.stage), exposed)
    return table


def _short(name: str) -> str:
    """Cut a long name in its middle: machines are often told apart by their end."""
    shown = printable(name)
    if len(shown) <= _NAME_LETTERS:
        return shown
    kept = _NAME_LETTERS - 2
    return f"{shown[: kept // 2]}..{shown[len(shown) - (kept - kept // 2) :]}"


def _decisions(decisions: Iterable[Decision]) -> Table:
    table = tables.ruled("ago [s]", "request", "machines", "found", "loads", "next best")
    for one in decisions:
        ago, name = f"{one.age_ms / 1000:.1f}", _short(one.name or str(one.request_id))
        if one.rejected is not None:
            table.add_row(ago, name, Text(f"rejected: {printable(one.rejected)}", style="red"), "", "", "")
            continue
        attempt = f" #{one.attempt}" if (one.attempt or 1) > 1 else ""
        machines = _pair(one.prompt, one.token)
        loads = f"{one.prompt_load or 0:,}, {one.token_load or 0:,}"
        found = printable(f"{one.prompt_step or '-'}, {one.token_step or '-'}")
        table.add_row(ago, name + attempt, machines, found, loads, _short(one.runner_up or "-"))
    return table
