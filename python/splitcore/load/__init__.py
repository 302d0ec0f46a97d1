"""Load for a service like OpenAI's: a workload's requests at their times, and what its clients meet.

`run` sends them; `splitcore load` is the command. It needs httpx2 (``pip install splitcore[client]``).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from splitcore import ending
from splitcore.load import plan, report
from splitcore.load.plan import Request
from splitcore.load.report import LoadSummary, Seen
from splitcore.load.sending import Target, base_url, model_of, send

__all__ = ["LoadSummary", "Request", "Seen", "Target", "base_url", "model_of", "run", "send"]


def run(
    target: Target,
    workload: Mapping[str, Any],
    *,
    max_requests: int | None = None,
    prompt_max: int | None = None,
    output_max: int | None = None,
    slo_ttft_s: float | None = None,
    slo_tbt_s: float | None = None,
    progress: Callable[[int, int], object] | None = None,
    interrupted: Callable[[LoadSummary], object] | None = None,
) -> LoadSummary:
    """Send the requests of a workload at their arrivals, whatever has come back of earlier ones.

    Args:
        target: Where they go and what they look like.
        workload: Options of `splitcore.simulate` that name it: ``trace``, ``rate``, ``duration_s``, ``arrivals``,
            ``cv``, ``sampling`` and ``seed``.
        max_requests: Only so many, the first.
        prompt_max: Longer prompts are cut to so many tokens.
        output_max: Longer outputs are cut to so many tokens.
        slo_ttft_s: Limit on the time to the first token, for `LoadSummary.attainment`.
        slo_tbt_s: Limit on the time between tokens.
        progress: Called with the requests that have ended and the total.
        interrupted: Called with what has come of the requests that were sent, if Ctrl-C or another exception ends the
            load early.

    Returns:
        What its clients met.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a trace is bad; it names file, line and field.
    """
    name, requests = plan.requests(workload, max_requests=max_requests, prompt_max=prompt_max, output_max=output_max)
    seen = [Seen(request) for request in requests]

    def summary() -> LoadSummary:
        return report.summarise(
            [one for one in seen if math.isfinite(one.sent_s)],
            url=target.url,
            model=target.model,
            trace=name,
            seed=int(workload.get("seed") or 0),
            rate_rps=workload.get("rate"),
            slo_ttft_s=slo_ttft_s,
            slo_tbt_s=slo_tbt_s,
        )

    try:
        ending.run(send(target, seen, progress))
    except BaseException:
        if interrupted is not None and math.isfinite(seen[0].sent_s):
            interrupted(summary())
        raise
    return summary()
