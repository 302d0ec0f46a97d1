"""Load for a service like OpenAI's: a workload's requests at their times, and what its clients meet.

`run` sends them; `splitcore load` is the command. It needs httpx2 (``pip install splitcore[client]``).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from splitcore.load import plan, report, sending
from splitcore.load.report import LoadSummary, Seen
from splitcore.load.sending import Target, base_url, model_of

__all__ = ["LoadSummary", "Seen", "Target", "base_url", "model_of", "run"]


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

    Returns:
        What its clients met.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a trace is bad; it names file, line and field.
    """
    name, requests = plan.requests(workload, max_requests=max_requests, prompt_max=prompt_max, output_max=output_max)
    seen = asyncio.run(sending.send(target, requests, progress))
    return report.summarise(
        seen,
        url=target.url,
        model=target.model,
        trace=name,
        seed=int(workload.get("seed") or 0),
        slo_ttft_s=slo_ttft_s,
        slo_tbt_s=slo_tbt_s,
    )
