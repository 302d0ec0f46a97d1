"""The ``splitcore`` command."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

import splitcore
from splitcore import plots, tables
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.units import OptionError, bandwidth

__all__ = ["app", "main"]

app = typer.Typer(
    name="splitcore",
    help="Schedule and simulate phase-split LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
profile_app = typer.Typer(help="Cost profiles.", no_args_is_help=True)
app.add_typer(profile_app, name="profile")

_STDOUT = Path("-")
# Native names of options that the command line does not spell with dashes for underscores.
_OPTION_NAMES = {
    "duration_s": "duration",
    "from_seed": "from",
    "message_delay_s": "message-delay",
    "requests": "requests-limit",
    "slo_ttft_s": "slo-ttft",
    "slo_tbt_s": "slo-tbt",
}
_Switch = Literal["on", "off"]


def main() -> None:
    """Run the command line.

    What a user can mend is told in one line with exit status 2; Ctrl-C gives 130.
    """
    try:
        sys.exit(app(prog_name="splitcore", standalone_mode=False))
    except splitcore.ConfigError as error:
        option = _OPTION_NAMES.get(error.option, error.option.replace("_", "-"))
        _fail(f"--{option}: expected {error.expected}, got {error.got}")
    except typer.TyperException as error:
        # Without a message, help has been printed.
        _fail(error.format_message())
    except (splitcore.SplitcoreError, OptionError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))


def _fail(message: str) -> NoReturn:
    if message:
        tables.console(stderr=True).print(f"splitcore: error: {' '.join(message.split())}", soft_wrap=True)
    sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"splitcore {splitcore.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Schedule and simulate phase-split LLM inference."""


def _option(panel: str, metavar: str, about: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=about, rich_help_panel=panel)


_machines = partial(_option, "Machines")
_workload = partial(_option, "Workload")
_rules = partial(_option, "Scheduling and costs")
_output = partial(_option, "Output")


