"""Executes batches: one forward pass over spans of several requests, over a paged pool."""

from collections.abc import Sequence

import torch

from splitcore._native import CudaPool, TransferError
from splitcore.engine.adapter import attach, forward
from splitcore.engine.model import CausalLM
from splitcore.engine.paged import PagedKv, PagedStep
from splitcore.engine.plan import Ran, Span
from splitcore.engine.sampling import draw
from splitcore.errors import wrong
from splitcore.kv_pool import KvPool

__all__ = ["Engine"]


class Engine:
    """A model over a pool, for one pass at a time.

    It keeps nothing between passes: what it needs is in the spans and in the pool.
    """

    def __init__(self, model: CausalLM, pool: KvPool | CudaPool) -> None:
        """Join a model and a pool.

        Args:
            model: From now on it attends by this engine only.
            pool: With the layout of the model, in any order and block size; on the model's device.

        Raises:
            ConfigError: If the pool does not fit, or the model attends in a way that this engine cannot.
        """
        self.model, self._kv = model, PagedKv(pool)
        self._check_layout()
        attach(model.module)

    def run(self, spans: Sequence[Span]) -> Ran:
        """Run one forward pass.

        Args:
            spans: Of different requests, in any order; prompts, chunks and decodes together.

        Returns:
            The tokens drawn. A transfer that fails stops and is told of; it fails no pass.

        Raises:
            ConfigError: If a span cannot run; then nothing has.
        """
        if not spans:
            return Ran({})
        self._check(spans)
        device, failed = self._kv.device, dict[int, TransferError]()
        step = PagedStep(self._kv, spans, lambda layer: self._send(spans, layer, failed))
        tokens = torch.tensor([token for span in spans for token in span.tokens], device=device)
        positions = torch.cat([torch.arange(span.start, span.end, device=device) for span in spans])
        drawn = [span for span in spans if span.sampling is not None]
        with torch.inference_mode():
            logits = forward(self.model.module, tokens, positions, _last_rows(spans, device), step)
            if step.layers_done != self.model.layers:
                raise wrong("model", f"{self.model.layers} layers with attention", step.layers_done)
            how = [(span.sampling, span.output) for span in drawn if span.sampling is not None]
            told = draw(logits, how) if how else []
        return Ran({span.request: token for span, token in zip(drawn, told, strict=True)}, failed, logits)

    def _send(self, spans: Sequence[Span], layer: int, failed: dict[int, TransferError]) -> None:
        waiting = [span for span in spans if span.puts and span.request not in failed]
        if waiting and self._kv.device.type == "cuda":
            # Copies have a stream of their own.
            torch.cuda.current_stream(self._kv.device).synchronize()
        for span in waiting:
            try:
                for put in span.puts:
                    put.sender.put_layer(put.transfer, layer)
            except TransferError as error:
                failed[span.request] = error

    def _check_layout(self) -> None:
        layout, model = self._kv.layout, self.model
        if model.device != self._kv.device:
            raise wrong("pool", f"memory on {model.device}, where the model is", self._kv.device)
        for name, needed in model.shape.items():
            if getattr(layout, name) != needed:
                raise wrong("pool", f"{name} {needed}, as the model has", getattr(layout, name))

    def _check(self, spans: Sequence[Span]) -> None:
        size, blocks, seen = self._kv.layout.block_tokens, self._kv.blocks, set[int]()
        for span in spans:
            name = f"request {span.request}"
            if span.request in seen:
                raise wrong("spans", f"{name} once", "twice")
            seen.add(span.request)
            if not span.tokens or span.start < 0:
                raise wrong("tokens", f"{name} with at least one token, from position 0 on", f"{span.start}:{span.end}")
            if span.end > self.model.context:
                raise wrong("tokens", f"{name} within the model's context of {self.model.context} tokens", span.end)
            if len(span.blocks) * size < span.end:
                raise wrong("blocks", f"{name} with blocks of {size} tokens up to {span.end}", len(span.blocks))
            if min(span.blocks) < 0 or max(span.blocks) >= blocks:
                raise wrong("blocks", f"{name} with blocks below {blocks}", list(span.blocks))
            if min(span.tokens) < 0 or max(span.tokens) >= self.model.vocabulary:
                bad = next(token for token in span.tokens if not 0 <= token < self.model.vocabulary)
                raise wrong("tokens", f"{name} with token ids below {self.model.vocabulary}", bad)


def _last_rows(spans: Sequence[Span], device: torch.device) -> torch.Tensor:
    rows, row = [], 0
    for span in spans:
        row += len(span.tokens)
        if span.sampling is not None:
            rows.append(row - 1)
    return torch.tensor(rows, dtype=torch.long, device=device)
