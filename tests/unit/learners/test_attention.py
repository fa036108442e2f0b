import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from coterie.errors import ModelError
from coterie.learners.attention import Blocks, packed_attention

HEADS, KV, D = 4, 2, 8


def row(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, h, length, D, generator=generator, dtype=torch.float64, requires_grad=True)
        for h in (HEADS, KV, KV)
    ]


def by_mask(q, k, v, sees):
    """Attention over the whole row under a dense [N, N] mask."""
    k, v = (t.repeat_interleave(HEADS // KV, 1) for t in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=sees).transpose(1, 2)


def dense(length, blocks):
    """blocks: (prefix start, prefix length, [(start, length)…])."""
    sees = torch.zeros(length, length, dtype=torch.bool)
    for prefix_start, prefix, rows in blocks:
        for start, size in rows:
            sees[start : start + size, prefix_start : prefix_start + prefix] = True
            sees[start : start + size, start : start + size] = torch.ones(size, size).tril().bool()
    return sees


@pytest.mark.parametrize(
    "blocks",
    [
        [(0, 0, [(0, 12)])],
        [(0, 0, [(0, 4), (4, 4), (8, 4)])],
        [(0, 0, [(0, 6), (6, 5), (11, 1)])],
        [(0, 0, [(0, 5)]), (0, 5, [(5, 3), (8, 3)])],
        [(0, 0, [(0, 5)]), (0, 5, [(5, 4), (9, 2), (11, 1)]), (0, 0, [(12, 3)]), (12, 3, [(15, 1)])],
    ],
)
def test_blocks_attend_as_the_dense_mask_says(blocks):
    length = max(start + size for _, _, rows in blocks for start, size in rows)
    q, k, v = row(length)
    want = by_mask(q, k, v, dense(length, blocks))
    upstream = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.autograd.grad((want * upstream).sum(), (q, k, v))
    packed = Blocks.of(blocks)
    got, _ = packed_attention(torch.nn.Identity(), q, k, v, None, packed_blocks=packed)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad((got * upstream).sum(), (q, k, v)), expected)


def test_equal_rows_are_taken_without_copying():
    blocks = Blocks.of([(0, 0, [(0, 4), (4, 4)]), (0, 0, [(8, 2)])])
    assert blocks.queries is None and blocks.keys is None and blocks.valid is None and blocks.masks == (None, None)


def test_scaling_is_passed_on():
    q, k, v = row(5)
    block = Blocks.of([(0, 0, [(0, 5)])])
    plain, _ = packed_attention(torch.nn.Identity(), q, k, v, None, packed_blocks=block)
    zero, _ = packed_attention(torch.nn.Identity(), q, k, v, None, packed_blocks=block, scaling=0.0)
    assert not torch.allclose(plain, zero)


@pytest.mark.parametrize("asked", [{"softcap": 30.0}, {"s_aux": torch.ones(4)}, {"sliding_window": 4}])
def test_what_blocks_can_t_express_is_refused(asked):
    q, k, v = row(5)
    with pytest.raises(ModelError, match=next(iter(asked))):
        packed_attention(torch.nn.Identity(), q, k, v, None, packed_blocks=Blocks.of([(0, 0, [(0, 5)])]), **asked)


def test_a_model_that_drops_the_blocks_is_refused():
    with pytest.raises(ModelError, match="blocks"):
        packed_attention(torch.nn.Identity(), *row(5), None)
