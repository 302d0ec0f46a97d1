"""What an engine is given for one forward pass, and what it gives back: plain data, without PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from splitcore._native import TransferError
from splitcore.errors import wrong

if TYPE_CHECKING:
    from splitcore.transfer import Transfer

__all__ = ["GREEDY", "LayerSender", "Put", "Ran", "Sampling", "Span"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens of a request are drawn.

    Attributes:
        temperature: 0 takes the likeliest token, and the rest is not looked at.
        top_p: Draw from the fewest tokens that have this share of the probability.
        top_k: Draw from at most so many tokens; 0 is no bound.
        seed: The draw for output token i depends on this and i only, so any machine draws the same.
        forbidden: Tokens that may not be drawn.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    forbidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 <= self.temperature < float("inf"):
            raise wrong("temperature", "a number from 0 on", self.temperature)
        if not 0 < self.top_p <= 1:
            raise wrong("top_p", "a number above 0 and up to 1", self.top_p)
        if self.top_k < 0:
            raise wrong("top_k", "a whole number from 0 on", self.top_k)
        if not 0 <= self.seed < 1 << 64:
            raise wrong("seed", "a whole number in 0 to 2^64 - 1", self.seed)


GREEDY = Sampling()
"""The likeliest token, always."""


class LayerSender(Protocol):
    """What sends a layer: a `splitcore.transfer.Sender`, or something around one."""

    def put_layer(self, transfer: "Transfer", layer: int) -> None:
        """Send a layer and publish it."""


@dataclass(frozen=True, slots=True)
class Put:
    """A layer-wise transfer that follows a span: each layer goes out as soon as its KV is in the pool."""

    sender: LayerSender
    transfer: "Transfer"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of positions of one request: a prompt, a chunk of one, or the one token of a decode.

    Attributes:
        request: Names it among the spans of a pass.
        tokens: Its token ids.
        start: The position of the first; KV of all positions before is in the blocks.
        blocks: The request's block table, from position 0; it reaches to the last token at least.
        sampling: How the token after the span is drawn; None draws none.
        output: Which output token of the request that is, from 0.
        puts: Transfers whose last missing positions are in this span.
    """

    request: int
    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    sampling: Sampling | None = None
    output: int = 0
    puts: Sequence[Put] = ()

    @property
    def end(self) -> int:
        """The position after its last."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a pass gave.

    Attributes:
        tokens: The token drawn for each request that asked for one.
        failed_puts: Why transfers could not go on, by request; the pass went on without them. With the first of a
            request's that fails no more is sent for any of them, and it is the caller who stops the others.
        logits: A tensor with a row for each entry of ``tokens``, in their order.
    """

    tokens: dict[int, int]
    failed_puts: dict[int, TransferError] = field(default_factory=dict)
    logits: Any = None
