"""Attention over blocks beside attention over plain tensors, and draws beside draws by hand."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: `make test` has an environment with it")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from engine_pair import GREEDY, NEAR_DRAW, by_hand, choose  # noqa: E402
from splitcore.engine import Sampling, Span  # noqa: E402
from splitcore.engine.paged import PagedKv, PagedStep  # noqa: E402
from splitcore.engine.sampling import draw, uniform  # noqa: E402
from splitcore.transfer import KvLayout, KvPool  # noqa: E402

HEADS, WIDTH = 2, 8


@st.composite
def worlds(draw):
    """A layout, and spans with what came before them."""
    layout = KvLayout(
        layers=2,
        heads=HEADS,
        head_dim=WIDTH,
        block_tokens=draw(st.integers(1, 9)),
        dtype="f32",
        order=draw(st.sampled_from(["NHD", "HND"])),
        planes=draw(st.sampled_from(["together", "apart"])),
        arrangement=draw(st.sampled_from(["layer_first", "block_first"])),
    )
    lengths = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=5))
    needed = [layout.blocks_for(start + count) for start, count in lengths]
    blocks = draw(st.permutations(range(sum(needed) + 2))) if draw(st.booleans()) else list(range(sum(needed) + 2))
    spans = []
    for at, ((start, count), blocks_needed) in enumerate(zip(lengths, needed, strict=True)):
        table, blocks = blocks[:blocks_needed], blocks[blocks_needed:]
        spans.append(Span(at, [0] * count, start, table, GREEDY))
    return layout, spans, draw(st.integers(1, 3)), draw(st.integers(0, 2**32))


@given(worlds())
def test_attention_over_blocks_is_attention_over_all_positions(world):
    layout, spans, groups, seed = world
    random = torch.Generator().manual_seed(seed)
    pool = KvPool(layout, sum(len(span.blocks) for span in spans) + 2)
    kv = PagedKv(pool)
    # What nobody wrote must not be looked at.
    kv.kv.fill_(float("nan"))
    past = [torch.randn(2, 2, span.start, HEADS, WIDTH, generator=random) for span in spans]
    for span, before in zip(spans, past, strict=True):
        for at in range(span.start):
            block, slot = span.blocks[at // layout.block_tokens], at % layout.block_tokens
            kv.kv[:, :, block, slot] = before[:, :, at]
    count = sum(len(span.tokens) for span in spans)
    written = []
    step = PagedStep(kv, spans, written.append)
    for layer in range(2):
        query = torch.randn(HEADS * groups, count, WIDTH, generator=random)
        fresh = torch.randn(2, HEADS, count, WIDTH, generator=random)
        told = step.layer(layer, query, *fresh, None)
        assert written == list(range(layer + 1))
        row = 0
        for span, before in zip(spans, past, strict=True):
            rows = slice(row, row := row + len(span.tokens))
            keys, values = torch.cat([before[layer].transpose(1, 2), fresh[:, :, rows]], dim=2)
            sees = torch.ones(len(span.tokens), span.end, dtype=torch.bool).tril(span.start)
            wanted = scaled_dot_product_attention(
                query[:, rows],
                keys.repeat_interleave(groups, 0),
                values.repeat_interleave(groups, 0),
                attn_mask=sees,
            )
            torch.testing.assert_close(told[rows], wanted.transpose(0, 1), rtol=1e-4, atol=1e-5)


def test_one_run_of_blocks_is_a_view_and_a_scattered_table_is_not():
    pool = KvPool(KvLayout(layers=1, heads=2, head_dim=4, block_tokens=4, order="NHD", planes="apart"), 8)
    kv = PagedKv(pool)
    seen = kv.run_of([3, 4, 5], 10)
    assert seen.shape == (1, 2, 2, 10, 4)
    assert seen.untyped_storage().data_ptr() == pool.torch().untyped_storage().data_ptr()
    seen[0, 1, 1, 9] = 7
    assert (pool.torch()[0, 5, 1, 1, 1] == 7).all()
    assert kv.run_of([3, 5, 4], 10) is None
    # Only what is used must be one run.
    assert kv.run_of([3, 5, 4], 4) is not None


samplings = st.builds(
    Sampling,
    temperature=st.floats(0.1, 3),
    top_p=st.floats(0.05, 1),
    top_k=st.integers(0, 12),
    seed=st.integers(0, 2**64 - 1),
)


@given(samplings, st.integers(0, 2**31), st.integers(0, 2**32))
def test_a_draw_is_that_by_hand(sampling, index, seed):
    row = torch.randn(50, generator=torch.Generator().manual_seed(seed)) * 3
    wanted, margin = choose(row.numpy().astype(np.float64), sampling, index)
    assert draw(row[None], [(sampling, index)]) == [wanted] or margin < NEAR_DRAW


@given(st.lists(samplings, min_size=1, max_size=5), st.integers(0, 2**32))
def test_a_draw_depends_on_its_row_seed_and_number_only(samplings, seed):
    rows = torch.randn(len(samplings), 50, generator=torch.Generator().manual_seed(seed))
    how = [(sampling, index) for index, sampling in enumerate([GREEDY, *samplings[1:]])]
    alone = [draw(rows[at : at + 1], [one])[0] for at, one in enumerate(how)]
    assert draw(rows, how) == alone
    assert draw(rows.flip(0), how[::-1]) == alone[::-1]
    assert alone[0] == int(rows[0].argmax())


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32))
def test_the_number_that_draws_is_that_by_hand(seed, index):
    told = uniform(seed, index)
    assert 0 <= told < 1
    assert told == by_hand(seed, index)


def test_draws_follow_the_probabilities():
    shares = torch.tensor([0.5, 0.25, 0.15, 0.1])
    sampling = [Sampling(temperature=1.0, seed=seed) for seed in range(40)]
    drawn = [draw(shares.log()[None], [(one, index)])[0] for one in sampling for index in range(100)]
    counts = np.bincount(drawn, minlength=4) / len(drawn)
    # Five standard deviations of 4,000 draws.
    assert np.abs(counts - shares.numpy()).max() < 5 * (0.25 / 4000) ** 0.5


def test_a_token_that_is_forbidden_is_never_drawn_and_the_others_as_before():
    row = torch.tensor([[0.0, 5.0, 1.0]])
    kept = row.clone()
    greedy = draw(row.repeat(2, 1), [(Sampling(forbidden=(1,)), 0), (Sampling(), 0)])
    assert greedy == [2, 1]
    drawn = {draw(row, [(Sampling(temperature=1.0, seed=seed, forbidden=(1,)), 0)])[0] for seed in range(64)}
    assert drawn == {0, 2}
    assert torch.equal(row, kept), "the logits are the caller's"


def test_tokens_without_probability_are_never_drawn():
    row = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    drawn = {draw(row, [(Sampling(temperature=1.0, seed=seed), 0)])[0] for seed in range(64)}
    assert drawn == {1, 3}
