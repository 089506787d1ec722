"""The sampler against its definition (`ops.reference.sample_row`), its draws against probabilities, its random numbers
against the published ones."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_harness import F32, ISAS, Harness, bits, feed, native

from tokentrail.ops.backend import Executable
from tokentrail.ops.reference import sample_row
from tokentrail.ops.reference.sampling import adjusted_logits, candidates, philox, philox_uniform

Rows = dict[str, npt.NDArray[Any] | None]
Sampled = tuple[npt.NDArray[np.int32], F32, npt.NDArray[np.int32], F32]


@cache
def sampler(isa: str, vocab: int, threads: int = 1) -> Executable:
    """A program whose only use is its sampler."""
    table = np.zeros((vocab, 1), np.float32)
    return Harness(lambda backend, ops: feed(backend, ops, table), vocab).compile(native(isa, threads))


def plain_rows(count: int, **changes: Any) -> Rows:
    """Unrestricted sampling at temperature 1; `changes` replace a value for all rows, or an array."""
    defaults: dict[str, tuple[Any, type]] = {
        "temperature": (1.0, np.float32),
        "top_p": (1.0, np.float32),
        "min_p": (0.0, np.float32),
        "top_k": (0, np.int32),
        "seed": (0, np.uint64),
        "choice": (0, np.int32),
        "position": (0, np.int32),
        "num_top": (0, np.int32),
        "target": (-1, np.int32),
    }
    rows: Rows = {}
    for name, (value, dtype) in defaults.items():
        rows[name] = np.array(np.broadcast_to(changes.pop(name, value), count)).astype(dtype)
    return {**rows, **changes}


def sample(isa: str, logits: F32, rows: Rows, *, top_width: int = 0, threads: int = 1) -> Sampled:
    """Logits [rows, vocab] stay as they are; the native sampler gets a copy to write over."""
    tokens, logprobs, ids, top = sampler(isa, logits.shape[1], threads).sample(
        logits.copy(), top_width, **rows
    )
    return tokens.copy(), logprobs.copy(), ids.copy(), top.copy()


def ragged(parts: list[Any], dtype: type) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int32)
    return np.array([x for part in parts for x in part], dtype), offsets


def random_rows(random: np.random.Generator, count: int, vocab: int) -> tuple[Rows, int]:
    """Rows with any mixture of parameters, and the width of alternatives they need."""

    def pick(*values: float) -> npt.NDArray[Any]:
        return random.choice(values, count)

    num_top = pick(0, 0, 1, 5, 20)
    rows = plain_rows(
        count,
        temperature=pick(0, 0.1, 0.7, 1.0, 2.0),
        top_p=pick(1.0, 1.0, 0.95, 0.5, 0.05),
        min_p=pick(0.0, 0.0, 0.05, 0.5, 1.0),
        top_k=pick(0, 0, 1, 2, 40, vocab - 1, vocab, vocab + 1),
        seed=random.integers(0, 2**64, count, dtype=np.uint64),
        choice=random.integers(0, 128, count),
        position=random.integers(0, 2**31, count),
        num_top=num_top,
        target=np.where(random.random(count) < 0.15, random.integers(0, vocab, count), -1),
    )
    if random.random() < 0.3:
        rows["typical_p"] = pick(1.0, 0.95, 0.5, 0.05).astype(np.float32)
    if random.random() < 0.6:
        rows["frequency_penalty"] = pick(-2, 0, 0.3, 2).astype(np.float32)
        rows["presence_penalty"] = pick(-2, 0, 0.3, 2).astype(np.float32)
        rows["repetition_penalty"] = pick(0.5, 1, 1.1, 3).astype(np.float32)
        for name in ("prompt", "output"):
            parts = [random.integers(0, vocab, random.integers(0, 30)) for _ in range(count)]
            rows[f"{name}_tokens"], rows[f"{name}_offsets"] = ragged(parts, np.int32)
    if random.random() < 0.5:
        tokens = [random.integers(0, vocab, random.integers(0, 12)) for _ in range(count)]
        values = [random.choice([-np.inf, -100, -1.5, 0.5, 3, 100], len(part)) for part in tokens]
        rows["bias_tokens"], rows["bias_offsets"] = ragged(tokens, np.int32)
        rows["bias_values"], _ = ragged(values, np.float32)
    if random.random() < 0.5:
        share = random.choice([0.0, 0.02, 0.5, 1.0], (4, 1))
        rows["masks"] = mask_words(random.random((4, vocab)) < share)
        rows["mask_rows"] = random.integers(-1, 4, count).astype(np.int32)
    return rows, int(num_top.max())


def mask_words(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Booleans [masks, vocab] as words of 32 bits. Bits beyond the vocabulary are set: nothing may read them."""
    padded = np.ones((len(allowed), -(-allowed.shape[1] // 32) * 32), np.bool_)
    padded[:, : allowed.shape[1]] = allowed
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def acceptable(logits: F32, i: int, rows: Rows) -> set[int]:
    """Tokens that float32's roundings may lead to: the definition's own, and those an ulp or so away from a border."""

    def of(name: str) -> Any:
        array = rows[name]
        assert array is not None
        return array[i]

    x = adjusted_logits(logits[i].astype(np.float64), i, rows)
    near = 4e-6 * max(1.0, float(np.abs(x[np.isfinite(x)]).max(initial=0.0)))
    if of("temperature") == 0 or x.max() == -np.inf:
        return set(np.flatnonzero(x >= x.max() - near).tolist())
    found = set()
    temperature = float(of("temperature"))
    u = philox_uniform(int(of("seed")), int(of("choice")), int(of("position")))
    slack = 1e-5 + near / temperature
    typical = float(of("typical_p")) if "typical_p" in rows else 1.0
    for min_p in {float(of("min_p")) * (1 + d * slack) for d in (-1, 0, 1)}:
        for top_p in {min(float(of("top_p")) * (1 + d * slack), 1.0) for d in (-1, 0, 1)}:
            for typical_p in {min(typical * (1 + d * slack), 1.0) for d in (-1, 0, 1)}:
                ids, weights = candidates(x, temperature, min(min_p, 1.0), int(of("top_k")), top_p, typical_p)
                sums = np.cumsum(weights)
                for shifted in (u - slack, u, u + slack):
                    at = int(np.searchsorted(sums, min(max(shifted, 0.0), 1.0) * sums[-1], side="right"))
                    found.add(int(ids[min(at, len(ids) - 1)]))
    return found


VOCABS = [1, 2, 15, 16, 17, 100, 255, 256, 257, 1000, 4099]


@settings(max_examples=120, deadline=None)
@given(
    vocab=st.sampled_from(VOCABS),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.3, 3.0, 20.0]),
    ties=st.booleans(),
)
def test_every_parameter(*, vocab: int, seed: int, spread: float, ties: bool) -> None:
    random = np.random.default_rng(seed)
    count = 12
    logits = (random.standard_normal((count, vocab)) * spread).astype(np.float32)
    if ties:
        logits = np.round(logits)
    rows, width = random_rows(random, count, vocab)
    expected = [sample_row(logits[i], i, width, rows) for i in range(count)]
    for isa in ISAS:
        tokens, logprobs, top_ids, top_logprobs = sample(isa, logits, rows, top_width=width, threads=2)
        for i, (token, _, best, best_logprobs) in enumerate(expected):
            what = f"{isa} vocab {vocab} seed {seed} row {i}"
            got = int(tokens[i])
            assert got == token or got in acceptable(logits, i, rows), what
            raw = logits[i].astype(np.float64)
            exact = raw - (raw.max() + math.log(np.exp(raw - raw.max()).sum()))
            assert abs(logprobs[i] - exact[got]) < 2e-6 * max(1.0, abs(exact[got])), what
            assert top_ids[i].tolist() == best, what
            np.testing.assert_allclose(top_logprobs[i], best_logprobs, rtol=2e-6, atol=2e-6, err_msg=what)


def test_the_definition_is_met_to_the_letter_nearly_always() -> None:
    """`acceptable` must not hide a wrong rule: over many rows, all but a few tokens are the definition's own."""
    random = np.random.default_rng(20)
    total = wrong = 0
    for _ in range(60):
        vocab = int(random.choice([100, 1000]))
        logits = (random.standard_normal((16, vocab)) * 3).astype(np.float32)
        rows, width = random_rows(random, 16, vocab)
        expected = [sample_row(logits[i], i, width, rows)[0] for i in range(16)]
        for isa in ISAS:
            tokens = sample(isa, logits, rows, top_width=width)[0]
            total += 16
            wrong += int((tokens != expected).sum())
    assert wrong <= total // 500, f"{wrong} of {total} tokens differ from the definition"


# --- random numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    """The three vectors of Random123's `kat_vectors` for philox4x32, 10 rounds."""
    assert philox(counter, key) == expected


def test_the_first_known_answer_is_the_first_draw() -> None:
    assert philox_uniform(0, 0, 0) == (0x6627E8D5 << 32 | 0xE169C58D) / 2**64 // 2**-53 * 2**-53


@pytest.mark.parametrize("isa", ISAS)
def test_draws_use_the_keyed_counter(isa: str) -> None:
    """Among 2^16 equal tokens the drawn id is the number's first 16 bits: so they can be read off, exactly."""
    vocab, count = 2**16, 64
    random = np.random.default_rng(1)
    seeds = random.integers(0, 2**64, count, dtype=np.uint64)
    seeds[:3] = [0, 2**64 - 1, 2**63]
    choices = random.integers(-(2**31), 2**31, count)
    positions = random.integers(-(2**31), 2**31, count)
    choices[0] = positions[0] = 0
    rows = plain_rows(count, seed=seeds, choice=choices, position=positions)
    got = sample(isa, np.zeros((count, vocab), np.float32), rows)[0]
    expected = [
        int(philox_uniform(int(s), int(c), int(p)) * vocab)
        for s, c, p in zip(seeds, choices, positions, strict=True)
    ]
    assert got.tolist() == expected


def chi_square_limit(freedom: int, sigmas: float = 4.0) -> float:
    """What a chi-square variable exceeds once in 30,000 times (Wilson and Hilferty 1931)."""
    return float(freedom * (1 - 2 / (9 * freedom) + sigmas * math.sqrt(2 / (9 * freedom))) ** 3)


def assert_drawn_from(tokens: npt.NDArray[np.int32], probabilities: npt.NDArray[np.float64]) -> None:
    counts = np.bincount(tokens, minlength=len(probabilities)).astype(np.float64)
    assert counts[probabilities == 0].sum() == 0, "a token was drawn that may not be"
    expected = probabilities * len(tokens)
    rare = expected < 8
    if rare.any():  # cells too small for the test are taken together
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    statistic = (np.square(counts - expected)[keep] / expected[keep]).sum()
    assert statistic < chi_square_limit(int(keep.sum()) - 1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"temperature": 0.5},
        {"top_p": 0.8},
        {"top_k": 7},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("key", ["seed", "position", "choice"])
def test_draws_follow_the_probabilities(isa: str, parameters: dict[str, Any], key: str) -> None:
    """20,000 draws that differ in one part of the key alone."""
    vocab, count = 300, 20_000
    logits = (np.random.default_rng(3).standard_normal(vocab) * 1.5).astype(np.float32)
    rows = plain_rows(count, **{"seed": 11, "position": 5, key: np.arange(count)}, **parameters)
    tokens = sample(isa, np.tile(logits, (count, 1)), rows)[0]
    temperature = parameters.get("temperature", 1.0)
    p = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    order = np.argsort(-p, kind="stable")
    order = order[p[order] >= parameters.get("min_p", 0.0)]
    order = order[: parameters.get("top_k", vocab)]
    cumulative = np.cumsum(p[order])
    order = order[: int(np.searchsorted(cumulative, parameters.get("top_p", 1.0) * cumulative[-1])) + 1]
    allowed = np.zeros(vocab)
    allowed[order] = p[order]
    assert_drawn_from(tokens, allowed / allowed.sum())


# --- the rules, one by one, without the reference --------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
class TestRules:
    def token(self, isa: str, logits: list[float], **changes: Any) -> int:
        return int(sample(isa, np.array([logits], np.float32), plain_rows(1, **changes))[0][0])

    def drawn(self, isa: str, logits: list[float], **changes: Any) -> set[int]:
        """Which tokens 300 seeds draw."""
        rows = plain_rows(300, seed=np.arange(300), **changes)
        return set(sample(isa, np.tile(np.array(logits, np.float32), (300, 1)), rows)[0].tolist())

    def test_greedy_ties_go_to_the_lower_id(self, isa: str) -> None:
        assert self.token(isa, [1.0, 5.0, 5.0, 2.0], temperature=0) == 1
        assert self.token(isa, [0.0] * 40 + [3.0] * 40, temperature=0) == 40

    def test_top_k_ties_go_to_the_lower_id(self, isa: str) -> None:
        assert self.drawn(isa, [0.0, 1.0, 1.0, 1.0], top_k=2) == {1, 2}

    def test_top_p_ties_go_to_the_lower_id(self, isa: str) -> None:
        assert self.drawn(isa, [1.0, 1.0, 1.0, 1.0], top_p=0.5) == {0, 1}

    def test_top_p_keeps_the_token_that_crosses(self, isa: str) -> None:
        logits = np.log([0.5, 0.3, 0.2]).tolist()
        assert self.drawn(isa, logits, top_p=0.4) == {0}
        assert self.drawn(isa, logits, top_p=0.6) == {0, 1}
        assert self.drawn(isa, logits, top_p=0.9) == {0, 1, 2}

    def test_min_p_is_relative_to_the_best(self, isa: str) -> None:
        logits = np.log([0.5, 0.3, 0.2]).tolist()
        assert self.drawn(isa, logits, min_p=0.5) == {0, 1}
        assert self.drawn(isa, logits, min_p=1.0) == {0}

    def test_temperature_comes_before_min_p(self, isa: str) -> None:
        logits = np.log([0.5, 0.3, 0.2]).tolist()
        assert self.drawn(isa, logits, min_p=0.5, temperature=2.0) == {0, 1, 2}

    def test_typical_p_keeps_what_surprises_as_much_as_the_mean(self, isa: str) -> None:
        # Entropy 1.28: surprises of 0.92, 1.20, 1.61 and 2.30 are 0.36, 0.08, 0.33 and 1.02 away from it.
        logits = np.log([0.1, 0.4, 0.2, 0.3]).tolist()

        def kept(typical_p: float, **changes: Any) -> set[int]:
            rows = {"typical_p": np.full(300, typical_p, np.float32), **changes}
            return self.drawn(isa, logits, **rows)

        assert [kept(p) for p in (0.01, 0.29, 0.31, 0.49, 0.51, 0.89, 0.91, 1.0)] == [
            {3}, {3}, {2, 3}, {2, 3}, {1, 2, 3}, {1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3},
        ]  # fmt: skip
        # Behind the others: of 0.4 and 0.3 alone, the mean is 0.68, and 0.56 nearer to it than 0.85.
        assert kept(0.5, top_k=2) == {1}
        assert kept(0.6, top_k=2) == {1, 3}
        assert kept(0.9, min_p=1.0) == {1}

    def test_typical_p_ties_go_to_the_lower_id(self, isa: str) -> None:
        typical_p = np.full(300, 0.5, np.float32)
        assert self.drawn(isa, [1.0] * 4, typical_p=typical_p) == {0, 1}
        rows = {"typical_p": np.full(300, 0.3, np.float32), "top_k": 3}
        assert self.drawn(isa, [1.0] * 40, **rows) == {0}

    def test_a_banned_token_is_never_drawn(self, isa: str) -> None:
        bias = {
            "bias_tokens": np.array([1], np.int32),
            "bias_values": np.array([-np.inf], np.float32),
            "bias_offsets": np.array([0, 1], np.int32),
        }
        assert self.token(isa, [1.0, 9.0, 2.0], temperature=0, **bias) == 2
        seeds = 200
        bias = {
            "bias_tokens": np.ones(seeds, np.int32),
            "bias_values": np.full(seeds, -np.inf, np.float32),
            "bias_offsets": np.arange(seeds + 1, dtype=np.int32),
        }
        rows = plain_rows(seeds, seed=np.arange(seeds), **bias)
        logits = np.tile(np.array([1.0, 9.0, 1.0], np.float32), (seeds, 1))
        assert set(sample(isa, logits, rows)[0].tolist()) == {0, 2}

    def test_only_what_the_mask_allows_is_drawn(self, isa: str) -> None:
        vocab, seeds = 77, 400
        random = np.random.default_rng(3)
        allowed = np.zeros((2, vocab), np.bool_)
        allowed[0, [3, 31, 32, 76]] = True
        allowed[1, 64] = True
        logits = np.tile(random.standard_normal(vocab).astype(np.float32) * 3, (seeds, 1))
        masked = {
            "masks": mask_words(allowed),
            "mask_rows": np.arange(seeds, dtype=np.int32) % 3 - 1,
        }
        rows = plain_rows(seeds, seed=np.arange(seeds), temperature=2.0, **masked)
        tokens, logprobs, _, _ = sample(isa, logits, rows)
        assert set(tokens[1::3].tolist()) == {3, 31, 32, 76}
        assert set(tokens[2::3].tolist()) == {64}
        assert len(set(tokens[0::3].tolist())) > 10
        # What is reported is the likelihood before the mask.
        raw = logits[0].astype(np.float64)
        want = raw - np.log(np.exp(raw).sum())
        np.testing.assert_allclose(logprobs, want[tokens], atol=1e-5)

    def test_a_mask_comes_after_biases(self, isa: str) -> None:
        bias = {
            "bias_tokens": np.array([1], np.int32),
            "bias_values": np.array([100], np.float32),
            "bias_offsets": np.array([0, 1], np.int32),
        }
        mask = {"masks": mask_words(np.array([[True, False, True]])), "mask_rows": np.zeros(1, np.int32)}
        assert self.token(isa, [1.0, 9.0, 2.0], temperature=0, **bias, **mask) == 2

    def test_masks_out_of_place_are_refused(self, isa: str) -> None:
        logits = np.zeros((1, 40), np.float32)
        masks = mask_words(np.ones((2, 40), np.bool_))
        for wrong in ({"masks": masks, "mask_rows": 2}, {"masks": masks[:, :1], "mask_rows": 0}):
            rows = plain_rows(1, masks=wrong["masks"], mask_rows=np.full(1, wrong["mask_rows"], np.int32))
            with pytest.raises(ValueError, match="mask"):
                sample(isa, logits, rows)

    def penalties(self, **changes: float) -> Rows:
        """Prompt [0], output [1, 1]."""
        arrays = {
            f"{name}_penalty": np.array([changes.get(name, neutral)], np.float32)
            for name, neutral in (("frequency", 0), ("presence", 0), ("repetition", 1))
        }
        prompt, output = np.array([0], np.int32), np.array([1, 1], np.int32)
        return {
            **arrays,
            "prompt_tokens": prompt,
            "prompt_offsets": np.array([0, 1], np.int32),
            "output_tokens": output,
            "output_offsets": np.array([0, 2], np.int32),
        }

    def test_penalties(self, isa: str) -> None:
        """Frequency counts, presence does not, and both look at the output alone; repetition looks at both."""
        logits = [2.1, 3.0, 2.0]
        for penalties, expected in [
            ({}, 1),
            ({"frequency": 0.4}, 1),
            ({"frequency": 0.5}, 0),
            ({"presence": 0.8}, 1),
            ({"presence": 1.0}, 0),
            ({"repetition": 1.01}, 1),
            ({"repetition": 2.0}, 2),
        ]:
            got = self.token(isa, logits, temperature=0, **self.penalties(**penalties))
            assert got == expected, penalties

    def test_repetition_makes_negative_logits_more_negative(self, isa: str) -> None:
        assert self.token(isa, [-1.0, -1.0, -1.5], temperature=0, **self.penalties(repetition=2.0)) == 2

    def test_log_probabilities_are_those_before_everything(self, isa: str) -> None:
        logits = np.array([[0.0, 1.0, 3.0]], np.float32)
        bias = {
            "bias_tokens": np.array([0, 0], np.int32),
            "bias_values": np.array([50, 50], np.float32),
            "bias_offsets": np.array([0, 2], np.int32),
        }
        rows = plain_rows(1, temperature=0, num_top=3, **self.penalties(frequency=1.0), **bias)
        token, logprob, ids, logprobs = sample(isa, logits, rows, top_width=4)
        exact = logits[0] - math.log(sum(math.exp(x) for x in (0, 1, 3)))
        assert token.tolist() == [0]
        np.testing.assert_allclose(logprob, [exact[0]], rtol=1e-6)
        assert ids.tolist() == [[2, 1, 0, -1]]
        np.testing.assert_allclose(logprobs[0, :3], exact[[2, 1, 0]], rtol=1e-6)

    def test_a_target_is_reported_and_not_drawn(self, isa: str) -> None:
        logits = np.array([[0.0, 1.0, 3.0]], np.float32)
        token, logprob, _, _ = sample(isa, logits, plain_rows(1, target=0, **self.penalties(presence=2.0)))
        assert token.tolist() == [0]
        assert abs(logprob[0] + math.log(sum(math.exp(x) for x in (0, 1, 3)))) < 1e-6

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_logits_that_are_not_numbers_still_give_a_token(self, isa: str, value: float) -> None:
        for temperature in (0.0, 1.0):
            for filters in ({}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}):
                logits = np.full((1, 33), value, np.float32)
                rows = plain_rows(1, temperature=temperature, num_top=2, **filters)
                token, _, _, _ = sample(isa, logits, rows, top_width=2)
                assert 0 <= token[0] < 33


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_the_others(isa: str) -> None:
    """The same bytes alone, in any batch, in any place, on any number of threads."""
    random = np.random.default_rng(8)
    vocab, count = 777, 24
    logits = (random.standard_normal((count, vocab)) * 3).astype(np.float32)
    while True:
        rows, width = random_rows(random, count, vocab)
        if {"output_tokens", "bias_tokens", "masks"} <= rows.keys():
            break
    tokens, logprobs, top_ids, top_logprobs = sample(isa, logits, rows, top_width=width)

    def chosen(order: npt.NDArray[np.intp]) -> Rows:
        picked: Rows = {}
        for name, array in rows.items():
            assert array is not None
            if name.endswith("_offsets"):
                stem = name.removesuffix("_offsets")
                for part in ("tokens", "values") if stem == "bias" else ("tokens",):
                    flat = rows[f"{stem}_{part}"]
                    assert flat is not None
                    parts = [flat[array[i] : array[i + 1]] for i in order]
                    picked[f"{stem}_{part}"], picked[name] = ragged(parts, flat.dtype.type)
            elif name == "masks":
                picked[name] = array
            elif not name.endswith(("_tokens", "_values")):
                picked[name] = array[order]
        return picked

    for threads in (1, 2, 4):
        for order in ([i] for i in range(0, count, 5)), (random.permutation(count) for _ in range(3)):
            for some in order:
                index = np.array(some, np.intp)
                got = sample(isa, logits[index], chosen(index), top_width=width, threads=threads)
                assert got[0].tolist() == tokens[index].tolist()
                np.testing.assert_array_equal(bits(got[1]), bits(logprobs[index]))
                assert got[2].tolist() == top_ids[index].tolist()
                np.testing.assert_array_equal(bits(got[3]), bits(top_logprobs[index]))


def test_no_rows() -> None:
    for isa in ISAS:
        tokens, logprobs, ids, _ = sample(isa, np.zeros((0, 40), np.float32), plain_rows(0), top_width=3)
        assert (tokens.shape, logprobs.shape, ids.shape) == ((0,), (0,), (0, 3))