@app.command()
def simulate(
    *,
    prompt: Annotated[str | None, _machines("NxMACHINE", "Prompt pool, as 25xdgx-h100 or 4xdgx-a100:tp4.")] = None,
    token: Annotated[str | None, _machines("NxMACHINE", "Token pool.")] = None,
    mixed: Annotated[str | None, _machines("NxMACHINE", "Mixed pool.")] = None,
    unsplit: Annotated[str | None, _machines("NxMACHINE", "Machines that each serve whole requests.")] = None,
    link_bandwidth: Annotated[str | None, _machines("RATE", "Of every machine, as 200GiB/s.")] = None,
    contention: Annotated[_Switch, _machines("on|off", "Transfers share the links.")] = "on",
    kv_limit: Annotated[_Switch, _machines("on|off", "Memory bounds the KV cache.")] = "on",
    faults: Annotated[
        str | None, _machines("SPEC", "Crashes: mtbf=S, repair=S, kill=NAME@S; kill=cluster@S, restart=S, grace=S.")
    ] = None,
    model: Annotated[str, _workload("NAME", "bloom-176b or llama2-70b.")] = "bloom-176b",
    trace: Annotated[str, _workload("NAME|FILE", "azure-conv, azure-code, or a CSV or JSONL trace.")] = "azure-conv",
    rate: Annotated[float | None, _workload("PER_S", "Requests a second; a trace is stretched to it.")] = None,
    duration: Annotated[float | None, _workload("S", "Seconds of arrivals.")] = None,
    arrivals: Annotated[str | None, _workload("NAME", "poisson, bursty, or trace for a file's own times.")] = None,
    cv: Annotated[float, _workload("X", "Coefficient of variation of bursty gaps.")] = 4.0,
    sampling: Annotated[str, _workload("NAME", "Lengths drawn joint or independent.")] = "joint",
    seed: Annotated[int, _workload("N", "Of every random draw.")] = 0,
    requests_limit: Annotated[int | None, _workload("N", "Stop arrivals after N.")] = None,
    max_in_flight: Annotated[int | None, _workload("N", "Reject arrivals while N are served.")] = None,
    slo_ttft: Annotated[float | None, _workload("S", "Limit on the time to the first token.")] = None,
    slo_tbt: Annotated[float | None, _workload("S", "Limit on the time between tokens.")] = None,
    admission: Annotated[str, _rules("NAME", "By bounds; or by limits, early or predicted.")] = "bounds",
    recovery_headroom: Annotated[float, _rules("SHARE", "Left free for work that comes back after faults.")] = 0.0,
    split_from: Annotated[int, _rules("TOKENS", "Shorter prompts are not split.")] = 0,
    policy: Annotated[
        str | None, _rules("NAME", "splitwise, jsq, least-requests, round-robin or power-of-two.")
    ] = None,
    costs: Annotated[str, _rules("NAME", "measured or splitwise-sim.")] = "measured",
    profile: Annotated[str | None, _rules("FILE.toml", "Costs from 'splitcore profile fit'.")] = None,
    transfer: Annotated[str, _rules("NAME", "auto, serialized or layer-wise.")] = "auto",
    mixed_return: Annotated[str, _rules("NAME", "Machines leave the mixed pool drained or idle.")] = "drained",
    reserve: Annotated[str, _rules("NAME", "KV blocks at-arrival or at-source-done.")] = "at-arrival",
    cut: Annotated[str, _rules("NAME", "Split requests at-prompt or before-last.")] = "at-prompt",
    ties: Annotated[str, _rules("NAME", "Of equally loaded machines, the first or last.")] = "first",
    message_delay: Annotated[float, _rules("S", "Added to each message.")] = 0.0,
    json_path: Annotated[Path | None, _output("FILE|-", "The summary; - prints nothing else.", "--json")] = None,
    requests_path: Annotated[Path | None, _output("FILE.csv", "A row per request.", "--requests")] = None,
    plot_path: Annotated[Path | None, _output("FILE.png", "Latencies, SLOs and batches.", "--plot")] = None,
) -> None:
    """Simulate a workload and tell its latencies, SLOs and load."""
    outputs = Outputs()
    plots.check(plot_path)
    if json_path != _STDOUT:
        outputs.add("json", json_path, lambda path: path.write_text(f"{_json(report)}\n", encoding="utf-8"))
    outputs.add("requests", requests_path, lambda path: report.write_requests_csv(path))
    outputs.add("plot", plot_path, lambda path: plots.save({f"{model}, {report.summary['policy']}": report}, path))
    with Bar("simulating") as bar:
        report = splitcore.simulate(
            prompt=prompt,
            token=token,
            mixed=mixed,
            unsplit=unsplit,
            model=model,
            trace=trace,
            rate=rate,
            duration_s=duration,
            arrivals=arrivals,
            cv=cv,
            sampling=sampling,
            seed=seed,
            policy=policy,
            costs=costs,
            profile=profile,
            transfer=transfer,
            link_bandwidth=bandwidth(link_bandwidth),
            contention=contention == "on",
            mixed_return=mixed_return,
            reserve=reserve,
            cut=cut,
            ties=ties,
            message_delay_s=message_delay,
            max_in_flight=max_in_flight,
            admission=admission,
            slo_ttft_s=slo_ttft,
            slo_tbt_s=slo_tbt,
            recovery_headroom=recovery_headroom,
            split_from=split_from,
            kv_limit=kv_limit == "on",
            requests=requests_limit,
            faults=faults,
            progress=bar.update,
        )
    outputs.write()
    if json_path == _STDOUT:
        typer.echo(_json(report))
    else:
        tables.console().print(tables.run(report.summary))


def _json(report: splitcore.Report) -> str:
    return _dump(report.summary)


def _dump(summary: object) -> str:
    return json.dumps(summary, indent=2, allow_nan=False)


@app.command()
def swarm(
    *,
    seeds: Annotated[int, typer.Option(metavar="N", help="Random worlds to run.")] = 300,
    from_seed: Annotated[int, typer.Option("--from", metavar="SEED", help="The first of them.")] = 0,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Threads; by default one for each processor.")] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE|-", help="The summary; - prints nothing else.")
    ] = None,
) -> None:
    """Run random worlds full of faults and check every invariant after every event.

    Exit status 1 when a seed failed.
    """
    outputs = Outputs()
    if json_path != _STDOUT:
        outputs.add("json", json_path, lambda path: path.write_text(f"{_dump(summary)}\n", encoding="utf-8"))
    with Bar("swarm", unit="seeds") as bar:
        summary = splitcore.swarm(seeds=seeds, from_seed=from_seed, jobs=jobs, progress=bar.update)
    outputs.write()
    if json_path == _STDOUT:
        typer.echo(_dump(summary))
    else:
        tables.console().print(tables.swarm(summary))
    if summary["failed"]:
        raise typer.Exit(1)


@profile_app.command()
def fit(
    measurements: Annotated[Path, typer.Argument(metavar="FILE.csv", help="One row per measurement.")],
    out: Annotated[Path, typer.Option(metavar="FILE.toml", help="The profile.")],
) -> None:
    """Fit a cost profile to measurements, for `splitcore simulate --profile`."""
    outputs = Outputs()
    errors: dict[str, dict[str, float]] = {}
    outputs.add("out", out, lambda path: errors.update(splitcore.profile_fit(measurements, path)))
    outputs.write()
    tables.console().print(tables.fit_errors(errors))


if __name__ == "__main__":
    main()
