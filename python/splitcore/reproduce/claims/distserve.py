"""What the DistServe and TaiChi papers say."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from splitcore.reproduce.claims import Claim, ratio
from splitcore.reproduce.verdicts import Band

__all__ = ["APPLICATIONS", "ATTAINMENT", "DISTSERVE", "TAICHI", "Application"]

ATTAINMENT: Mapping[str, Mapping[float, tuple[float, float]]] = {
    "vllm": {
        1.0: (97.0, 96.8),
        1.5: (65.5, 65.1),
        2.0: (52.8, 51.0),
        2.5: (44.9, 46.1),
        3.0: (36.7, 38.3),
        3.5: (27.8, 29.0),
        4.0: (23.6, 24.1),
    },
    "distserve-low": {
        1.0: (100.0, 100.0),
        1.5: (100.0, 100.0),
        2.0: (99.3, 99.3),
        2.5: (87.3, 88.3),
        3.0: (83.0, 84.1),
        3.5: (77.3, 77.0),
        4.0: (70.0, 68.9),
    },
}
"""Percent of requests that keep both limits, by system and rate: the real system, and the authors' simulator."""

_ATTAINMENT_GAIN = sum(
    ATTAINMENT["distserve-low"][rate][0] - ATTAINMENT["vllm"][rate][0] for rate in ATTAINMENT["vllm"]
) / len(ATTAINMENT["vllm"])


@dataclass(frozen=True)
class Application:
    """One of DistServe's, with its limits and what was found for it."""

    model: str
    lengths: str
    """The trace that stands in for its data, of `splitcore.reproduce.lengths`."""
    data: str
    """What it stands in for."""
    ttft_s: float
    tpot_s: float
    prefill: tuple[int, int]
    """Tensor and pipeline size of the published placement."""
    decode: tuple[int, int]
    baseline_tp: int
    """Of the vLLM that it is compared with."""


APPLICATIONS: Mapping[str, Application] = {
    "chat-13b": Application("opt-13b", "opt-conv", "ShareGPT", 0.25, 0.1, (2, 1), (1, 1), 1),
    "chat-66b": Application("opt-66b", "opt-conv", "ShareGPT", 0.4, 0.1, (4, 1), (2, 2), 4),
    "code-66b": Application("opt-66b", "opt-code", "HumanEval", 0.125, 0.2, (4, 1), (2, 2), 4),
}
"""Those whose model has published times."""

_GAINS: Mapping[str, tuple[Band, str, Band, str]] = {
    "chat-13b": (Band(2.0, 4.6, 1.0), "2.0-4.6x", Band(1.8, 3.2, 1.0), "1.8-3.2x"),
    "chat-66b": (Band(2.0, 4.6, 1.0), "2.0-4.6x", Band(1.8, 3.2, 1.0), "1.8-3.2x"),
    "code-66b": (ratio(5.7), "5.7x", ratio(1.4), "1.4x"),
}


def _of_application(name: str) -> tuple[Claim, ...]:
    application = APPLICATIONS[name]
    (prefill_tp, prefill_pp), (decode_tp, decode_pp) = application.prefill, application.decode
    rate_band, rate, slo_band, slo = _GAINS[name]
    return (
        Claim(
            f"placement-{name}",
            f"{name}: the published placement's goodput over that of the best that our search finds, for each GPU",
            "evaluation, settings",
            f"prefill ({prefill_tp},{prefill_pp}), decode ({decode_tp},{decode_pp})",
            Band(0.95, inf),
            "ratio",
            "low-affinity search in one node, 90 % of requests within both limits; best and published measured alike",
        ),
        Claim(
            f"gain-{name}",
            f"{name}: goodput for each GPU over vLLM's",
            "evaluation",
            rate,
            rate_band,
            "ratio",
            "published placement over one vLLM instance, 90 % of requests within both limits",
        ),
        Claim(
            f"slo-{name}",
            f"{name}: how much tighter limits may be than vLLM's",
            "evaluation",
            slo,
            slo_band,
            "ratio",
            "smallest scale of both limits that 90 % keep, at vLLM's highest rate for each GPU",
        ),
    )


