"""The ``splitcore`` command."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import splitcore
from splitcore import plots, tables
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.units import OptionError, bandwidth, switch

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
# Options whose name on the command line is not that of the Python argument with dashes.
_OPTION_NAMES = {"duration_s": "duration", "message_delay_s": "message-delay", "requests": "requests-limit"}


def main() -> None:
    """Run the command line."""
    with _one_line_errors():
        app(prog_name="splitcore")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Tell anything a user can act on in one line, with exit status 2; Ctrl-C gives 130."""
    try:
        yield
    except splitcore.ConfigError as error:
        option = _OPTION_NAMES.get(error.option, error.option.replace("_", "-"))
        _fail(f"--{option}: expected {error.expected}, got {error.got}")
    except (splitcore.SplitcoreError, OptionError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str) -> None:
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


_MACHINES, _WORKLOAD, _MODEL, _OUTPUT = "Machines", "Workload", "Scheduling and costs", "Output"


@app.command()
def simulate(
    *,
    prompt: Annotated[
        str | None, typer.Option(metavar="NxMACHINE", help="Prompt pool.", rich_help_panel=_MACHINES)
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="NxMACHINE", help="Token pool.", rich_help_panel=_MACHINES)
    ] = None,
    mixed: Annotated[
        str | None, typer.Option(metavar="NxMACHINE", help="Mixed pool.", rich_help_panel=_MACHINES)
    ] = None,
    unsplit: Annotated[
        str | None,
        typer.Option(metavar="NxMACHINE", help="Machines that each serve whole requests.", rich_help_panel=_MACHINES),
    ] = None,
    link_bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Of every machine, as 200GiB/s.", rich_help_panel=_MACHINES),
    ] = None,
    contention: Annotated[
        str,
        typer.Option(metavar="on|off", help="Transfers share the links.", rich_help_panel=_MACHINES),
    ] = "on",
    kv_limit: Annotated[
        str,
        typer.Option(metavar="on|off", help="Memory bounds the KV cache.", rich_help_panel=_MACHINES),
    ] = "on",
    model: Annotated[str, typer.Option(help="bloom-176b or llama2-70b.", rich_help_panel=_WORKLOAD)] = "bloom-176b",
    trace: Annotated[str, typer.Option(metavar="FILE|azure-conv|azure-code", rich_help_panel=_WORKLOAD)] = "azure-conv",
    rate: Annotated[
        float | None, typer.Option(metavar="PER_S", help="Requests a second.", rich_help_panel=_WORKLOAD)
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds of arrivals.", rich_help_panel=_WORKLOAD),
    ] = None,
    arrivals: Annotated[str | None, typer.Option(metavar="poisson|bursty|trace", rich_help_panel=_WORKLOAD)] = None,
    cv: Annotated[float, typer.Option(help="Of the gaps of bursty arrivals.", rich_help_panel=_WORKLOAD)] = 4.0,
    sampling: Annotated[str, typer.Option(metavar="joint|independent", rich_help_panel=_WORKLOAD)] = "joint",
    seed: Annotated[int, typer.Option(help="Of every random draw.", rich_help_panel=_WORKLOAD)] = 0,
    requests_limit: Annotated[
        int | None, typer.Option(metavar="N", help="Stop arrivals after N.", rich_help_panel=_WORKLOAD)
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(metavar="N", help="Arrivals wait beyond N.", rich_help_panel=_WORKLOAD),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="splitwise, jsq, least-requests, round-robin or power-of-two.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    costs: Annotated[str, typer.Option(metavar="measured|splitwise-sim", rich_help_panel=_MODEL)] = "measured",
    profile: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="From `splitcore profile fit`.", rich_help_panel=_MODEL),
    ] = None,
    transfer: Annotated[str, typer.Option(metavar="auto|serialized|layer-wise", rich_help_panel=_MODEL)] = "auto",
    mixed_return: Annotated[str, typer.Option(metavar="drained|idle", rich_help_panel=_MODEL)] = "drained",
    reserve: Annotated[str, typer.Option(metavar="at-arrival|at-source-done", rich_help_panel=_MODEL)] = "at-arrival",
    cut: Annotated[str, typer.Option(metavar="at-prompt|before-last", rich_help_panel=_MODEL)] = "at-prompt",
    message_delay: Annotated[
        float,
        typer.Option(metavar="S", help="Added to each message.", rich_help_panel=_MODEL),
    ] = 0.0,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE|-", help="The summary as JSON.", rich_help_panel=_OUTPUT),
    ] = None,
    requests_path: Annotated[
        Path | None,
        typer.Option("--requests", metavar="FILE.csv", help="A row per request.", rich_help_panel=_OUTPUT),
    ] = None,
    plot_path: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", help="Latencies and batches.", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """Simulate a workload and tell its latencies, SLOs and load."""
    outputs = Outputs()
    plots.check(plot_path)
    outputs.add(
        "json",
        None if json_path == _STDOUT else json_path,
        lambda path: path.write_text(_json(report) + "\n", encoding="utf-8"),
    )
    outputs.add("requests", requests_path, lambda path: report.write_requests_csv(path))
    outputs.add(
        "plot", plot_path, lambda path: plots.save({f"{model}, {report.summary['config']['policy']}": report}, path)
    )
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
            contention=switch("contention", contention),
            mixed_return=mixed_return,
            reserve=reserve,
            cut=cut,
            message_delay_s=message_delay,
            max_in_flight=max_in_flight,
            kv_limit=switch("kv-limit", kv_limit),
            requests=requests_limit,
            progress=bar.update,
        )
    outputs.write()
    if json_path == _STDOUT:
        typer.echo(_json(report))
    else:
        tables.console().print(tables.run(report.summary))


def _json(report: splitcore.Report) -> str:
    return json.dumps(report.summary, indent=2, allow_nan=False)


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
