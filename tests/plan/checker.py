"""An independent check of a plan: every rule by plain loops, nothing shared with the package."""

from collections import defaultdict
from itertools import pairwise


def check_plan(plan, lengths, *, overflow="error", multiple_of=1, max_sequences=None):
    """Asserts every rule a plan must obey and returns how many packs were looked at."""
    lengths = [int(n) for n in lengths]
    ranges = defaultdict(list)
    slots = packed = 0
    for i in range(plan.num_packs):
        ids, starts, sizes = (array.tolist() for array in plan[i])
        assert ids, f"pack {i} is empty"
        assert len(set(ids)) == len(ids), f"pack {i} holds two pieces of one sequence"
        assert max_sequences is None or len(ids) <= max_sequences
        occupied = 0
        for sequence, start, size in zip(ids, starts, sizes):
            assert size >= 1 and start >= 0 and start + size <= lengths[sequence]
            occupied += -(-size // multiple_of) * multiple_of
            packed += size
            ranges[sequence].append((start, start + size))
        own = overflow == "own_pack" and len(ids) == 1 and sizes[0] > plan.max_length
        assert own or occupied <= plan.max_length, f"pack {i} holds {occupied} slots"
        slots += max(plan.max_length, occupied)
    for sequence, spans in ranges.items():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), f"sequence {sequence} has a token twice"
    ledger = plan.ledger
    assert (
        ledger.sequences_in
        == len(lengths)
        == ledger.sequences_packed + ledger.sequences_dropped + ledger.sequences_empty
    )
    assert ledger.sequences_packed == len(ranges)
    assert ledger.sequences_empty == sum(n == 0 for n in lengths)
    assert ledger.tokens_in == sum(lengths) == ledger.tokens_packed + ledger.tokens_truncated + ledger.tokens_dropped
    assert ledger.tokens_packed == packed and ledger.slots == slots == packed + ledger.tokens_padding
    assert ledger.sequences_split == 0 or overflow == "split" or plan.strategy == "wrapped"
    assert plan.lower_bound <= plan.num_packs and plan.gap == plan.num_packs - plan.lower_bound
    assert plan.pack_offsets[0] == 0 and plan.pack_offsets[-1] == len(plan.lengths)
    for array in (plan.sequence_ids, plan.starts, plan.lengths, plan.pack_offsets):
        assert str(array.dtype) == "int64"
    return plan.num_packs


def fewest_packs(lengths, capacity, most):
    """The optimum by exhaustive search; for a dozen sequences."""
    lengths = sorted(lengths, reverse=True)
    best = len(lengths)

    def place(index, packs):
        nonlocal best
        if len(packs) >= best:
            return
        if index == len(lengths):
            best = len(packs)
            return
        for alike in set(packs):
            room, number = alike
            if room >= lengths[index] and number < most:
                rest = list(packs)
                rest.remove(alike)
                place(index + 1, [*rest, (room - lengths[index], number + 1)])
        place(index + 1, [*packs, (capacity - lengths[index], 1)])

    place(0, [])
    return best


def proven_packs(certificate):
    """The bound a certificate proves, by a knapsack of its own over exact integers; None if it proves nothing."""
    sizes, weights = certificate.sizes.tolist(), certificate.weights.tolist()
    counts, most = certificate.counts.tolist(), certificate.max_sequences
    if min(weights, default=0) < 0:
        return None
    rooms = range(certificate.capacity + 1)
    layer = [0] * len(rooms)  # layer[room]: the most that fits into `room`
    if most is None:
        for room in rooms:
            layer[room] = max([layer[room - s] + w for s, w in zip(sizes, weights) if s <= room], default=0)
    for _ in range(most or 0):  # with one sequence more in every layer
        layer = [
            max([layer[room], *(layer[room - s] + w for s, w in zip(sizes, weights) if s <= room)]) for room in rooms
        ]
    if layer[-1] > certificate.pack_weight:
        return None
    total = sum(weight * count for weight, count in zip(weights, counts))
    return certificate.own_packs - (-total // certificate.pack_weight)
