"""Traces whose lengths stand in for those of data sets that are not shipped.

``python -m splitcore.reproduce.lengths NAME FILE.csv`` writes one, the same each time.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import splitcore

__all__ = ["TRACES", "write"]

_COUNT = 4000
_POSITIONS = 2048
"""Tokens of a request that OPT can take at most."""
_ARXIV_TOKENS = (7317.0, 201.0)
"""Mean prompt and output of arXiv summarisation, as TaiChi tells them."""

_Lengths = NDArray[np.float64]


def _drawn(trace: str) -> tuple[_Lengths, _Lengths]:
    """Draw lengths of a built-in trace."""
    requests = splitcore.simulate(unsplit="1000xdgx-h100", trace=trace, rate=100.0, requests=_COUNT).requests
    return requests["prompt_tokens"].astype(np.float64), requests["output_tokens"].astype(np.float64)


def _for_opt(trace: str) -> tuple[_Lengths, _Lengths]:
    prompts, outputs = _drawn(trace)
    fits = prompts + outputs <= _POSITIONS
    return prompts[fits], outputs[fits]


def _arxiv() -> tuple[_Lengths, _Lengths]:
    prompts, outputs = _drawn("azure-code")[0], _drawn("azure-conv")[1]
    return prompts * _ARXIV_TOKENS[0] / np.mean(prompts), outputs * _ARXIV_TOKENS[1] / np.mean(outputs)


TRACES: Mapping[str, tuple[str, Callable[[], tuple[_Lengths, _Lengths]]]] = {
    "opt-conv": ("Azure conversation, requests that OPT's 2048 positions can take", lambda: _for_opt("azure-conv")),
    "opt-code": ("Azure coding, requests that OPT's 2048 positions can take", lambda: _for_opt("azure-code")),
    "arxiv-like": ("Azure coding prompts and conversation outputs, scaled to arXiv summarisation's means", _arxiv),
}
"""What each is, and what makes it."""


def write(name: str, path: Path) -> tuple[float, float]:
    """Write a trace.

    Args:
        name: Of `TRACES`.
        path: The CSV.

    Returns:
        Mean prompt and output tokens.
    """
    prompts, outputs = (np.maximum(1, np.rint(lengths)).astype(int) for lengths in TRACES[name][1]())
    rows = (f"{at},1,{prompt},{output}" for at, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)))
    path.write_text("\n".join(_lines(rows)), encoding="utf-8")
    return float(np.mean(prompts)), float(np.mean(outputs))


def _lines(rows: Iterable[str]) -> Iterable[str]:
    yield "arrival_timestamp,batch_size,prompt_size,token_size"
    yield from rows
    yield ""


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
