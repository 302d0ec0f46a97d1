"""One side of a transfer in a process of its own: a JSON command a line in, a JSON answer a line out."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from splitcore import SplitcoreError
from splitcore.nixl_transfer import link
from splitcore.transfer import KvLayout, KvPool, Receiver, TransferKey, connect

MODEL = "a model"


def pattern(pool, seed):
    """Fill a pool with bytes that tell its places apart."""
    pool.native.array()[:] = np.random.default_rng(seed).integers(0, 256, pool.native.bytes, dtype=np.uint8)


def rows(pool, table, tokens):
    """Give the KV of positions as ``[layer][position][K, V][head][element]`` whatever the layout is."""
    view, size = pool.numpy(), pool.layout.block_tokens
    if pool.layout.order == "HND":
        view = view.swapaxes(3, 4)
    told = np.stack([view[:, table[at // size], :, at % size] for at in range(*tokens)], axis=1)
    return np.ascontiguousarray(told).view(np.uint8)


class Side:
    """What the commands are about."""

    def __init__(self):
        self.pool = self.receiver = self.sender = None
        self.transfers, self.kept = {}, []

    def pool_(self, layout, blocks, seed=None):
        self.pool = KvPool(KvLayout(**layout), blocks)
        if seed is not None:
            pattern(self.pool, seed)

    def listen(self, **options):
        self.receiver = Receiver(self.pool, model=MODEL, **options)
        return self.receiver.endpoint

    def open(self, **options):
        return self.receiver.open(**options).to_json()

    def wait_layer(self, key, layer, timeout):
        seal = self.receiver.wait_layer(TransferKey(*key), layer, timeout)
        return [seal.tokens, seal.bytes]

    def check(self, layout, blocks, seed, source, dest, tokens, layers=None):
        """Compare what has landed with what the other side's pattern has, and see that nothing else was written."""
        other = KvPool(KvLayout(**layout), blocks)
        pattern(other, seed)
        upto = slice(0, layers)
        here, there = rows(self.pool, dest, tokens), rows(other, source, tokens)
        assert np.array_equal(here[upto], there[upto]), "landed bytes differ"
        return int(np.count_nonzero(self.pool.native.array())) - int(np.count_nonzero(here))

    def count_nonzero(self):
        return int(np.count_nonzero(self.pool.native.array()))

    def landed(self, key):
        return self.receiver.landed(TransferKey(*key))

    def settle(self, key, timeout):
        """Wait until a transfer has landed whole or nothing is written for it any more; what was told, and layers."""
        key, deadline, told = TransferKey(*key), time.monotonic() + timeout, []
        while not (told and (told[-1][0] == "fenced" or told[-1][1] == self.pool.layout.layers)):
            left = deadline - time.monotonic()
            assert left > 0, f"not settled: {told}"
            self.receiver.wait(left)
            told += [[told.kind, told.layers] for told in self.receiver.poll() if told.key == key]
        return told, self.receiver.landed(key)

    def clear(self):
        """Forget what has landed."""
        self.pool.native.array()[:] = 0

    def arrivals(self, timeout):
        self.receiver.wait(timeout)
        return [[arrival.kind, arrival.key.request, arrival.layers] for arrival in self.receiver.poll()]

    def stop(self, key):
        self.receiver.stop(TransferKey(*key))

    def release(self, key):
        self.receiver.release(TransferKey(*key))
        return self.receiver.in_use

    def connect(self, endpoint, **options):
        self.sender = connect(self.pool, endpoint, model=MODEL, **options)
        return [self.sender.incarnation, self.sender.backend]

    def begin(self, grant, table, tokens, dest_table=None):
        transfer = self.sender.begin(grant, table=table, tokens=tuple(tokens), dest_table=dest_table)
        self.transfers[transfer.key.request] = transfer
        return transfer.plan.layer_bytes

    def put_layers(self, request, layers):
        for layer in layers:
            self.sender.put_layer(self.transfers[request], layer)

    def give_up(self, request):
        self.sender.stop(self.transfers[request])

    def put_beyond(self, request, offset):
        """Write a range behind the checks of the books: what a broken sender would do."""
        grant, way = self.transfers[request].grant, self.sender._link
        copies = np.array([[0, offset, 64]], dtype=np.uint64)
        way._agent.write(way._name, way._base, copies, {"key": grant.key.slot})

    def ranges_per_write(self, count):
        link._RANGES_MAX = count

    def keep(self):
        """Keep the connection, and be ready for another one."""
        self.kept.append(self.sender)

    def finish(self, request, timeout):
        return self.sender.finish(self.transfers[request], timeout).kind

    def peer(self):
        return self.sender.peer

    def use(self):
        """Count descriptors and threads."""
        return [len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("fd", "task")]

    def disconnect(self):
        self.sender.close()

    def joined(self, writer, timeout):
        """Wait for a sender; by NIXL it comes in only while the receiver is called."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.receiver.writer_state(writer) != "connected":
            self.receiver.wait(0.005)
        return self.receiver.writer_state(writer)

    def writer_state(self, writer):
        return self.receiver.writer_state(writer)

    def close(self):
        for thing in (self.sender, self.receiver):
            if thing is not None:
                thing.close()
        self.sender = self.receiver = None


def main():
    """Answer until standard input ends."""
    # Whatever libraries print goes elsewhere.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    side = Side()
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        try:
            answer = {"ok": getattr(side, name)(**command)}
        except SplitcoreError as error:
            answer = {"error": str(error), "kind": getattr(error, "kind", None), "type": type(error).__name__}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
