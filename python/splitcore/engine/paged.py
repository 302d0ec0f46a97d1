"""Attention straight from the blocks of a pool, each request by itself: nothing is padded to the longest.

A pass has the tokens of all its requests in one row, so that the matrix products see all of them at once. Only
attention tells requests apart. Where a pool's positions lie one after another (order ``NHD`` with planes apart, as
`CausalLM.layout` has it) and a request's blocks are one run, its keys and values are a view; else they are gathered.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from splitcore._native import CudaPool, KvLayout
from splitcore.engine.plan import Span
from splitcore.kv_pool import KvPool

__all__ = ["PagedKv", "PagedStep"]


class PagedKv:
    """A pool's memory as the tensor that attention reads and writes."""

    def __init__(self, pool: KvPool | CudaPool) -> None:
        """View it; nothing is copied."""
        self.layout: KvLayout
        if isinstance(pool, CudaPool):
            self.layout, self.blocks = pool.pool.layout, pool.pool.blocks
            told = _on_device(pool)
        else:
            self.layout, self.blocks = pool.layout, pool.blocks
            told = pool.torch()
        if self.layout.order == "HND":
            told = told.transpose(3, 4)
        # [layer][K, V][block][token][head][element], whatever the order in memory.
        self.kv: torch.Tensor = told.transpose(1, 2)
        _, _, blocks, size, heads, width = self.kv.shape
        strides = self.kv.stride()
        self._flat: torch.Tensor | None = None
        if strides[2] == size * strides[3]:
            self._flat = self.kv.as_strided(
                (*self.kv.shape[:2], blocks * size, heads, width), (*strides[:2], *strides[3:])
            )

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.kv.device

    def run_of(self, table: Sequence[int], end: int) -> torch.Tensor | None:
        """View positions up to ``end`` as ``[layer][K, V][head][position][element]``, if they lie in one run."""
        size = self.layout.block_tokens
        first, used = table[0], -(-end // size)
        if used > 1 and (self._flat is None or list(table[:used]) != list(range(first, first + used))):
            return None
        if self._flat is None:
            return self.kv[:, :, first, :end].transpose(2, 3)
        return self._flat[:, :, first * size : first * size + end].transpose(2, 3)

    def gather(self, layer: int, blocks: torch.Tensor, end: int) -> torch.Tensor:
        """Copy positions up to ``end`` of one layer together, as ``[K, V][head][position][element]``."""
        # Blocks are copied as they lie in memory, in whole rows.
        if self.layout.order == "HND":
            return self.kv[layer].permute(0, 3, 1, 2, 4).index_select(2, blocks).flatten(2, 3)[:, :, :end]
        return self.kv[layer].index_select(1, blocks).flatten(1, 2)[:, :end].transpose(1, 2)


class PagedStep:
    """One forward pass over spans: writes each layer's KV to the pool, tells of it, and attends."""

    def __init__(self, kv: PagedKv, spans: Sequence[Span], written: Callable[[int], None]) -> None:
        """Find out where everything lies, once for all layers.

        Args:
            kv: The pool.
            spans: What runs, in the order of the row.
            written: Called with each layer as soon as its KV is in the pool, before its attention.
        """
        self._kv, self._written = kv, written
        self.layers_done = 0
        size = kv.layout.block_tokens
        places = [(span.blocks[at // size], at % size) for span in spans for at in range(span.start, span.end)]
        self._block, self._slot = torch.tensor(places, device=kv.device).T.contiguous()
        self._spans: list[_Reach] = []
        row = 0
        for span in spans:
            self._spans.append(_Reach(kv, span, row))
            row += len(span.tokens)

    def layer(
        self, index: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Do a layer; see `splitcore.engine.adapter.LayerStep`."""
        for plane, fresh in enumerate((keys, values)):
            self._kv.kv[index, plane][self._block, self._slot] = fresh.transpose(0, 1)
        self._written(index)
        self.layers_done += 1
        # The queries' type of rows: heads of a token together, as the next product takes them.
        told = torch.empty(query.shape[1], query.shape[0], query.shape[2], dtype=query.dtype, device=query.device)
        for reach in self._spans:
            rows = slice(reach.row, reach.row + reach.count)
            told[rows] = reach.attend(index, query[:, rows], keys[:, rows], values[:, rows], scale).transpose(0, 1)
        return told


class _Reach:
    """What one span attends to."""

    def __init__(self, kv: PagedKv, span: Span, row: int) -> None:
        self.row, self.count, self.end = row, len(span.tokens), span.end
        self._kv = kv
        self._whole = span.start == 0
        # A prompt from its first token attends to the keys at hand.
        self._run = None if self._whole else kv.run_of(span.blocks, span.end)
        self._mask: torch.Tensor | None = None
        if self._whole:
            return
        if self._run is None:
            used = -(-span.end // kv.layout.block_tokens)
            self._blocks = torch.tensor(span.blocks[:used], device=kv.device)
        if self.count > 1:
            # A token sees what is up to itself; all before the chunk is up to it.
            hidden = torch.ones(self.count, span.end, dtype=torch.bool, device=kv.device).triu(span.start + 1)
            self._mask = torch.zeros(hidden.shape, dtype=kv.kv.dtype, device=kv.device).masked_fill_(
                hidden, float("-inf")
            )

    def attend(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        if not self._whole:
            keys, values = (
                self._run[layer] if self._run is not None else self._kv.gather(layer, self._blocks, self.end)
            ).unbind()
        heads = query.shape[0]
        groups = heads // keys.shape[0]
        if groups > 1 and self._mask is not None and query.device.type == "cuda":
            # No fast kernel there takes a mask and groups at once.
            keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
        # As transformers calls it, so that a request alone in a pass gets the very bits of `generate`.
        return scaled_dot_product_attention(
            query[None],
            keys[None],
            values[None],
            attn_mask=self._mask,
            is_causal=self._mask is None and self.count > 1,
            scale=scale,
            enable_gqa=keys.shape[0] != heads,
        )[0]


def _on_device(pool: CudaPool) -> torch.Tensor:
    shape, strides = pool.pool.axes
    layout = pool.pool.layout
    names = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    flat = torch.as_tensor(pool, device=f"cuda:{pool.ordinal}").view(names[layout.dtype])
    return torch.as_strided(flat, shape, [stride // layout.dtype_bytes for stride in strides])
