"""The command ``splitcore load``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitcore import tables
from splitcore._native import SplitcoreError
from splitcore.options import Workload, option, takes
from splitcore.outputs import Outputs
from splitcore.progress import Bar
from splitcore.service_options import SecretFile, TlsCa, secret_in, trusting
from splitcore.tables import printable
from splitcore.units import OptionError

if TYPE_CHECKING:
    from splitcore.load import LoadSummary

__all__ = ["load"]

_what = partial(option, "Requests")
_service = partial(option, "Service")
_output = partial(option, "Output")


@takes(Workload, without=("model", "requests_limit", "max_in_flight"))
def load(
    run: dict[str, Any],
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="Of a service like OpenAI's, with or without /v1.")],
    model: Annotated[str | None, _service("NAME", "To ask for; by default the first that it serves.")] = None,
    call: Annotated[str, _service("NAME", "completions or chat.")] = "completions",
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[float | None, _service("S", "Without a word, until a request has failed.")] = None,
    max_requests: Annotated[int | None, _what("N", "Only so many, the first.")] = None,
    prompt_max: Annotated[int | None, _what("TOKENS", "Longer prompts are cut to this.")] = None,
    output_max: Annotated[int | None, _what("TOKENS", "Longer outputs are cut to this.")] = None,
    prompts: Annotated[str, _what("KIND", "Token ids (tokens), or a word for each token (words).")] = "tokens",
    vocab: Annotated[int, _what("N", "Token ids are drawn below this.")] = 1000,
    ignore_eos: Annotated[bool, _what("", "Ask for outputs of the full length, where the service can.")] = False,
    out: Annotated[Path | None, _output("FILE|-", "The summary as JSON; - prints nothing else.")] = None,
) -> None:
    """Send a workload's requests to a service, each at its time whatever has come back, and tell what they met.

    Latencies are from the planned arrivals; requests that were rejected or failed count as infinitely late. Ctrl-C ends
    it with a table of what has been sent until then. Exit status 1 says that requests have failed, or that none was
    completed.
    """
    outputs = Outputs()
    outputs.reads_run(run)
    outputs.reads("--secret-file", secret_file)
    outputs.json("out", out, lambda: summary)
    for name, value, known in (("call", call, ("completions", "chat")), ("prompts", prompts, ("tokens", "words"))):
        if value not in known:
            raise OptionError(name, " or ".join(known), value)
    if vocab < 1:
        raise OptionError("vocab", "at least 1", str(vocab))
    secret, tls = secret_in(secret_file), trusting(tls_ca)
    try:
        from splitcore import load as loading
    except ImportError as error:
        raise SplitcoreError(str(error)) from None
    base = loading.base_url(url)
    target = loading.Target(
        url=base,
        model=loading.model_of(base, secret, timeout, tls) if model is None else model,
        call=cast(Literal["completions", "chat"], call),
        prompts=cast(Literal["tokens", "words"], prompts),
        vocab=vocab,
        seed=run["seed"],
        ignore_eos=ignore_eos,
        secret=secret,
        tls=tls,
        timeout_s=timeout,
    )
    with Bar("loading", unit="requests") as bar:
        summary = loading.run(
            target,
            run,
            max_requests=max_requests,
            prompt_max=prompt_max,
            output_max=output_max,
            slo_ttft_s=run.pop("slo_ttft_s"),
            slo_tbt_s=run.pop("slo_tbt_s"),
            progress=bar.update,
            interrupted=lambda summary: tables.console(stderr=True).print(_drawn(summary)),
        )
    outputs.write()
    if not outputs.use_stdout:
        tables.console().print(_drawn(summary))
    if summary["requests"]["failed"] or not summary["requests"]["completed"]:
        raise typer.Exit(1)


def _drawn(summary: "LoadSummary") -> RenderableType:
    rate = summary["rate_rps"]
    told = {"model": printable(summary["model"]), "trace": summary["trace"], "seed": summary["seed"]}
    told |= {} if rate is None else {"rate": f"{rate:.3g}/s"}
    facts = Table.grid(padding=(0, 2))
    for name, fact in _facts(summary).items():
        facts.add_row(name, fact)
    return Group(
        Text("  ".join(f"{name} {value}" for name, value in told.items()), style="bold"),
        Text(f"{summary['requests']['submitted']:,} requests: {tables.ends(summary['requests'])}"),
        tables.latencies(summary),
        facts,
    )


def _facts(summary: "LoadSummary") -> dict[str, str]:
    per_s, kept = summary["output_tokens_per_s"], summary["attainment"]
    facts = {printable(why): f"{count:,}" for why, count in summary["errors"].items()}
    facts |= {} if summary["first_error"] is None else {"the first error": printable(summary["first_error"])}
    facts |= {} if kept is None else {"requests within the limits": f"{kept:.1%}"}
    return facts | {
        "prompt tokens": f"{summary['prompt_tokens']:,}",
        "output tokens": f"{summary['output_tokens']:,}" + ("" if per_s is None else f", {per_s:,.1f}/s"),
        "gaps between tokens": f"{summary['gaps_s']['count']:,}",
        "arrivals over": f"{summary['arrivals_s']:,.1f} s",
        "sent late, at most": f"{1000 * summary['sent_late_s']:.1f} ms",
        "took": f"{summary['duration_s']:,.1f} s",
    }
