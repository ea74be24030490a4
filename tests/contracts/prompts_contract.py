"""The contract of `PromptSource`: map-style, pure, bounded, identified by its content."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.errors import DataFailure
from outlast.ports import PromptItem, PromptSource


def check_prompts(make: Callable[[], PromptSource]) -> None:
    """Run the contract on two instances of the same source: `make` is called twice."""
    source, again = make(), make()
    size = len(source)
    assert size >= 1 and len(again) == size
    assert source.digest == again.digest and source.digest, "equal content has an equal digest"
    backwards = [item_or_failure(source, i) for i in reversed(range(size))][::-1]
    forwards = [item_or_failure(again, i) for i in range(size)]
    assert backwards == forwards, "item(i) depends on the order of calls"
    for found in forwards:
        if isinstance(found, PromptItem):
            assert (found.text is None) != (not found.messages), "one of text and messages"
            assert all(set(message) == {"role", "content"} for message in found.messages)
    for outside in (-1, size):
        with pytest.raises(IndexError):
            source.item(outside)


def item_or_failure(source: PromptSource, index: int) -> PromptItem | str:
    """An item, or the message of its DataFailure; nothing else may be raised."""
    try:
        return source.item(index)
    except DataFailure as failure:
        return str(failure)
