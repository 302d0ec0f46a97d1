"""What was published, with its source: data, no results of ours.

Ratios of rates are given 10 % either way, as the papers read rates off grids of about that width; other numbers what
is written beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from splitcore.reproduce.verdicts import Band

__all__ = [
    "APPLICATIONS",
    "ATTAINMENT",
    "DISTSERVE",
    "GRID_STEP_RPS",
    "SPLITWISE",
    "TAICHI",
    "Application",
    "Claim",
    "Unit",
]

Unit = Literal["steps", "ratio", "percent", "points", "ms", "tokens", "machines", "requests/s"]


@dataclass(frozen=True)
class Claim:
    """Something that a paper says."""

    name: str
    about: str
    """What is claimed, in a line."""
    source: str
    """Where it stands."""
    published: str
    """The value as it is printed."""
    band: Band
    """What ours is held against."""
    unit: Unit
    how: str
    """How ours is found."""


def _ratio(value: float) -> Band:
    return Band.about(value, 0.1 * value, neutral=1.0)


_TWO_MACHINES = (
    "one prompt and one token machine, coding lengths, so few arrivals that there is no batching; the same requests on "
    "one machine that serves whole requests; medians over requests of {}"
)

_SPLITWISE = (
    Claim(
        "iso-power-grid",
        "highest rates at the power of 40 DGX-H100, twelve cells: steps of the grid off, the largest",
        "public simulator at 8f99e7d, bisection on a grid of 10 requests/s, one workload",
        "the twelve rates of the table below",
        Band(-1.0, 1.0),
        "steps",
        "the same grid, one workload (ours: the draws differ)",
    ),
    Claim(
        "aa-iso-power",
        "AA over Baseline-A100, same power and cost: throughput",
        "Fig. 18a, conversation",
        "2.15x",
        _ratio(2.15),
        "ratio",
        "published pool sizes",
    ),
    Claim(
        "ha-iso-power-a100",
        "HA over Baseline-A100, same power, 10 % less cost: throughput (as printed)",
        "Fig. 18a, conversation",
        "1.18x",
        _ratio(1.18),
        "ratio",
        "published pool sizes",
    ),
    Claim(
        "ha-iso-power-h100",
        "the same read as over Baseline-H100, whose cost fits the sentence",
        "Fig. 18a, our reading",
        "1.18x",
        _ratio(1.18),
        "ratio",
        "published pool sizes",
    ),
    Claim(
        "hh-beats-h100",
        "HH over Baseline-H100, same power and cost: more throughput",
        "section VI-B",
        "> 1x",
        Band.above(1.0),
        "ratio",
        "published pool sizes",
    ),
    Claim(
        "hhcap-beats-h100",
        "HHcap over Baseline-H100, same power: more throughput",
        "section VI-B",
        "> 1x",
        Band.above(1.0),
        "ratio",
        "published pool sizes",
    ),
    Claim(
        "hh-beats-h100-best",
        "the same of HH at the best split that our search finds",
        "section VI-B",
        "> 1x",
        Band.above(1.0),
        "ratio",
        "pool sizes found within the power of 40 DGX-H100, with other seeds",
    ),
    Claim(
        "hhcap-beats-h100-best",
        "the same of HHcap at the best split that our search finds",
        "section VI-B",
        "> 1x",
        Band.above(1.0),
        "ratio",
        "pool sizes found within the power of 40 DGX-H100, with other seeds",
    ),
    Claim(
        "aa-beats-a100-best",
        "AA over Baseline-A100 at the best split that our search finds",
        "Fig. 18a, conversation",
        "2.15x",
        _ratio(2.15),
        "ratio",
        "pool sizes found within the power of 40 DGX-H100, with other seeds",
    ),
    Claim(
        "headline-cost",
        "throughput at 20 % less cost than Baseline-H100",
        "abstract",
        "1.4x",
        _ratio(1.4),
        "ratio",
        "best of the four split designs within 80 % of the cost of 40 DGX-H100",
    ),
    Claim(
        "headline-same",
        "throughput at the same cost and power",
        "abstract",
        "2.35x",
        _ratio(2.35),
        "ratio",
        "best of AA over Baseline-A100 and HH over Baseline-H100, which alone take the same of both",
    ),
    Claim(
        "headline-power",
        "throughput at 15 % less power and the same cost as Baseline-H100",
        "section IX",
        "1.76x",
        _ratio(1.76),
        "ratio",
        "best of the four split designs within 85 % of the power and all of the cost of 40 DGX-H100",
    ),
    Claim(
        "aa-iso-cost",
        "AA over Baseline-H100 at the same cost: throughput",
        "Fig. 18b, conversation",
        "1.4x",
        _ratio(1.4),
        "ratio",
        "published pool sizes",
    ),
    Claim(
        "aa-iso-cost-best",
        "the same at the best split that our search finds",
        "Fig. 18b, conversation",
        "1.4x",
        _ratio(1.4),
        "ratio",
        "pool sizes found within the cost of 40 DGX-H100 by table-i, with other seeds",
    ),
    Claim(
        "aa-iso-cost-power",
        "the power that this takes",
        "Fig. 18b",
        "+25 %",
        Band.about(0.25, 0.05, neutral=0.0),
        "percent",
        "arithmetic on the published pool sizes, each price table",
    ),
    Claim(
        "aa-iso-cost-space",
        "the space that this takes",
        "Fig. 18b",
        "2x",
        _ratio(2.0),
        "ratio",
        "arithmetic on the published pool sizes: hosts",
    ),
    Claim(
        "iso-throughput-cost",
        "AA against Baseline-H100 at the same throughput, cheapest: cost",
        "Fig. 19b",
        "-25 %",
        Band.about(-0.25, 0.05, neutral=0.0),
        "percent",
        "cheapest cluster of each at 70 requests/s conversation, seed by seed, each price table",
    ),
    Claim(
        "iso-throughput-power",
        "HHcap against Baseline-H100 at the same throughput, least power: power",
        "Fig. 19a",
        "-25 %",
        Band.about(-0.25, 0.05, neutral=0.0),
        "percent",
        "cluster of each with least power at 70 requests/s conversation, seed by seed",
    ),
    Claim(
        "fig-12",
        "HH, coding, 70 requests/s: machines of the cheapest cluster",
        "Fig. 12",
        "30 (27P + 3T)",
        Band.about(30.0, 1.0),
        "machines",
        "cheapest cluster, seed by seed",
    ),
    Claim(
        "workload-switch-0",
        "AA and HH sized for coding, running conversation: throughput lost",
        "Fig. 20a",
        "0",
        Band.about(0.0, 0.02),
        "percent",
        "against the pool sizes for conversation, published iso-power sizes both",
    ),
    Claim(
        "workload-switch-7",
        "HA and HHcap sized for coding, running conversation: throughput lost",
        "Fig. 20a",
        "7 %",
        Band.about(0.07, 0.03, neutral=0.0),
        "percent",
        "against the pool sizes for conversation, published iso-power sizes both",
    ),
    Claim(
        "model-switch-rate",
        "Llama-70B on clusters sized for BLOOM: split designs over the better baseline, throughput",
        "Fig. 20b",
        "> 1x, all four",
        Band.above(1.0),
        "ratio",
        "published iso-power sizes for conversation",
    ),
    Claim(
        "model-switch-latency",
        "the same: median E2E of the other split designs over those of HH and HHcap, at high load",
        "Fig. 20b",
        "> 1x",
        Band.above(1.0),
        "ratio",
        "at 90 % of the lowest highest rate of the four split designs",
    ),
    Claim(
        "transfer-share",
        "KV transfer against prompt time",
        "VI-A, Fig. 14",
        "< 7 %",
        Band.below(0.07),
        "percent",
        _TWO_MACHINES.format("serialized transfer over TTFT"),
    ),
    Claim(
        "e2e-layer-wise",
        "E2E overhead of layer-wise transfer",
        "VI-A, Fig. 15",
        "0.8 %",
        Band.about(0.008, 0.004, neutral=0.0),
        "percent",
        _TWO_MACHINES.format("E2E over theirs"),
    ),
    Claim(
        "e2e-serialized",
        "E2E overhead of serialized transfer, largest prompts",
        "VI-A, Fig. 15",
        "up to 3 %",
        Band.about(0.03, 0.015, neutral=0.0),
        "percent",
        _TWO_MACHINES.format("E2E over theirs, prompts in the longest tenth"),
    ),
    Claim(
        "second-layer-wise",
        "second token's latency with layer-wise transfer",
        "VI-A, Fig. 15",
        "+16.5 %",
        Band.about(0.165, 0.03, neutral=0.0),
        "percent",
        _TWO_MACHINES.format("what E2E gains over their time between tokens"),
    ),
    Claim(
        "second-serialized",
        "second token's latency with serialized transfer",
        "VI-A, Fig. 15",
        "+64 %",
        Band.about(0.64, 0.1, neutral=0.0),
        "percent",
        _TWO_MACHINES.format("what E2E gains over their time between tokens"),
    ),
    Claim(
        "crossover",
        "prompt from which layer-wise is faster, H100",
        "VI-A",
        "512 tokens",
        Band.about(512.0, 51.2),
        "tokens",
        "fixed cost of layer-wise over the slope of serialized transfers in E2E",
    ),
    Claim(
        "visible",
        "transfer that layer-wise leaves visible",
        "VI-A, Fig. 14",
        "~8 ms A100, ~5 ms H100",
        Band.about(0.0, 0.5),
        "ms",
        "not found: it goes into our model as it is printed",
    ),
    Claim(
        "batch-equal",
        "no SLO, overload: throughput of AA over Baseline-A100, and of HH over Baseline-H100",
        "VI-E",
        "1x (0.89 and 0.89, 0.75 and 0.75 RPS/$)",
        Band.about(1.0, 0.05),
        "ratio",
        "requests that end a second in the later half of the arrivals, at several times the highest rate",
    ),
    Claim(
        "batch-a100-over-h100",
        "the same: RPS/$ of Baseline-A100 over Baseline-H100",
        "VI-E",
        "1.19x (0.89 over 0.75)",
        Band.about(0.89 / 0.75, 0.1 * 0.89 / 0.75, neutral=1.0),
        "ratio",
        "as above, each price table",
    ),
)
SPLITWISE: Mapping[str, Claim] = {claim.name: claim for claim in _SPLITWISE}
"""By name, in the order of the page."""

GRID_STEP_RPS = 10.0
"""Of the rates that the public simulator was searched at. They and the pool sizes are with the planner's designs."""
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
    "code-66b": (_ratio(5.7), "5.7x", _ratio(1.4), "1.4x"),
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
