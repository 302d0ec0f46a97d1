"""What runs on a host of its own: a worker with a made-up engine, and a client."""

import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np

from splitcore.engine.plan import Ran
from splitcore.transfer import KvLayout, KvPool
from splitcore.worker import Worker, run

LAYERS, BLOCK_TOKENS, LIMIT_S = 2, 16, 60


class Engine:
    """Keeps each token itself as its KV, and draws what hangs on all of them: wrong bytes make wrong tokens."""

    def __init__(self, pool):
        kv = pool.numpy()
        self.kv = np.moveaxis(kv, kv.shape.index(BLOCK_TOKENS), 2)

    def run(self, spans):
        drawn = {}
        for span in spans:
            for layer in range(LAYERS):
                for at, token in enumerate(span.tokens, span.start):
                    self.kv[layer, span.blocks[at // BLOCK_TOKENS], at % BLOCK_TOKENS] = token
                for put in span.puts:
                    put.sender.put_layer(put.transfer, layer)
            if span.sampling is not None:
                drawn[span.request] = self._next(span)
        return Ran(drawn)

    def _next(self, span):
        tokens = self.kv[:, span.blocks].reshape(LAYERS, len(span.blocks) * BLOCK_TOKENS, -1)[:, : span.end]
        assert (tokens == tokens[0, :, :1]).all(), "KV that is not the same in every layer"
        return (int(tokens[0, :, 0].sum()) + span.end) % 60


def work(connect, name, role):
    """Be a worker until SIGTERM."""
    stops = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stops.set())
    layout = KvLayout(layers=LAYERS, heads=2, head_dim=8, block_tokens=BLOCK_TOKENS, dtype="f32")
    pool = KvPool(layout, 400)
    worker = Worker(pool.native, connect=connect, name=name, role=role, model="tiny", backend="tcp")
    sys.stderr.write(f"peers at {worker.peer_address}\n")
    run(worker, Engine(pool), stops.is_set)
    sys.stderr.write(f"handoffs: {worker.stats()['transfers']}\n")
    worker.close()


def ask(host, machines, count):
    """Wait for so many machines, send requests all at once, and print what came of them."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        connection = HTTPConnection(host, timeout=LIMIT_S)
        connection.request("GET", "/v1/machines")
        known = json.loads(connection.getresponse().read())["machines"]
        connection.request("GET", "/readyz")
        is_ready = connection.getresponse().status == 200
        if is_ready and sum(machine["state"] == "up" for machine in known) == machines:
            break
        assert time.monotonic() < deadline, known
        time.sleep(0.05)

    def one(number):
        body = {"model": "tiny", "prompt": [number % 50, 7, *range(40)], "max_tokens": 12, "temperature": 0}
        connection = HTTPConnection(host, timeout=LIMIT_S)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return [answer.status, body["prompt"], json.loads(answer.read())]

    with ThreadPoolExecutor(count) as pool:
        json.dump(list(pool.map(one, range(count))), sys.stdout)


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    work(*given) if what == "work" else ask(given[0], *map(int, given[1:]))
