"""KV by NIXL between two real processes, over UCX's TCP and over its shared memory."""

import pytest
from kv_sides import BLOCKS, LAYOUT, Told, pair, sides  # noqa: F401
from splitcore.nixl_transfer import available

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))


@pytest.fixture(params=["tcp", "default"])
def env(request):
    base = {"UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "ERROR"}
    return base | ({"UCX_TLS": "tcp"} if request.param == "tcp" else {})


def test_scattered(sides, env):
    r, s, life = pair(sides, env, listen={"nixl": True}, backend="nixl")
    src, dst = [3, 0, 7], [9, 2, 5]
    g = r("open", writer=life, request=7, blocks=dst, tokens=10)
    s("begin", grant=g, table=src, tokens=[0, 10])
    s("put_layers", request=7, layers=[0, 1, 2])
    import json

    k = json.loads(g)["key"]
    key = [k["request"], k["slot"], k["generation"]]
    for l in range(3):
        assert r("wait_layer", key=key, layer=l, timeout=5)[0] == 10
    assert s("finish", request=7, timeout=5) == "local-done"
    assert r("check", layout=LAYOUT, blocks=BLOCKS, seed=1, source=src, dest=dst, tokens=[0, 10]) == 0
    assert r("release", key=key) == 0
    s("close")
    r("close")
    assert s.end() == 0
    assert r.end() == 0
