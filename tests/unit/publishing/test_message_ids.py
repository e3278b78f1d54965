from __future__ import annotations

import multiprocessing
import re

import pytest

from broker_client.publishing.message_ids import new_message_id


def test_ids_are_32_hexadecimal_digits_and_differ() -> None:
    ids = [new_message_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(re.fullmatch(r"[0-9a-f]{32}", each) for each in ids)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_has_other_ids_than_its_parent() -> None:
    new_message_id()  # from now on there are some ahead
    with multiprocessing.get_context("fork").Pool(1) as pool:
        of_child = pool.apply(_some_ids)
    assert not set(of_child) & set(_some_ids())


def _some_ids() -> list[str]:
    return [new_message_id() for _ in range(300)]
