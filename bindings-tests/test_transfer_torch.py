"""Pools as PyTorch tensors: the same memory, moved by the same transfers. `make test` runs it where PyTorch is."""

import numpy as np
import pytest

from splitcore.transfer import KvLayout, KvPool, Receiver, connect

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: `make test` has an environment with it")

DTYPES = ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_the_same_memory(dtype):
    layout = KvLayout(layers=2, heads=2, head_dim=4, block_tokens=4, dtype=dtype, planes="apart")
    pool = KvPool(layout, 3)
    tensor = pool.torch()
    assert tensor.shape == pool.numpy().shape
    tensor[1, 2, 0, 1, 3, 2] = 1
    assert np.count_nonzero(pool.numpy()) == 1
    assert pool.numpy()[1, 2, 0, 1, 3, 2] != 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pool_over_a_tensor_writes_it_in_place(dtype):
    layout = KvLayout(layers=2, heads=2, head_dim=4, block_tokens=4, dtype=dtype)
    memory = torch.zeros(3 * layout.block_bytes, dtype=torch.uint8)
    KvPool(layout, 3, memory).torch()[...] = 1
    assert memory.view(KvPool(layout, 3).torch().dtype).to(torch.float32).eq(1).all()


@pytest.mark.parametrize("orders", [("HND", "HND"), ("NHD", "HND"), ("HND", "NHD")])
@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_attention_over_moved_kv_is_that_over_the_original_bit_for_bit(backend, orders):
    """A decode's query over a prompt of 40 tokens, in blocks of 16 here and of 8 there."""
    shapes = [(orders[0], 16, [4, 0, 2]), (orders[1], 8, [7, 1, 5, 0, 3])]
    layouts = [
        KvLayout(layers=2, heads=2, head_dim=8, block_tokens=tokens, dtype="f32", order=order)
        for order, tokens, _ in shapes
    ]
    prompt, token = (KvPool(layout, 8) for layout in layouts)
    random = torch.Generator().manual_seed(0)
    prompt.torch().normal_(generator=random)
    query = torch.randn(1, 2, 1, 8, generator=random)
    (_, _, source), (_, _, dest) = shapes
    with (
        Receiver(token, model="m") as receiver,
        connect(prompt, receiver.endpoint, model="m", backend=backend) as sender,
    ):
        grant = receiver.open(writer=sender.incarnation, request=1, blocks=dest, tokens=40)
        transfer = sender.begin(grant, table=source, tokens=40)
        for layer in range(2):
            sender.put_layer(transfer, layer)
        for layer in range(2):
            receiver.wait_layer(grant, layer, timeout=10)
            here, there = (attention(pool, table, layer, query) for pool, table in ((prompt, source), (token, dest)))
            assert torch.equal(here, there)
        assert sender.finish(transfer, timeout=10).kind == "local-done"


def attention(pool, table, layer, query):
    blocks = pool.torch()[layer, table]
    if pool.layout.order == "NHD":
        blocks = blocks.transpose(2, 3)
    # [block, K and V, head, token, element] to [K and V, 1, head, position, element].
    keys, values = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None, :, :40].contiguous()
    return torch.nn.functional.scaled_dot_product_attention(query, keys, values)


def test_a_tensor_with_gaps_or_on_another_device_is_refused():
    layout = KvLayout(layers=1, heads=1, head_dim=4, block_tokens=4)
    gaps = torch.zeros(2 * layout.block_bytes, 2, dtype=torch.uint8)[:, 0]
    elsewhere = torch.zeros(2 * layout.block_bytes, dtype=torch.uint8, device="meta")
    for tensor in (gaps, elsewhere):
        with pytest.raises(Exception, match="contiguous tensor on the CPU"):
            KvPool(layout, 2, tensor)