_TAICHI = "TaiChi, arXiv 2508.01989, motivation (Vidur)"
_TAICHI_HOW = "as many instances whole or split, one split for all limits, Llama-2-70B TP4, 12 requests/s"

_DISTSERVE = (
    *(claim for name in APPLICATIONS for claim in _of_application(name)),
    Claim(
        "gain-99-chat-13b",
        "chat-13b at 99 %: goodput for each GPU over vLLM's",
        "appendix",
        "3-8x",
        Band(3.0, 8.0, 1.0),
        "ratio",
        "as gain-chat-13b, 99 %",
    ),
    Claim(
        "gain-99-chat-66b",
        "chat-66b at 99 %: goodput for each GPU over vLLM's",
        "appendix",
        "3-8x",
        Band(3.0, 8.0, 1.0),
        "ratio",
        "as gain-chat-66b, 99 %",
    ),
    Claim(
        "attainment-gain",
        "OPT-66B, seven rates from 1 to 4 requests/s: points of attainment over vLLM's, on average",
        "Table 2",
        f"{_ATTAINMENT_GAIN:+.1f} points",
        Band.about(_ATTAINMENT_GAIN, 0.1 * _ATTAINMENT_GAIN, neutral=0.0),
        "points",
        "published placement and one vLLM instance at each rate",
    ),
    Claim(
        "simulator-error",
        "the simulator's attainment is within 2 points of the real system's",
        "Table 2",
        "< 2 points",
        Band(-2.0, 2.0),
        "points",
        "not found: there is neither the real system nor its lengths; the table below has the shape",
    ),
    Claim(
        "transfer-share",
        "KV transfer, chat-66b within one node: share of all latency",
        "evaluation",
        "< 0.1 % (175B)",
        Band.below(0.001),
        "percent",
        "visible transfer over E2E, means, at 2 requests/s",
    ),
    Claim(
        "transfer-30-ms",
        "the same: 95 % of transfers take less than 30 ms",
        "evaluation",
        "< 30 ms at p95",
        Band.below(30.0),
        "ms",
        "p99 of the visible transfer, at 2 requests/s",
    ),
    Claim(
        "taichi-tight-tpot",
        "loose TTFT, tight TPOT (16 s, 60 ms): points of attainment of disaggregated over aggregated",
        _TAICHI,
        "+91 points (98 % over 7 %)",
        Band.about(91.0, 9.1, neutral=0.0),
        "points",
        _TAICHI_HOW,
    ),
    Claim(
        "taichi-tight-ttft",
        "tight TTFT, loose TPOT (5 s, 250 ms): points of attainment of disaggregated over aggregated",
        _TAICHI,
        "-55 points (42 % over 97 %)",
        Band.about(-55.0, 5.5, neutral=0.0),
        "points",
        _TAICHI_HOW,
    ),
    Claim(
        "taichi-balanced",
        "balanced (6 s, 100 ms): points of attainment of disaggregated over aggregated",
        _TAICHI,
        "+34 points (50 % over 16 %)",
        Band.about(34.0, 3.4, neutral=0.0),
        "points",
        _TAICHI_HOW,
    ),
)

DISTSERVE: Mapping[str, Claim] = {claim.name: claim for claim in _DISTSERVE}
"""By name, in the order of the page."""

TAICHI: Mapping[str, tuple[float, float, float, float]] = {
    "taichi-tight-tpot": (16.0, 0.06, 7.0, 98.0),
    "taichi-tight-ttft": (5.0, 0.25, 97.0, 42.0),
    "taichi-balanced": (6.0, 0.1, 16.0, 50.0),
}
"""Limits on TTFT and TPOT in seconds, and percent that keep both, aggregated and disaggregated."""
