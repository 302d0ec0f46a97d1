"""What a service does now, as a page for terminals: pools, machines, handoffs and the reasons of the last decisions."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitcore import tables
from splitcore.client import Decision, Handoff, MachineRow, Overview

__all__ = ["frame"]

_BAR_CELLS = 20
_NAME_LETTERS = 14
_STATES = {"up": "green", "draining": "yellow", "quarantined": "yellow", "away": "red", "lost": "red"}


def frame(url: str, overview: Overview, *, machines: int = 32, decisions: int = 10) -> RenderableType:
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
    left_out = len(overview.machines) - machines
    return Group(
        Text(head, style="bold"),
        Text(counted),
        _pools(overview),
        _machines(overview.machines[:machines]),
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


def _machines(rows: Iterable[MachineRow]) -> Table:
    table = tables.ruled("machine", "pool", "state", "requests", "waiting tokens", "KV", "")
    for row in rows:
        share = row.kv_tokens / max(1, row.kv_capacity_tokens)
        pool = row.pool if row.pool == row.role else f"{row.pool} (of {row.role})"
        state = Text(row.state, style=_STATES.get(row.state, ""))
        table.add_row(
            row.name, pool, state, f"{row.legs:,}", f"{row.prompt_pending_tokens:,}", f"{share:.0%}", _bar(share)
        )
    return table


def _bar(share: float) -> Text:
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    return Text("█" * filled + "·" * (_BAR_CELLS - filled), style="red" if share >= 0.95 else "cyan")


def _handoffs(handoffs: Iterable[Handoff]) -> Table:
    table = tables.ruled("handoff of", "from", "to", "tokens", "how", "stage", "not hidden [ms]")
    for one in handoffs:
        exposed = "-" if one.exposed_ms is None else f"{one.exposed_ms:.1f}"
        tokens = f"{one.prompt_tokens:,}"
        table.add_row(str(one.request_id), one.from_, one.to, tokens, one.transfer or "-", one.stage, exposed)
    return table


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LETTERS else f"{name[: _NAME_LETTERS - 2]}.."


def _decisions(decisions: Iterable[Decision]) -> Table:
    table = tables.ruled("ago [s]", "request", "machines", "found", "loads", "next best")
    for one in decisions:
        ago, name = f"{one.age_ms / 1000:.1f}", _short(one.name or str(one.request_id))
        if one.rejected is not None:
            table.add_row(ago, name, Text(f"rejected: {one.rejected}", style="red"), "", "", "")
            continue
        attempt = f" #{one.attempt}" if (one.attempt or 1) > 1 else ""
        machines = one.prompt or "-" if one.prompt == one.token else f"{one.prompt} -> {one.token}"
        loads = f"{one.prompt_load or 0:,}, {one.token_load or 0:,}"
        found = f"{one.prompt_step or '-'}, {one.token_step or '-'}"
        table.add_row(ago, name + attempt, machines, found, loads, one.runner_up or "-")
    return table
