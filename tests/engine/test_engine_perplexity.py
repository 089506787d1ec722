"""Perplexity by hand: how texts are cut, which tokens count, and what becomes of their log-probabilities."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tokentrail.engine.batch import Batch, SampledRows
from tokentrail.engine.perplexity import Window, logprobs, measure, perplexity, windows
from tokentrail.protocol import InvalidRequest


def cut(*arguments, **keywords) -> list[tuple[list[int], int]]:
    return [(window.ids, window.first) for window in windows(*arguments, **keywords)]


def test_windows_are_whole_and_begin_as_the_model_wants() -> None:
    assert cut(list(range(10)), 4) == [([0, 1, 2, 3], 3), ([4, 5, 6, 7], 3)]
    assert cut(list(range(8)), 4, bos=9) == [([9, 1, 2, 3], 3), ([9, 5, 6, 7], 3)]


def test_windows_a_stride_apart_count_every_later_token_once() -> None:
    got = windows(list(range(11)), 4, 2)
    assert [window.ids[0] for window in got] == [0, 2, 4, 6]
    counted = [id for window in got for id in window.ids[window.first :]]
    assert counted == list(range(2, 10))


@pytest.mark.parametrize(
    ("count", "context", "stride", "named"),
    [(3, 4, None, "--ctx-size"), (9, 2, None, "--ctx-size"), (9, 4, 4, "--stride"), (9, 4, 0, "--stride")],
)
def test_numbers_that_make_no_sense(count: int, context: int, stride: int | None, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        windows(list(range(count)), context, stride)


class Fixed:
    """Gives each token `id` the log-probability -id / 8, and takes steps of few tokens and fewer logit rows."""

    max_logit_rows = 2

    def __init__(self, tokens: int = 3, room: int = 64) -> None:
        self.info = SimpleNamespace(
            max_model_len=room, num_blocks=4, block_size=16, max_num_batched_tokens=tokens
        )
        self.computed: list[int] = []

    def execute(self, batch: Batch) -> SampledRows:
        assert 1 <= len(batch.tokens) <= self.info.max_num_batched_tokens
        assert len(batch.logit_rows) <= self.max_logit_rows
        assert batch.positions.tolist() == list(
            range(batch.positions[0], batch.positions[0] + len(batch.tokens))
        )
        self.computed += batch.tokens.tolist()
        targets = batch.sampling.target
        return SampledRows(tokens=targets, logprobs=(-targets / 8).astype(np.float32))


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("first", [1, 4, 9, 10])
def test_the_tokens_that_count_are_reported_in_order(tokens: int, first: int) -> None:
    ids = [5, 3, 8, 1, 7, 7, 2, 9, 4, 6, 0]
    runner = Fixed(tokens)
    got = np.concatenate(list(logprobs(runner, Window(ids, first))))
    assert got.tolist() == [-id / 8 for id in ids[first:]]
    assert runner.computed == ids[:-1], "each token once; nothing is predicted from the last"


def test_perplexity_by_hand() -> None:
    result = perplexity(np.log([2.0, 8.0]))
    assert result.tokens == 2
    np.testing.assert_allclose(result.value, 4)
    np.testing.assert_allclose(result.nll, np.log(4))
    np.testing.assert_allclose(result.error, 4 * np.log(4) / 2**0.5 / 2**0.5)
    told = []
    whole = measure(Fixed(), windows([0, 1, 2, 8, 0, 1, 2, 16], 4), told.append)
    np.testing.assert_allclose(whole.nll, 1.5)
    assert [one.tokens for one in told] == [1, 2]
    assert told[-1] == whole


def test_a_window_longer_than_the_context_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--ctx-size"):
        list(logprobs(Fixed(room=8), Window(list(range(9)), 5)))
