"""Which responses are kept: by number, by bytes, and by who needs them."""

from __future__ import annotations

from typing import Any

import msgspec

from tokentrail.server.responses.store import ResponseStore


def keep(
    store: ResponseStore, id: str, previous: str | None = None, *, text: str = "x", tenant: str = ""
) -> None:
    output: list[Any] = [{"id": f"out_{id}", "text": text}]
    response = {"id": id, "output": output}
    store.keep(tenant, id, response, output, [{"id": f"in_{id}", "text": text}], previous)


def kept(store: ResponseStore, ids: str, tenant: str = "") -> str:
    """Those of `ids` that are there, seen without being used."""
    shelf = store._shelves[tenant]
    return "".join(id for id in ids if shelf.peek(id) is not None)


def test_no_more_than_so_many() -> None:
    store = ResponseStore(3)
    for id in "abcd":
        keep(store, id)
    assert kept(store, "abcd") == "bcd"
    assert store.get("", "b") is not None  # used, it counts as new
    keep(store, "e")
    assert kept(store, "abcde") == "bde"
    assert store.holders("", ["out_c", "in_x"]) == []
    (holder,) = store.holders("", ["in_b", "out_b"])
    assert holder.all_items() == [{"id": "in_b", "text": "x"}, {"id": "out_b", "text": "x"}]


def test_no_more_than_so_many_bytes() -> None:
    store = ResponseStore(100, max_bytes=1000)
    for id in "abc":
        keep(store, id, text="y" * 200)
    assert kept(store, "abc") == "bc"
    keep(store, "d", text="y" * 2000)
    assert kept(store, "abcd") == ""
    keep(store, "e")
    assert kept(store, "abcde") == "e"


def test_a_conversation_loses_its_end_first() -> None:
    store = ResponseStore(3)
    keep(store, "a")
    keep(store, "b", "a")
    keep(store, "x")
    keep(store, "c", "b")
    assert kept(store, "abcx") == "abc"
    chain = store.chain("", "c")
    assert not isinstance(chain, str)
    assert [id for kept in chain for id in kept.ids] == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]
    # There is no room for a longer one, and what it went on from is worth more.
    keep(store, "d", "c")
    assert kept(store, "abcd") == "abc"
    keep(store, "y")
    assert kept(store, "abcy") == "aby"
    assert store.chain("", "c") == "c"


def test_deleted_and_others() -> None:
    store = ResponseStore(10)
    keep(store, "a", tenant="one")
    keep(store, "b", "a", tenant="one")
    assert store.get("two", "a") is None
    assert store.holders("two", ["in_a"]) == []
    assert store.chain("two", "a") == "a"
    assert not store.delete("two", "a")
    assert store.delete("one", "a")
    assert not store.delete("one", "a")
    assert store.chain("one", "b") == "a"
    kept = store.get("one", "b")
    assert kept is not None
    assert msgspec.json.decode(kept.response)["id"] == "b"
