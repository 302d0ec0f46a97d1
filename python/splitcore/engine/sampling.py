"""Draws tokens. The draw for output token i of a request depends on its seed and i only, never on who draws."""

from collections.abc import Sequence

import torch

from splitcore.engine.plan import Sampling

__all__ = ["draw", "uniform"]

_MASK = (1 << 64) - 1


def _mix(word: int) -> int:
    # The finalizer of splitmix64: every bit of the input moves every bit of the output.
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)


def uniform(seed: int, index: int) -> float:
    """Give the number in [0, 1) that draws output token ``index`` under ``seed``."""
    word = _mix(_mix((seed + 0x9E3779B97F4A7C15) & _MASK) ^ _mix((index + 0xD1B54A32D192ED03) & _MASK))
    return (word >> 11) / (1 << 53)


def draw(logits: torch.Tensor, how: Sequence[tuple[Sampling, int]]) -> list[int]:
    """Draw a token from each row of logits.

    Args:
        logits: A row for each token to be drawn.
        how: For each row, how to draw, and which output token of its request it is.

    Returns:
        The token ids.
    """
    forbidden = [(at, list(sampling.forbidden)) for at, (sampling, _) in enumerate(how) if sampling.forbidden]
    if forbidden:
        logits = logits.clone()
        for at, tokens in forbidden:
            logits[at, tokens] = float("-inf")
    likeliest: list[int] = logits.argmax(dim=-1).tolist()
    return [
        best if sampling.temperature == 0 else _draw_one(row, sampling, index)
        for best, row, (sampling, index) in zip(likeliest, logits, how, strict=True)
    ]


def _draw_one(row: torch.Tensor, sampling: Sampling, index: int) -> int:
    # Doubles, and tokens by their number rather than by rank: then noise in the last bits of the logits moves the
    # borders between tokens a little, and never reorders them.
    shares = torch.softmax(row.double() / sampling.temperature, dim=-1)
    if sampling.top_k or sampling.top_p < 1:
        ranked, order = shares.sort(descending=True, stable=True)
        # A token stays if those before it have not reached the share.
        kept = ranked.cumsum(0) - ranked < sampling.top_p
        if sampling.top_k:
            kept[sampling.top_k :] = False
        kept[0] = True
        shares[order[~kept]] = 0
    borders = shares.cumsum(0)
    point = borders[-1] * uniform(sampling.seed, index)
    at = int(torch.searchsorted(borders, point, right=True))
    # The point may be rounded up to the last border, behind which there is no token.
    return min(at, int(shares.nonzero()[-1]))
