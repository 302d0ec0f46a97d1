"""Memory of pools: its own or the caller's, as arrays and tensors over the same bytes."""

import gc
import subprocess
import sys
import weakref
from importlib.util import find_spec

import numpy as np
import pytest

from splitcore import ConfigError
from splitcore.transfer import KvLayout, KvPool

SMALL = KvLayout(layers=2, heads=2, head_dim=4, block_tokens=4)
DTYPES = ["bf16", "f16", "f32", "f8e4m3", "f8e5m2", "i8"]


@pytest.mark.parametrize("make", [lambda size: np.zeros(size, "u1"), bytearray], ids=["numpy", "bytearray"])
def test_a_borrowed_pool_is_the_callers_memory(make):
    memory = make(4 * SMALL.block_bytes)
    pool = KvPool(SMALL, 4, memory)
    pool.numpy()[1, 2, 0, 1, 3, 2] = 1.5
    assert np.frombuffer(memory, "f4").sum() == 1.5
    assert pool.native.array().ctypes.data == np.frombuffer(memory, "u1").ctypes.data


def test_a_pool_and_its_views_keep_the_memory():
    memory = np.zeros(4 * SMALL.block_bytes, "uint8")
    gone = weakref.ref(memory)
    view = KvPool(SMALL, 4, memory).numpy()
    del memory
    gc.collect()
    assert gone() is not None
    view[...] = 2
    assert view.sum() == 2 * view.size
    del view
    gc.collect()
    assert gone() is None


def test_the_memory_of_a_pool_cannot_be_resized_under_it():
    memory = bytearray(4 * SMALL.block_bytes)
    pool = KvPool(SMALL, 4, memory)
    with pytest.raises(BufferError):
        memory.clear()
    del pool
    gc.collect()
    memory.clear()


class _Interface:
    """What numpy knows how to see, and nothing else does."""

    def __init__(self, array):
        self._array = array
        self.__array_interface__ = array.__array_interface__


class _Packed:
    """What DLPack hands over, as a tensor does."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [_Interface, _Packed])
def test_memory_of_other_libraries_is_used_in_place(wrap):
    memory = np.zeros(SMALL.block_bytes, "uint8")
    KvPool(SMALL, 1, wrap(memory)).numpy()[...] = 1
    assert (memory.view("f4") == 1).all()


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        (bytes(10_000), "writable"),
        (bytearray(10), "at least"),
        (np.zeros((200, 200), "f4")[:, ::2], "contiguous"),
        (np.zeros((200, 200), "f4").T, "contiguous"),
        ("text", "memory"),
        (7, "memory"),
    ],
    ids=["read-only", "short", "gaps", "turned", "text", "number"],
)
def test_memory_that_cannot_be_a_pool_is_refused(buffer, expected):
    with pytest.raises(ConfigError, match=expected):
        KvPool(SMALL, 4, buffer)


@pytest.mark.parametrize("blocks", [0, -1, 2**32])
def test_a_pool_has_at_least_one_block(blocks):
    with pytest.raises(ConfigError, match="blocks"):
        KvPool(SMALL, blocks)


def test_without_torch_numpy_works_and_torch_says_what_is_missing():
    code = """
import sys
sys.modules["torch"] = None
from splitcore import ConfigError
from splitcore.transfer import KvLayout, KvPool, Receiver, connect
layout = KvLayout(layers=1, heads=1, head_dim=4, block_tokens=4)
here, there = KvPool(layout, 1), KvPool(layout, 1)
here.numpy()[...] = 3
with Receiver(there, model="m") as receiver, connect(here, receiver.endpoint, model="m") as sender:
    grant = receiver.open(writer=sender.incarnation, request=1, blocks=[0], tokens=4)
    sender.put_layer(sender.begin(grant, table=[0], tokens=4), 0)
    receiver.wait_layer(grant, 0, timeout=5)
assert (there.numpy() == 3).all()
try:
    there.torch()
except ConfigError as error:
    assert "pip install torch" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_the_same_memory(dtype):
    import torch

    layout = KvLayout(layers=2, heads=2, head_dim=4, block_tokens=4, dtype=dtype, planes="apart")
    pool = KvPool(layout, 3)
    tensor = pool.torch()
    assert tensor.shape == pool.numpy().shape
    tensor[1, 2, 0, 1, 3, 2] = 1
    place = np.flatnonzero(pool.numpy().view("u1" if layout.dtype_bytes == 1 else pool.numpy().dtype))
    assert len(place) == 1
    again = KvPool(layout, 3, torch.zeros(pool.native.bytes, dtype=torch.uint8))
    again.torch()[...] = 1
    assert again.numpy().all()


@pytest.mark.parametrize("package", ["torch", "nixl", "nixl_cu12"])
def test_moving_kv_does_not_import(package):
    code = f"import sys, splitcore.transfer; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
