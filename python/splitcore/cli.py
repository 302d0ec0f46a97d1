"""The ``splitcore`` command."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import splitcore
from splitcore import (
    bench_transfer_cli,
    demo_cli,
    load_cli,
    operate_cli,
    plan_cli,
    plots,
    replay_cli,
    reproduce_cli,
    serve_cli,
    tables,
    top_cli,
    worker_cli,
)
from splitcore.errors import ProcessError
from splitcore.options import Machines, Pools, Rules, Workload, option, takes
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.units import OptionError

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

# Native names of options that the command line does not spell with dashes for underscores.
_OPTION_NAMES = {
    "designs": "design",
    "limits": "cost-limit",
    "duration_s": "duration",
    "from_seed": "from",
    "machine_types": "machines",
    "message_delay_s": "message-delay",
    "requests": "requests-limit",
    "slo_ttft_s": "slo-ttft",
    "slo_tbt_s": "slo-tbt",
}


def main() -> None:
    """Run the command line.

    What a user can mend is told in one line with exit status 2, below which a process that has failed has its last
    words; Ctrl-C gives 130.
    """
    try:
        sys.exit(app(prog_name="splitcore", standalone_mode=False))
    except splitcore.ConfigError as error:
        name = _OPTION_NAMES.get(error.option, error.option.replace("_", "-"))
        _fail(f"--{name}: expected {error.expected}, got {error.got}")
    except typer.TyperException as error:
        # Without a message, help has been printed.
        _fail(error.format_message())
    except ProcessError as error:
        _fail(error.message, error.said)
    except (splitcore.SplitcoreError, OptionError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))


def _fail(message: str, said: Sequence[str] = ()) -> NoReturn:
    err = tables.console(stderr=True)
    if message:
        err.print(f"splitcore: error: {' '.join(message.split())}", soft_wrap=True)
    for line in said:
        err.print(f"  {line}", soft_wrap=True)
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


_output = partial(option, "Output")


@app.command()
@takes(Pools, Machines, Workload, Rules)
def simulate(
    run: dict[str, Any],
    *,
    json_path: Annotated[Path | None, _output("FILE|-", "The summary; - prints nothing else.", "--json")] = None,
    requests_path: Annotated[
        Path | None, _output("FILE.csv|-", "A row per request; - prints nothing else.", "--requests")
    ] = None,
    plot_path: Annotated[Path | None, _output("FILE.png", "Latencies, SLOs and batches.", "--plot")] = None,
) -> None:
    """Simulate a workload and tell its latencies, SLOs and load."""
    outputs = Outputs()
    plots.check(plot_path)
    outputs.reads_run(run)
    outputs.json("json", json_path, lambda: report.summary)
    outputs.add("requests", requests_path, lambda path: report.write_requests_csv(path), or_stdout=True)
    outputs.add(
        "plot", plot_path, lambda path: plots.save({f"{run['model']}, {report.summary['policy']}": report}, path)
    )
    with Bar("simulating") as bar:
        report = splitcore.simulate(**run, progress=bar.update)
    outputs.write()
    if not outputs.use_stdout:
        tables.console().print(tables.run(report.summary))


app.command()(plan_cli.capacity)
app.command()(plan_cli.plan)
app.command()(plan_cli.parallelism)
app.command()(reproduce_cli.reproduce)
app.command()(bench_transfer_cli.bench_transfer)
app.command()(serve_cli.serve)
app.command()(worker_cli.worker)
app.command()(demo_cli.demo)
app.command()(replay_cli.replay)
app.command()(load_cli.load)
app.command()(top_cli.top)
app.command()(operate_cli.machines)
app.command()(operate_cli.requests)
app.command()(operate_cli.drain)
app.command()(operate_cli.undrain)


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
    outputs.json("json", json_path, lambda: summary)
    with Bar("swarm", unit="seeds") as bar:
        summary = splitcore.swarm(seeds=seeds, from_seed=from_seed, jobs=jobs, progress=bar.update)
    outputs.write()
    if not outputs.use_stdout:
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
    outputs.reads("FILE.csv", measurements)
    errors: dict[str, dict[str, float]] = {}
    outputs.add("out", out, lambda path: errors.update(splitcore.profile_fit(measurements, path)))
    outputs.write()
    tables.console().print(tables.fit_errors(errors))


if __name__ == "__main__":
    main()
