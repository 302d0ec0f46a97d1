"""Tables of the planner, for people."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitcore.cutting import Cut, Cuts
from splitcore.plan_schema import Candidate, Capacity, Chosen, Failing, Finding, Interval, Plan, SeedCapacity
from splitcore.tables import notes, ruled, three_digits, verdict

__all__ = ["capacity", "missed", "parallelism", "plan", "pools"]

_FRONTIER_SHOWN = 12


def pools(candidate: Candidate) -> str:
    """Name the sizes of a cluster, as ``"25P + 15T"``.

    Args:
        candidate: The cluster.

    Returns:
        The name.
    """
    return f"{candidate['prompt']}P + {candidate['token']}T" if candidate["token"] else f"x {candidate['prompt']}"


def capacity(found: Capacity) -> RenderableType:
    """Draw the highest rate of a cluster.

    Args:
        found: Of `splitcore.capacity`.

    Returns:
        What `console` prints.
    """
    facts = Table.grid(padding=(0, 2))
    facts.add_row("highest rate", Text(_rate(found), style="bold"))
    facts.add_row("for each GPU", f"{found['max_rate_per_gpu']:.4g}/s of {found['gpus']}")
    facts.add_row("fails above", _failing(found["failing"], len(found["seeds"])))
    facts.add_row("runs", f"{found['probes']:,}")
    for row in _out_of_range(found):
        facts.add_row(*row)
    seeds = ruled("seed", "holds", "fails", "fails in")
    for seed in found["seeds"]:
        failing = seed["failing_rate"]
        told = "-" if failing is None else f"{failing:.4g}/s"
        seeds.add_row(str(seed["seed"]), f"{seed['max_rate']:.4g}/s", told, missed(seed["failing"]))
    return Group(Text(f"objectives: {found['slo']}", style="bold"), facts, seeds, *notes(found["notes"]))


def plan(found: Plan, rate: float | None) -> RenderableType:
    """Draw a plan.

    Args:
        found: Of `splitcore.plan`.
        rate: That was asked for.

    Returns:
        What `console` prints.
    """
    best = found["best"]
    parts: list[RenderableType] = [_designs(found)]
    if found["frontier"]:
        parts.append(_frontier(found["frontier"]))
    if best is not None:
        parts = [*_chosen(best, rate), *parts]
    return Group(*parts, Text(f"{found['probes']:,} runs"))


def _chosen(best: Chosen, rate: float | None) -> Iterable[RenderableType]:
    candidate, found = best["candidate"], best["capacity"]
    yield Text(f"{candidate['design']}: {pools(candidate)}", style="bold")
    facts = Table.grid(padding=(0, 2))
    for name, told in zip(("cost", "power", "space"), _price(candidate), strict=True):
        facts.add_row(name, told)
    facts.add_row("highest rate", _rate(found))
    facts.add_row("fails above", _failing(found["failing"], len(found["seeds"])))
    if best["margin"] is not None and rate is not None:
        facts.add_row("margin", f"{best['margin']:+.1%} over {rate:g}/s")
    ci = found["ci"]
    if rate is not None and ci is not None and ci["low"] < rate:
        told = f"the interval reaches below the {rate:g}/s asked for: more --seeds would tell"
        facts.add_row("not certain", Text(told, style="yellow"))
    for spare in best["spare"]:
        lacks = "" if spare["holds"] else f" {missed(spare['failing']) or 'none left'}"
        facts.add_row(f"with one {spare['lost']} machine lost", Text.assemble(verdict(spare["holds"]), lacks))
    for row in _out_of_range(found):
        facts.add_row(*row)
    yield facts


def _designs(found: Plan) -> Table:
    """Draw the best of each design; which design has none is told by what is left out."""
    rates = found["design_rates"]
    table = ruled("best by design", *(["rate"] if rates else []), "machines", "cost", "power", "space")
    for at, candidate in enumerate(found["designs"]):
        if candidate is not None:
            rate = rates[at] if rates else None
            told = [f"{rate:.4g}/s" if rate is not None else "-"] if rates else []
            table.add_row(candidate["design"], *told, pools(candidate), *_price(candidate))
    if not table.row_count:
        table.add_row("none", *([""] * (len(table.columns) - 1)))
    return table


def _frontier(frontier: Sequence[Candidate]) -> Table:
    table = ruled("frontier", "machines", "cost", "power", "space")
    for candidate in frontier[:_FRONTIER_SHOWN]:
        table.add_row(candidate["design"], pools(candidate), *_price(candidate))
    if len(frontier) > _FRONTIER_SHOWN:
        table.add_row(f"and {len(frontier) - _FRONTIER_SHOWN} more; --json lists them", "", "", "", "")
    return table


def _price(candidate: Candidate) -> tuple[str, str, str]:
    total = candidate["total"]
    return (
        f"{total['cost_per_hour']:,.2f} $/h",
        f"{total['power_w'] / 1000:,.1f} kW",
        f"{total['rack_units']:,.4g} U",
    )


def _rate(found: Capacity) -> str:
    told = f"{found['max_rate']:.4g} requests/s"
    ci: Interval | None = found["ci"]
    seeds: list[SeedCapacity] = found["seeds"]
    if ci is None:
        return f"{told} (one workload: no interval)"
    return f"{told}, 95 % interval {ci['low']:.4g} to {ci['high']:.4g} ({len(seeds)} seeds)"


def _failing(failing: Sequence[Failing], seeds: int) -> str:
    told = (f"{_objective(each)} ({each['seeds']} of {seeds} seeds)" for each in failing)
    return "; ".join(told) or "nothing that was tried"


def missed(findings: Sequence[Finding]) -> str:
    """Name what was missed, and by how much.

    Args:
        findings: Of what was missed, of any number of seeds.

    Returns:
        One line; empty of nothing.
    """
    told = []
    for finding in findings:
        told.append(f"{_objective(finding)}: {_beside(finding['found'], finding['limit'])}")
    return "; ".join(dict.fromkeys(told))


def _beside(found: float | None, limit: float) -> str:
    """Write what was found with as many digits as tell it from its limit."""
    if found is None:
        return "inf"
    digits = next((digits for digits in range(3, 10) if f"{found:.{digits}g}" != f"{limit:.{digits}g}"), 10)
    return three_digits(found) if digits == 3 else f"{found:.{digits}g}"


def _out_of_range(found: Capacity) -> Iterable[tuple[str, str]]:
    lookups = sum(seed["out_of_range_lookups"] for seed in found["seeds"])
    if lookups:
        yield "cost look-ups out of range", f"{lookups:,} at these rates, extrapolated"


def _objective(of: Failing | Finding) -> str:
    return of["objective"] if of["class"] in ("", "all") else f"{of['class']} {of['objective']}"


def parallelism(found: Cuts, rate: float) -> RenderableType:
    """Draw how a model is cut.

    Args:
        found: Of `splitcore.parallelism`.
        rate: That was asked for.

    Returns:
        What `console` prints.
    """
    ways = ruled("prefill", "decode", "goodput", "for each GPU", "fails in")
    for way in found["tried"]:
        is_chosen = way["prefill"] in (None, found["prefill"]) and way["decode"] in (None, found["decode"])
        ways.add_row(
            _cut(way["prefill"]),
            _cut(way["decode"]),
            f"{way['goodput_rps']:.4g}/s",
            f"{way['goodput_rps_per_gpu']:.4g}/s",
            ", ".join(way["failing"]) or "-",
            style="bold" if is_chosen and found["prefill"] else "",
        )
    parts: list[RenderableType] = [ways]
    if found["prefill"] is not None:
        chosen = Table.grid(padding=(0, 2))
        chosen.add_row("prefill", f"{found['prefill_instances']} x {_cut(found['prefill'])}")
        chosen.add_row("decode", f"{found['decode_instances']} x {_cut(found['decode'])}")
        chosen.add_row("GPUs", str(found["gpus"]))
        chosen.add_row(f"together at {rate:g}/s", verdict(found["holds"]))
        parts.insert(0, chosen)
    # Each begins with the way that it rules out.
    reasons = Counter(reason.partition(": ")[2] for reason in found["ruled_out"])
    parts += [Text(f"{count} more ruled out, {reason}") for reason, count in reasons.items()]
    return Group(*parts, Text(f"{found['probes']:,} runs"))


def _cut(cut: Cut | None) -> str:
    return "-" if cut is None else f"tp{cut['tp']} pp{cut['pp']}"
