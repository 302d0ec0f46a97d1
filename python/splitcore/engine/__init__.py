"""Runs batch plans on a Hugging Face causal LM whose KV lies in the blocks of a `splitcore.transfer.KvPool`.

It decides nothing: `splitcore.Machine` says which spans of which requests run together and in which blocks, and an
`Engine` runs them in one forward pass, draws tokens, and sends each layer that a transfer waits for as soon as it is
computed::

    model = load_model("a/folder")
    pool = KvPool(model.layout(block_tokens=16), blocks=256)
    engine = Engine(model, pool)
    ran = engine.run([Span(request=7, tokens=prompt, start=0, blocks=[0, 1, 2], sampling=GREEDY)])
    ran.tokens[7]

PyTorch and transformers are imported when one of the names that need them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from splitcore.engine.plan import GREEDY, LayerSender, Put, Ran, Sampling, Span
from splitcore.errors import wrong

if TYPE_CHECKING:
    from splitcore.engine.engine import Engine
    from splitcore.engine.model import CausalLM, load_model

__all__ = ["GREEDY", "CausalLM", "Engine", "LayerSender", "Put", "Ran", "Sampling", "Span", "load_model"]

_HEAVY = {"Engine": "engine", "CausalLM": "model", "load_model": "model"}


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is asked for."""
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HEAVY[name]}"), name)
    except ImportError as error:
        raise wrong("torch", "PyTorch and transformers (pip install splitcore[torch])", error) from error
