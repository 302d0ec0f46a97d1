"""Everything that hangs on the insides of transformers: how its models are made to attend by our function.

Models call a registered attention function with the queries, keys and values of a layer, after rotary embedding. So
there is no transformers cache at all: the function writes keys and values to the pool and attends from there. Written
for transformers 5.24 (`constraints-torch.txt`); its cache classes and their names change from release to release.
"""

from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from splitcore.errors import wrong

__all__ = ["LayerStep", "attach", "forward"]

_NAME = "splitcore_paged"
# What a model may ask of its attention that ours does not do, and would silently leave out.
_UNKNOWN = ("sliding_window", "softcap", "s_aux", "position_bias", "indices", "block_indices")


class LayerStep(Protocol):
    """What is done for each layer of a pass."""

    def layer(
        self, index: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Take ``[head][token][element]`` of all tokens of the pass; give ``[token][head][element]``."""


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    scaling: float | None = None,
    splitcore_step: LayerStep | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    for name in _UNKNOWN:
        if asked.get(name) is not None:
            raise wrong("model", "one with plain causal attention", f"attention with {name}")
    if splitcore_step is None:
        raise wrong("model", "one whose layers hand keyword arguments on to their attention", type(module).__name__)
    index: Any = module.layer_idx
    return splitcore_step.layer(index, query[0], key[0], value[0], scaling)[None], None


def _no_mask(*_: object, **__: object) -> None:
    """Make no mask: what attends to what is ours to say, request by request."""


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _no_mask)


def attach(module: PreTrainedModel) -> None:
    """Have a model attend by `forward`'s steps from now on; its own ``generate`` no longer works.

    Raises:
        ConfigError: If it cannot.
    """
    config = module.config
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise wrong("model", "full attention in every layer", ", ".join(sorted(kinds)))
    # Their frequencies follow from the longest request of a batch, so requests would disturb one another.
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise wrong("model", "rotary embedding that hangs on the position alone", f"rope_type {rope}")
    if not module.is_backend_compatible():
        raise wrong("model", "one that takes attention functions of others", type(module).__name__)
    module.set_attn_implementation(_NAME)


def forward(
    module: PreTrainedModel, tokens: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, step: LayerStep
) -> torch.Tensor:
    """Run a model over tokens of several requests, one after another in one row.

    Args:
        module: The model, attached.
        tokens: Their ids.
        positions: The position of each in its request.
        keep: Which tokens' logits are wanted.
        step: Attends.

    Returns:
        The logits, a row for each entry of ``keep``.
    """
    told = module(
        input_ids=tokens[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=keep,
        splitcore_step=step,
    )
    logits: torch.Tensor = told.logits[0]
    return logits
