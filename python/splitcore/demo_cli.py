"""The command ``splitcore demo``."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from splitcore.options import option
from splitcore.units import OptionError

__all__ = ["demo"]

_run = partial(option, "What is run")
_traffic = partial(option, "Traffic")


def demo(
    *,
    model: Annotated[Path | None, _run("DIR", "Folder of a model; by default SmolLM2-135M-Instruct.")] = None,
    prompt: Annotated[int, _run("N", "Prompt workers.")] = 2,
    token: Annotated[int, _run("N", "Token workers.")] = 2,
    listen: Annotated[str | None, _run("ADDR", "Of the service; by default 127.0.0.1:8090, if it is free.")] = None,
    transfer: Annotated[str, _run("NAME", "How KV moves: auto, serialized or layer-wise.")] = "layer-wise",
    event_log: Annotated[Path | None, _run("DIR", "Log every event, for splitcore replay.")] = None,
    requests: Annotated[int, _traffic("N", "Requests of real conversation lengths.")] = 16,
    prompt_max: Annotated[int, _traffic("N", "Longer prompts are cut to so many tokens.")] = 128,
    output_max: Annotated[int, _traffic("N", "Longer outputs are cut to so many tokens.")] = 24,
    rate: Annotated[float, _traffic("R", "Requests a second.")] = 0.4,
    seed: Annotated[int, _traffic("N", "Of arrivals and lengths.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up afterwards, until Ctrl-C.")] = False,
) -> None:
    """Run a real model phase-split on this machine, send it traffic, and print what its clients met.

    Ctrl-C, SIGTERM and SIGHUP end it, and everything that it has started: with exit status 0 while it stays up, before
    that with 130, 143 and 129. Status 1 says that requests have failed.
    """
    from splitcore.demo import Plan, main

    for name, count in {"prompt": prompt, "token": token, "requests": requests}.items():
        if count < 1:
            raise OptionError(name, "at least 1", str(count))
    is_whole = main(
        Plan(
            model=model,
            listen=listen,
            prompt=prompt,
            token=token,
            transfer=transfer,
            requests=requests,
            prompt_max=prompt_max,
            output_max=output_max,
            rate=rate,
            seed=seed,
            event_log=event_log,
            keep=keep,
        )
    )
    if not is_whole:
        raise typer.Exit(1)
