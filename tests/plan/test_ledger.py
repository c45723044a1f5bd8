"""The ledger refuses counts that do not balance, and adds up."""

import pytest

from hf_packing.errors import PackingError
from hf_packing.plan import TokenLedger, plan_packs


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"tokens_in": 3, "tokens_packed": 2, "slots": 2}, r"tokens_in == .* is off by 1"),
        ({"slots": 5, "tokens_padding": 4}, r"slots == .* is off by 1"),
        ({"sequences_in": 2, "sequences_packed": 3}, r"sequences_in == .* is off by -1"),
    ],
)
def test_a_ledger_that_does_not_balance_is_refused(counts, message):
    with pytest.raises(PackingError, match=message):
        TokenLedger(**counts)


def test_ledgers_of_shards_add_up():
    lengths = [5, 12, 0, 7, 3, 30]
    parts = [plan_packs(lengths[a:b], 10, overflow="truncate").ledger for a, b in ((0, 3), (3, 6))]
    total = parts[0] + parts[1]
    assert total.tokens_in == sum(lengths) and total.sequences_truncated == 2 and total.sequences_empty == 1
    assert total.to_dict()["tokens_truncated"] == total.tokens_lost == 22
    assert TokenLedger() + total == total
    assert TokenLedger().fill == 1.0
