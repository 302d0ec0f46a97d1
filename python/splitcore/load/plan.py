"""What is sent when: arrivals and lengths as the simulator has them, and prompts of these lengths."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from splitcore import _native
from splitcore.errors import wrong

__all__ = ["Prompts", "Request", "requests"]

Prompts = Literal["tokens", "words"]

# Short common words, which most tokenizers have as one token each with the space before them.
_WORDS = [
    "the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as",
    "by", "it", "from", "at", "be", "this", "are", "or", "an", "have", "not", "had",
    "which", "but", "his", "her", "they", "one", "all", "were", "when", "we", "there", "can",
    "more", "if", "out", "so", "up", "said", "what", "its", "about", "than", "into", "them",
    "only", "other", "time", "new", "some", "could", "these", "two", "may", "first", "then", "do",
    "any", "like", "my", "now", "over", "such", "our", "man", "me", "even", "most", "made",
    "after", "also", "did", "many",
]  # fmt: skip
_FIRST_ID = 10


@dataclass(frozen=True, slots=True)
class Request:
    """One request to be sent."""

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int

    def prompt(self, how: Prompts, *, seed: int, vocab: int) -> list[int] | str:
        """Make its prompt, the same at every call.

        Args:
            how: Token ids, or a word for each token.
            seed: Of the run; no two requests of a run begin alike, but by chance.
            vocab: Ids are drawn below this.

        Returns:
            The prompt.
        """
        draw = random.Random(seed << 32 | self.number)  # noqa: S311 - not for secrets
        if how == "words":
            return " ".join(draw.choices(_WORDS, k=self.prompt_tokens))
        first = min(_FIRST_ID, vocab - 1)
        return draw.choices(range(first, vocab), k=self.prompt_tokens)


def requests(
    options: Mapping[str, Any], *, max_requests: int | None, prompt_max: int | None, output_max: int | None
) -> tuple[str, list[Request]]:
    """Make the requests of a workload.

    Args:
        options: Of `splitcore.simulate`, those that name it.
        max_requests: Only so many, the first.
        prompt_max: Longer prompts are cut to so many tokens.
        output_max: Longer outputs are cut to so many tokens.

    Returns:
        The workload's name, and the requests by arrival.

    Raises:
        ConfigError: If an option is out of range; it names the option.
        InputError: If a line of a trace is bad; it names file, line and field.
    """
    for name, most in {"max_requests": max_requests, "prompt_max": prompt_max, "output_max": output_max}.items():
        if most is not None and most < 1:
            raise wrong(name, "at least 1", most)
    given = {name: value for name, value in options.items() if value is not None}
    if max_requests is not None:
        given["requests"] = max_requests
    name, arrivals, prompts, outputs = _native.workload(given)
    columns = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    made = [
        Request(number, arrival_s, min(prompt, prompt_max or prompt), min(output, output_max or output))
        for number, (arrival_s, prompt, output) in enumerate(columns)
    ]
    return name, made
