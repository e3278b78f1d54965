from broker_client.transport.confirms import ConfirmLedger


def a_ledger(*items: str, first: int = 1) -> ConfirmLedger[str]:
    ledger: ConfirmLedger[str] = ConfirmLedger()
    ledger.add(first, items)
    return ledger


def test_items_leave_in_order_and_once() -> None:
    ledger = a_ledger("a", "b", "c", "d")
    assert ledger.settle(2, 3) == ["b", "c"]
    assert ledger.settle(1, 4) == ["a", "d"]
    assert ledger.settle(1, 4) == []


def test_single_confirms_come_in_any_order() -> None:
    ledger = a_ledger("a", "b", "c", first=7)
    assert [ledger.settle(seq, seq) for seq in (9, 7, 8, 10)] == [["c"], ["a"], ["b"], []]


def test_range_passes_over_what_was_confirmed_before() -> None:
    ledger = a_ledger("a", "b", "c", "d")
    assert ledger.settle(2, 2) == ["b"]
    assert ledger.settle(1, 3) == ["a", "c"]
    assert ledger.take_all() == ["d"]


def test_range_far_beyond_what_was_sent_costs_no_more_than_what_is_here() -> None:
    ledger = a_ledger("a", "b")
    assert ledger.settle(1, 2**64 - 1) == ["a", "b"]
    assert len(ledger) == 0


def test_take_all_keeps_the_order_of_sending() -> None:
    ledger = a_ledger("a", "b")
    ledger.add(3, ["c"])
    assert (list(ledger), ledger.take_all(), len(ledger)) == (["a", "b", "c"], ["a", "b", "c"], 0)
