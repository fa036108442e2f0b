import pytest
import torch

from coterie.engines.kv_cache import NotPlainError, Segment, SlotCache, Slots, Step, whole_blocks


def states(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_whole_blocks_round_up():
    assert [whole_blocks(n) for n in (1, 64, 65)] == [64, 64, 128]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_growing_keeps_what_is_written_and_fills_with_zeros(dtype):
    slots = Slots()
    slots.reserve(2, 10, 1000)
    keys, values = slots.layer(0, states(1, 3, 1, 4).to(dtype), states(1, 3, 1, 5).to(dtype))
    assert keys.shape == (2, 3, 64, 4) and values.shape == (2, 3, 64, 5) and keys.dtype == dtype
    keys[1, :, :10] = states(3, 10, 4, seed=1).to(dtype)
    slots.reserve(3, 65, 1000)
    assert slots.keys[0].shape == (3, 3, 128, 4)
    assert torch.equal(slots.keys[0][1, :, :10], states(3, 10, 4, seed=1).to(dtype))
    assert torch.count_nonzero(slots.keys[0]) == torch.count_nonzero(keys)


def test_storage_is_aligned_whatever_was_allocated_before():
    kept = []
    for size in range(1, 40):
        slots = Slots()
        slots.reserve(1, 1, 1)
        slots.layer(0, states(1, 1, 1, size), states(1, 1, 1, size))
        kept += [slots.keys[0], slots.values[0], bytearray(size)]
    assert all(t.data_ptr() % 64 == 0 for t in kept if isinstance(t, torch.Tensor))


def test_growing_stops_at_the_ceiling():
    slots = Slots()
    slots.reserve(1, 100, 150)
    assert slots.length == 128
    slots.reserve(1, 129, 150)
    assert slots.length == 192  # whole blocks over 150, not twice 128


def test_a_slot_moves_over_another():
    slots = Slots()
    slots.reserve(3, 8, 8)
    slots.layer(0, states(1, 2, 1, 4), states(1, 2, 1, 4))
    slots.keys[0].copy_(states(3, 2, 64, 4))
    before = slots.keys[0].clone()
    slots.move(2, 0, 5)
    assert torch.equal(slots.keys[0][0, :, :5], before[2, :, :5])
    assert torch.equal(slots.keys[0][0, :, 5:], before[0, :, 5:])
    assert torch.equal(slots.keys[0][1:], before[1:])


def test_prompts_go_to_every_slot_that_starts_and_one_is_parked():
    cache = SlotCache()
    cache.rows.reserve(4, 8, 8)
    cache.begin(Step(segments=(Segment(0, 3, (0, 1)), Segment(3, 5, (2,), park=True))))
    k, v = states(1, 2, 5, 4), states(1, 2, 5, 4, seed=1)
    for layer in range(2):
        got = cache.update(k, v, layer)
        assert got[0] is k and got[1] is v
    for layer in range(2):
        assert torch.equal(cache.rows.keys[layer][0, :, :3], k[0, :, :3])
        assert torch.equal(cache.rows.values[layer][1, :, :3], v[0, :, :3])
        assert torch.equal(cache.rows.keys[layer][2, :, :2], k[0, :, 3:])
    cache.unpark(3)
    assert torch.equal(cache.rows.values[1][3], cache.rows.values[1][2])
    assert cache.step.updates == 2


def test_new_tokens_land_at_their_rows_positions():
    cache = SlotCache()
    cache.rows.reserve(3, 8, 8)
    positions = torch.tensor([4, 0])
    cache.begin(Step(positions=positions))
    k, v = states(2, 2, 1, 4), states(2, 2, 1, 6, seed=1)
    cache.update(k, v, 0)
    for row, position in enumerate(positions):
        assert torch.equal(cache.rows.keys[0][row, :, position], k[row, :, 0])
        assert torch.equal(cache.rows.values[0][row, :, position], v[row, :, 0])
    assert torch.count_nonzero(cache.rows.keys[0]) == k.numel()


def test_shared_prompts_have_slots_of_their_own():
    cache = SlotCache()
    cache.shared = True
    cache.prompts.reserve(1, 3, 3)
    cache.rows.reserve(4, 1, 8)
    cache.begin(Step(segments=(Segment(0, 3, (0,)),)))
    k = states(1, 2, 3, 4)
    cache.update(k, k, 0)
    assert torch.equal(cache.prompts.keys[0][0, :, :3], k[0])
    assert cache.rows.keys[0].shape == (4, 2, 64, 4) and not cache.rows.keys[0].any()


@pytest.mark.parametrize("state", ["update_conv_state", "update_recurrent_state", "update_indexer"])
def test_other_states_are_refused(state):
    with pytest.raises(NotPlainError):
        getattr(SlotCache(), state)(torch.zeros(1), 0)
