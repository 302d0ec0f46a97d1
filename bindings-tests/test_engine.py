"""Split decoding gives what `generate` gives unsplit, token for token, on a small random model."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: `make test` has an environment with it")

from transformers import (  # noqa: E402
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen3Config,
)

from engine_pair import (  # noqa: E402
    BACKENDS,
    GREEDY,
    SIZES,
    Ask,
    Pair,
    Reference,
    differing,
    nixl_or_skip,
    prompt,
    tiny,
    twice,
    unsplit,
)
from splitcore.engine import Engine, Put, Sampling, Span  # noqa: E402
from splitcore.transfer import KvLayout, KvPool  # noqa: E402

LENGTHS = [1, 16, 37, 130, 512, 64]
SAMPLINGS = {"greedy": GREEDY, "sampled": Sampling(temperature=0.8, top_p=0.9, seed=11)}


@pytest.fixture(scope="module")
def models():
    return tiny()


@pytest.fixture(scope="module")
def reference(models):
    return Reference(models[1])


@pytest.fixture(scope="module", params=[(backend, sizes) for backend in BACKENDS for sizes in SIZES], ids="-".join)
def pair(request, models):
    backend, sizes = request.param
    nixl_or_skip(pytest, backend)
    made = Pair(models[0], backend, SIZES[sizes])
    yield made
    made.close()


@pytest.fixture(scope="module")
def local(models):
    made = Pair(models[0], "shm", SIZES["different"])
    yield made
    made.close()


def asks(sampling):
    return [Ask(prompt(length), sampling) for length in LENGTHS]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("layer_wise", [True, False], ids=["layer-wise", "serialized"])
def test_requests_one_at_a_time_give_the_tokens_of_generate(pair, reference, layer_wise, sampling):
    for ask in asks(SAMPLINGS[sampling]):
        ((tokens, logits),) = pair.run([ask], layer_wise=layer_wise)
        expected = reference(ask)
        assert tokens == expected.tokens
        for got, wanted in zip(logits, expected.logits, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("layer_wise", [True, False], ids=["layer-wise", "serialized"])
def test_a_ragged_batch_gives_the_tokens_of_generate(pair, models, reference, layer_wise, sampling):
    batch = asks(SAMPLINGS[sampling])
    told = [tokens for tokens, _ in pair.run(batch, layer_wise=layer_wise)]
    # None of these prompts has a near tie.
    assert differing(told, [reference(ask) for ask in batch]) == 0
    engine = Engine(models[0], pair.pools[1])
    assert told == unsplit(engine, batch, pair.sizes[1])


def test_the_model_says_different_things():
    """Else the tests above would hold of an engine that mixes requests up."""
    told = [tuple(Reference(tiny()[1])(ask).tokens) for ask in asks(GREEDY)]
    assert len(set(told)) == len(LENGTHS)
    assert all(len(set(tokens)) > 6 for tokens in told)


@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
def test_a_prompt_in_chunks_gives_what_it_gives_at_once(local, reference, chunk):
    batch = [Ask(prompt(length), outputs=6) for length in (3, 37, 130)]
    told = local.run(batch, layer_wise=True, chunk=chunk)
    for (tokens, logits), ask in zip(told, batch, strict=True):
        expected = reference(ask)
        assert tokens == expected.tokens
        torch.testing.assert_close(torch.stack(logits), torch.stack(expected.logits), rtol=0, atol=1e-3)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_prompt_cut_before_its_end_is_finished_where_it_decodes(local, reference, cut):
    batch = [Ask(prompt(length)) for length in (20, 37, 130)]
    told = [tokens for tokens, _ in local.run(batch, layer_wise=True, cut=cut)]
    assert differing(told, [reference(ask) for ask in batch]) == 0


def test_prompts_chunks_and_decodes_share_a_pass(models, reference):
    batch = [Ask(prompt(length), outputs=3) for length in (40, 23, 90)]
    engine = Engine(models[0], KvPool(models[0].layout(16), 32))
    tables = [list(range(4)), [9, 7, 30], [12, 11, 10, 5, 6, 8]]
    first, second, third = (ask.tokens for ask in batch)
    one = engine.run([Span(0, first, 0, tables[0], GREEDY), Span(2, third[:50], 0, tables[2])])
    assert set(one.tokens) == {0}
    two = engine.run(
        [
            Span(2, third[50:], 50, tables[2], GREEDY),
            Span(0, [one.tokens[0]], 40, tables[0], GREEDY, output=1),
            Span(1, second, 0, tables[1], GREEDY),
        ]
    )
    wanted = [reference(ask).tokens for ask in batch]
    assert one.tokens[0] == wanted[0][0]
    assert two.tokens == {2: wanted[2][0], 0: wanted[0][1], 1: wanted[1][0]}
    assert list(two.tokens) == [2, 0, 1]


def test_a_layer_is_at_the_receiver_before_the_last_one_is_computed(pair, models):
    module, seen = models[0].module, []
    layers = models[0].layers

    def look(*_):
        assert pair.receiver.wait_layer(grant, 0, timeout=20).tokens == 37
        seen.append(pair.receiver.landed(grant))

    here, there = [0, 1, 2], list(range(37 // pair.sizes[1] + 1))
    grant = pair.receiver.open(writer=pair.sender.incarnation, request=1, blocks=there, tokens=37)
    transfer = pair.sender.begin(grant, table=here, tokens=37)
    handle = module.model.layers[-1].register_forward_pre_hook(look)
    try:
        pair.prefill.run([Span(1, prompt(37), 0, here, GREEDY, puts=[Put(pair.sender, transfer)])])
    finally:
        handle.remove()
    assert len(seen) == 1
    assert 1 <= seen[0] < layers
    assert pair.receiver.wait_layer(grant, layers - 1, timeout=20).tokens == 37
    assert pair.sender.finish(transfer, timeout=20).kind == "local-done"
    pair.receiver.release(grant)


def test_a_transfer_that_is_stopped_fails_alone(local, reference):
    asks = [Ask(prompt(20), outputs=1), Ask(prompt(37), outputs=1)]
    tables, grants, spans = [[0, 1], [2, 3, 4]], [], []
    for at, ask in enumerate(asks):
        tokens = len(ask.tokens)
        blocks = [at * 2, at * 2 + 1]
        grant = local.receiver.open(writer=local.sender.incarnation, request=at, blocks=blocks, tokens=tokens)
        transfer = local.sender.begin(grant, table=tables[at], tokens=tokens)
        grants.append(grant)
        spans.append(Span(at, ask.tokens, 0, tables[at], GREEDY, puts=[Put(local.sender, transfer)]))
    local.sender.stop(spans[0].puts[0].transfer)
    ran = local.prefill.run(spans)
    assert list(ran.tokens.values()) == [reference(ask).tokens[0] for ask in asks]
    assert list(ran.failed_puts) == [0]
    # By then its end may have been told, and it is forgotten.
    assert ran.failed_puts[0].kind in ("stopped", "unknown")
    assert local.receiver.wait_layer(grants[1], 3, timeout=20).tokens == 37
    assert local.sender.finish(spans[1].puts[0].transfer, timeout=20).kind == "local-done"
    local.receiver.release(grants[1])


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("planes", ["together", "apart"])
@pytest.mark.parametrize("arrangement", ["layer_first", "block_first"])
def test_any_layout_of_the_model_gives_the_same_tokens(models, reference, order, planes, arrangement):
    model = models[0]
    layout = KvLayout(
        layers=model.layers,
        heads=model.heads,
        head_dim=model.head_dim,
        block_tokens=5,
        dtype="f32",
        order=order,
        planes=planes,
        arrangement=arrangement,
    )
    batch = [Ask(prompt(length)) for length in (1, 4, 37, 64)]
    told = unsplit(Engine(model, KvPool(layout, 64)), batch, 5)
    assert differing(told, [reference(ask) for ask in batch]) == 0


SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 512,
    "initializer_range": 0.3,
    "eos_token_id": None,
}


@pytest.mark.parametrize(
    "config",
    [
        # Positions that are embedded, norms over queries and keys, experts.
        GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=512, initializer_range=0.3, eos_token_id=None),
        Qwen3Config(**SMALL, head_dim=16),
        MixtralConfig(**SMALL, num_local_experts=4),
    ],
    ids=lambda config: config.model_type,
)
def test_other_kinds_of_models_run_as_well(config):
    model, plain = twice(config)
    batch = [Ask(prompt(length), outputs=8) for length in (1, 17, 40)]
    told = unsplit(Engine(model, KvPool(model.layout(4), 64)), batch, 4)
    assert differing(told, [Reference(plain)(ask) for ask in batch]) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_of_half_precision_run_in_pools_of_it(dtype):
    model, plain = twice(LlamaConfig(**SMALL), dtype=dtype)
    pool, ask = KvPool(model.layout(4), 64), Ask(prompt(40), outputs=8)
    assert pool.torch().dtype == dtype
    (told,) = unsplit(Engine(model, pool), [ask], 4)
    assert told == Reference(plain)(ask).tokens


def test_nothing_outside_the_spans_is_written(models):
    model = models[0]
    pool = KvPool(model.layout(16), 8)
    pool.torch().fill_(7)
    Engine(model, pool).run([Span(0, prompt(20), 0, [5, 2, 6], GREEDY)])
    # [layer][block][K, V][token][head][element]
    kept = (pool.torch() == 7).all(dim=-1).all(dim=-1)
    written = {(block, token) for block, token in (~kept).all(dim=2).all(dim=0).nonzero().tolist()}
    assert written == {(5, token) for token in range(16)} | {(2, token) for token in range(4)}
    assert (~kept).any(dim=2).any(dim=0).sum() == 20
