"""The search for a batch finds the edge, with few probes, whatever the shape of the curve."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiwater.contrib.torch.estimate.batch import Probe, is_monotonic, search
from hiwater.contrib.torch.estimate.cards import CARDS, find_card
from hiwater.errors import UsageError
from recording import rounds


def searched(need, available, multiple_of=1, largest=2**20):
    asked = []

    def probe(size):
        asked.append(size)
        return Probe(size, need(size), need(size) <= available)

    found = search(probe, available, multiple_of, largest)
    assert len(asked) == len(set(asked)), "no batch is tried twice"
    return *found, asked


CURVES = st.tuples(
    st.integers(0, 10**6), st.integers(1, 10**4), st.sampled_from([0.5, 1.0, 1.3, 2.0]), st.integers(1, 5000)
)


@settings(max_examples=rounds(300))
@given(CURVES, st.integers(1, 10**8), st.sampled_from([1, 2, 8, 64]), st.sampled_from([64, 1000, 2**20]))
def test_the_edge_is_found(curve, available, multiple_of, largest):
    start, slope, power, grain = curve

    def need(size):
        return start + int(slope * size**power) // grain * grain

    size, probes, is_bounded, asked = searched(need, available, multiple_of, largest)
    assert size % multiple_of == 0
    assert size == 0 or need(size) <= available
    assert size + multiple_of > largest or need(size + multiple_of) > available
    assert is_bounded == (size + multiple_of <= largest)
    assert is_monotonic(probes)
    assert probes == sorted(probes)
    assert len(asked) <= 45


def test_a_straight_line_needs_few_probes():
    *_, asked = searched(lambda size: 10**9 + size * 37 * 2**20, 80 * 2**30)
    assert len(asked) <= 6


def test_what_is_not_monotonic_is_said():
    *_, probes, _, _ = searched(lambda size: 100 if size in (1, 4) else 200, 150)
    assert not is_monotonic([Probe(1, 100, True), Probe(2, 200, False), Probe(4, 100, True)])
    assert is_monotonic(probes)  # it never looked at 4
    assert not is_monotonic([Probe(1, 10, False), Probe(2, 10, True)])


def test_cards_are_found_by_part_of_their_name_or_by_size():
    assert (
        find_card("H200").name
        == find_card("nvidia h200 141GB").name
        == find_card("H200-141GB").name
        == "NVIDIA H200 141GB"
    )
    assert find_card("NVIDIA A100-SXM4-80GB").name == find_card("a100 80gb").name
    assert find_card("NVIDIA H100 80GB HBM3").name == find_card("H100").name
    assert find_card("Tesla T4").name == find_card("T4").name
    assert find_card("a100 80gb").total_bytes == int(79.25 * 2**30)
    assert find_card("80GiB").total_bytes == 80 * 2**30
    assert all(card.source and card.total_bytes > 2**33 for card in CARDS)


@pytest.mark.parametrize("text", ["A100", "GTX 9000", "", "0", "-5GiB"])
def test_other_cards_are_refused_with_a_choice(text):
    with pytest.raises(UsageError, match="NVIDIA"):
        find_card(text)
