"""What torch's segments say of free memory: which of it can be given back, and to which requests it can be handed
out."""

import pytest

from hiwater.allocator_state import AllocatorState, of_segments

KIB, MIB = 1 << 10, 1 << 20
USED, FREE, WAITING = "active_allocated", "inactive", "active_awaiting_free"


def segment(*blocks, kind="large", pool=(0, 0), stream=0, expandable=False):
    """As `snapshot()` in c10/cuda/CUDACachingAllocator.cpp makes it: of an expandable segment a range of mapped
    pages."""
    return {
        "device": 0, "address": 0x7F00_0000_0000, "total_size": sum(size for _, size in blocks), "segment_type": kind,
        "stream": stream, "segment_pool_id": pool, "is_expandable": expandable,
        "blocks": [{"size": size, "requested_size": size, "state": state} for state, size in blocks],
    }  # fmt: skip


def free_of(*segments):
    state = of_segments(segments)
    return state.inactive_split_bytes, state.free_segments_bytes


def test_free_pieces_of_a_segment_in_use_stay_with_it():
    assert free_of(segment((USED, MIB), (FREE, 19 * MIB))) == (19 * MIB, 0)
    assert free_of(segment((WAITING, MIB), (FREE, 19 * MIB))) == (19 * MIB, 0)
    assert free_of(segment((FREE, 20 * MIB))) == (0, 20 * MIB)


@pytest.mark.parametrize(
    ("blocks", "kind", "pieces", "pages"),
    [
        # Large segments are mapped and unmapped by 20 MiB, small ones by 2.
        (((USED, 20 * MIB), (FREE, 40 * MIB), (USED, 20 * MIB)), "large", 0, 40),
        (((USED, 25 * MIB), (FREE, 55 * MIB)), "large", 15, 40),
        (((USED, 25 * MIB), (FREE, 50 * MIB), (USED, 5 * MIB)), "large", 30, 20),
        (((USED, 25 * MIB), (FREE, 10 * MIB), (USED, 5 * MIB)), "large", 10, 0),
        (((FREE, 60 * MIB),), "large", 0, 60),
        (((USED, MIB), (FREE, 6 * MIB), (USED, MIB)), "small", 2, 4),
        (((USED, 3 * MIB), (FREE, 1 * MIB), (WAITING, MIB), (FREE, 3 * MIB)), "small", 2, 2),
    ],
)
def test_whole_free_pages_of_an_expandable_segment_can_be_given_back(blocks, kind, pieces, pages):
    assert free_of(segment(*blocks, kind=kind, expandable=True)) == (pieces * MIB, pages * MIB)


def test_what_is_free_in_private_pools_is_told_apart():
    state = of_segments(
        [
            segment((FREE, 20 * MIB)),
            segment((FREE, 30 * MIB), pool=(0, 1)),
            segment((USED, 15 * MIB), (FREE, 5 * MIB), pool=(0, 1)),
        ]
    )
    assert (state.free_segments_bytes, state.private_free_segments_bytes, state.private_free_bytes) == (
        50 * MIB,
        30 * MIB,
        35 * MIB,
    )
    assert state.private_pools == {"0.1": 50 * MIB}


def test_the_largest_free_block_is_that_of_a_stream_and_a_kind_of_request():
    state = of_segments(
        [
            segment((USED, MIB), (FREE, 9 * MIB), (USED, MIB), (FREE, 3 * MIB)),
            segment((USED, MIB), (FREE, 18 * MIB), stream=0x55D0),
            segment((USED, KIB), (FREE, 2 * MIB - KIB), kind="small"),
            segment((FREE, 90 * MIB), pool=(0, 1)),
        ]
    )
    assert state.largest_free == {
        "large, stream 0x0": 9 * MIB,
        "large, stream 0x55d0": 18 * MIB,
        "small, stream 0x0": 2 * MIB - KIB,
    }
    assert [state.largest_free_bytes(kind) for kind in ("", "large", "small")] == [18 * MIB, 18 * MIB, 2 * MIB - KIB]
    assert AllocatorState().largest_free_bytes() == 0


def test_a_state_comes_back_from_its_text_and_nothing_else_does():
    state = of_segments([segment((USED, MIB), (FREE, 9 * MIB)), segment((FREE, MIB), pool=(0, 1))])
    assert AllocatorState.from_json(state.to_json()) == state
    for text in ('{"largest_free": 1}', '{"largest_free": {"a": "b"}}', '{"reserved_bytes": "x"}', "[]", "["):
        assert AllocatorState.from_json(text) is None
