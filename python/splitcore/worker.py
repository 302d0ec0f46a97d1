"""One machine of the live service: runs the passes that its scheduler plans on an engine, until it is told to end.

Everything but the engine is native: the sessions with the daemon and with other workers, the scheduler, the transfers.
What comes here is a pass, and what goes back are the tokens that were drawn::

    pool = KvPool(model.layout(block_tokens=16), blocks=256)
    worker = Worker(pool.native, connect="127.0.0.1:7000", name="p0", role="prompt", model="demo")
    run(worker, Engine(model, pool))
"""

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

from splitcore._native import Pass, Worker
from splitcore.engine.plan import Put, Ran, Sampling, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Runs", "Worker", "run"]

# How soon a signal is looked at when there is nothing to run.
_LOOK_S = 0.2


class Runs(Protocol):
    """An engine: `splitcore.engine.Engine`, or something like it."""

    def run(self, spans: "Sequence[Span]") -> Ran:
        """Run one forward pass."""


class _Layers:
    """Hands a layer to the transfers that follow a span; the number of the span stands for them."""

    def __init__(self, batch: Pass) -> None:
        self._batch = batch

    def put_layer(self, transfer: Any, layer: int) -> None:
        """Send a layer. What goes wrong ends the transfer, and not the pass."""
        self._batch.put_layer(transfer, layer)


def run(
    worker: Worker, engine: Runs, stopping: Callable[[], bool] = lambda: False, leave_limit_s: float = 30.0
) -> tuple[str, str]:
    """Run passes until the worker ends.

    Args:
        worker: Joined to the pool of the engine.
        engine: What runs them.
        stopping: Whether to end; asked between passes. Its daemon then has what is here go on elsewhere, and ends the
            worker.
        leave_limit_s: Seconds after which the worker ends all the same.

    Returns:
        How it ended and why: ``"stopped"``, ``"given-up"`` by its daemon (then it may begin anew), ``"refused"`` by it
        for good, or ``"failed"``.

    Raises:
        Exception: What the engine raises. The daemon has been told, and what was here runs elsewhere.
    """
    leaves_by: float | None = None
    while worker.ended is None:
        if leaves_by is None and stopping():
            leaves_by = monotonic() + leave_limit_s
            worker.leave()
        if leaves_by is not None and monotonic() >= leaves_by:
            break
        batch = worker.next_pass(_LOOK_S)
        if batch is None:
            continue
        try:
            drawn = engine.run(_spans(batch)).tokens
        except BaseException as error:
            worker.fail(f"the engine fails pass {batch.number}: {type(error).__name__}: {error}")
            raise
        worker.pass_done(batch, list(drawn.items()))
    return worker.stop()


def _spans(batch: Pass) -> list[Span]:
    layers = _Layers(batch)
    spans = []
    for number, (tokens, start, blocks, how, output, follows) in enumerate(batch.spans):
        sampling = None
        if how is not None:
            temperature, top_p, seed = how
            sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
        puts = [Put(layers, cast("Any", number))] if follows else []
        spans.append(Span(number, tokens, start, blocks, sampling, output, puts))
    return spans
