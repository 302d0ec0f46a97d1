"""What splitting costs one request of the demo model: the delay of its second token, and its whole time.

Both engines run in this process, on one thread, so they never compute at once and what is measured beside the unsplit
run is the moving alone. Runs take turns, so that a busy machine is busy for all of them.

    PYTHONPATH=python ~/.cache/splitcore/torch-*/bin/python benches/engine.py
"""

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from splitcore.demo_model import demo_model
from splitcore.engine import GREEDY, Engine, Put, Span, load_model
from splitcore.transfer import KvPool, Receiver, connect

WAYS = [(backend, mode) for backend in ("shm", "tcp") for mode in ("layer-wise", "serialized")]
# The prompt's engine and the decoding one have other blocks, as machines of different kinds would.
SIZES = (16, 32)


@dataclass
class Times:
    """Seconds of one run."""

    first: float
    """Until the first token."""
    waited: float
    """From the first token until all KV is where the decode runs."""
    second: float
    """From the first token to the second, the wait included."""
    whole: float
    """Until the last token."""


class Bench:
    def __init__(self, context: int, outputs: int) -> None:
        torch.set_num_threads(1)
        self.outputs = outputs
        self.model = load_model(demo_model())
        pools = [KvPool(self.model.layout(size), -(-context // size)) for size in SIZES]
        self.prefill, self.decode = (Engine(self.model, pool) for pool in pools)
        self.receiver = Receiver(pools[1], model="smollm2")
        self.senders = {
            backend: connect(pools[0], self.receiver.endpoint, model="smollm2", backend=backend)
            for backend in ("shm", "tcp")
        }

    def unsplit(self, prompt: list[int]) -> tuple[list[int], Times]:
        table = range(-(-(len(prompt) + self.outputs) // SIZES[0]))
        begun = time.perf_counter()
        tokens = [self.prefill.run([Span(0, prompt, 0, table, GREEDY)]).tokens[0]]
        first = time.perf_counter()
        return self._rest(self.prefill, table, prompt, tokens, begun, first, first)

    def split(self, prompt: list[int], backend: str, mode: str) -> tuple[list[int], Times]:
        count, sender = len(prompt), self.senders[backend]
        here, there = (range(-(-(count + self.outputs) // size)) for size in SIZES)
        begun = time.perf_counter()
        granted = list(there[: -(-count // SIZES[1])])
        grant = self.receiver.open(writer=sender.incarnation, request=0, blocks=granted, tokens=count)
        transfer = sender.begin(grant, table=list(here), tokens=count)
        puts = [Put(sender, transfer)] if mode == "layer-wise" else []
        tokens = [self.prefill.run([Span(0, prompt, 0, here, GREEDY, puts=puts)]).tokens[0]]
        first = time.perf_counter()
        if mode == "serialized":
            for layer in range(self.model.layers):
                sender.put_layer(transfer, layer)
        for layer in range(self.model.layers):
            self.receiver.wait_layer(grant, layer, timeout=30)
        moved = time.perf_counter()
        told = self._rest(self.decode, there, prompt, tokens, begun, first, moved)
        sender.finish(transfer, timeout=30)
        self.receiver.release(grant)
        return told

    def _rest(
        self,
        engine: Engine,
        table: range,
        prompt: list[int],
        tokens: list[int],
        begun: float,
        first: float,
        moved: float,
    ) -> tuple[list[int], Times]:
        second = first
        while len(tokens) < self.outputs:
            at = len(prompt) + len(tokens) - 1
            tokens.append(engine.run([Span(0, tokens[-1:], at, table, GREEDY, output=len(tokens))]).tokens[0])
            if len(tokens) == 2:
                second = time.perf_counter()
        return tokens, Times(first - begun, moved - first, second - first, time.perf_counter() - begun)

    def close(self) -> None:
        for sender in self.senders.values():
            sender.close()
        self.receiver.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--prompts", type=int, nargs="+", default=[128, 512])
    options.add_argument("--outputs", type=int, default=8)
    options.add_argument("--repeat", type=int, default=15)
    options.add_argument("--json", action="store_true", help="print the rows as JSON, with every run")
    told = options.parse_args()
    bench = Bench(max(told.prompts) + told.outputs + 64, told.outputs)
    rows = [row for length in told.prompts for row in compare(bench, length, told.repeat)]
    bench.close()
    if told.json:
        print(json.dumps(rows))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, one thread, float32")
    print(f"{told.outputs} output tokens, median of {told.repeat} runs that take turns\n")
    print("| prompt | KV | way | first token | waited | second after | beside unsplit | whole time | beside unsplit |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        beside = ("", "", "")
        if row["way"] != "unsplit":
            beside = (f"{row['waited_ms']:.2f} ms", f"{row['delay_ms']:+.1f} ms", f"{row['more_percent']:+.1f} %")
        print(
            f"| {row['prompt']} | {row['kv_mb']:.0f} MB | {row['way']} | {row['first_ms']:.0f} ms | {beside[0]} "
            f"| {row['second_ms']:.1f} ms | {beside[1]} | {row['whole_ms']:.0f} ms | {beside[2]} |"
        )


def compare(bench: Bench, length: int, repeat: int) -> list[dict[str, Any]]:
    """One row for each way; split runs are told beside the unsplit run of their turn."""
    prompt = torch.randint(0, bench.model.vocabulary, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    runs: dict[str, list[Times]] = {}
    for turn in range(repeat + 1):
        wanted, times = bench.unsplit(prompt)
        taken = {"unsplit": times}
        for backend, mode in WAYS:
            tokens, taken[f"{backend}, {mode}"] = bench.split(prompt, backend, mode)
            if tokens != wanted:
                raise SystemExit(f"{backend}, {mode}: a split run gave other tokens")
        # The first turn touches the memory.
        for way, times in taken.items() if turn else ():
            runs.setdefault(way, []).append(times)
    layout = bench.model.layout()
    rows = []
    for way, all_times in runs.items():
        pairs = list(zip(all_times, runs["unsplit"], strict=True))
        row = {"prompt": length, "way": way, "kv_mb": length * layout.block_bytes / layout.block_tokens / 1e6}
        row |= {f"{name}_ms": median(vars(one)[name] for one in all_times) * 1e3 for name in vars(all_times[0])}
        row["delay_ms"] = median(one.second - other.second for one, other in pairs) * 1e3
        row["more_percent"] = (median(one.whole / other.whole for one, other in pairs) - 1) * 100
        rows.append(row | {"runs_s": [asdict(one) for one in all_times]})
    return rows


if __name__ == "__main__":
    main()
