"""The command ``splitcore top``."""

import contextlib
import time
from functools import partial
from typing import Annotated

from rich.console import Group
from rich.live import Live
from rich.text import Text

from splitcore import tables
from splitcore._native import SplitcoreError
from splitcore.ending import ending
from splitcore.options import option
from splitcore.service_options import SERVICE_URL, SecretFile, Timeout, TlsCa, Url, connected
from splitcore.units import OptionError

__all__ = ["top"]

_show = partial(option, "What is shown")


def top(
    url: Url = SERVICE_URL,
    *,
    once: Annotated[bool, _show("", "Print one frame and end.")] = False,
    interval: Annotated[float, _show("S", "Between two frames.")] = 1.0,
    machines: Annotated[int, _show("N", "Machines at most.")] = 32,
    decisions: Annotated[int, _show("N", "Decisions at most.")] = 10,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = 5.0,
) -> None:
    """Show what a service does: pools, machines and the reasons of the last decisions, until Ctrl-C.

    While the service does not answer, the last frame stays, under the reason.
    """
    if not 0 < interval < float("inf"):
        raise OptionError("interval", "more than 0 seconds", str(interval))
    with connected(url, secret_file, tls_ca, timeout) as client:
        from splitcore.top import frame

        def drawn() -> Group:
            return frame(url.rstrip("/"), client.overview(), machines=machines, decisions=decisions)

        # The first answer is to come: what is wrong from the start is an error.
        shown, last = tables.console(), drawn()
        if once:
            shown.print(last)
            return
        with (
            contextlib.suppress(KeyboardInterrupt),
            ending(),
            Live(last, console=shown, auto_refresh=False, screen=True) as live,
        ):
            while True:
                time.sleep(interval)
                try:
                    last = drawn()
                    live.update(last, refresh=True)
                except SplitcoreError as error:
                    live.update(Group(Text(tables.printable(str(error)), style="bold red"), last), refresh=True)
