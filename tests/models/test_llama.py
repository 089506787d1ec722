"""The Llama family against transformers, feature by feature: in float32, to a relative 1e-4.

The golden logits come from `scripts/make_golden.py`; tests marked `oracle` ask transformers itself, about more models.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from llama_cases import CASES, Case, in_gguf_order, with_rope_factors

from random_models import F32, checkpoint_of, random_checkpoint, random_weights, small_config
from tokentrail.checkpoints import Checkpoint, RopeConfig, dequantize
from tokentrail.models import load_model
from tokentrail.ops.backend import Backend, KvLayout, Limits
from tokentrail.ops.native import NativeBackend, available_isas
from tokentrail.ops.reference import ReferenceBackend
from tokentrail.protocol import ModelFileError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "llama.npz"
ISAS = available_isas()


@pytest.fixture(scope="module")
def golden() -> dict[str, F32]:
    with np.load(GOLDEN) as file:
        return dict(file)


@pytest.fixture(scope="module", params=ISAS)
def backend(request: pytest.FixtureRequest) -> NativeBackend:
    return NativeBackend(2, request.param)


def logits_of(
    checkpoint: Checkpoint, tokens: list[int], backend: Backend, *, activations: str = "float32"
) -> F32:
    """[tokens, vocab]: the prompt in two chunks, the last token decoded, in blocks of 16."""
    config = checkpoint.config
    model = load_model(checkpoint, backend, activation_dtype=activations)
    blocks = len(tokens) // 16 + 1
    kv = KvLayout("float32", config.num_layers, blocks, 16, config.num_kv_heads, config.head_dim)
    executable = backend.compile(model.program, kv, Limits(64, 4, 64), config.vocab_size)
    table = np.arange(blocks, dtype=np.int32)[::-1].copy()[None]
    out = []
    cuts = [0, len(tokens) // 3, len(tokens) - 1, len(tokens)]
    for start, end in pairwise(cuts):
        positions = np.arange(start, end, dtype=np.int32)
        rows = np.array([0, end - start], np.int32)
        ids = np.array(tokens[start:end], np.int32)
        out.append(executable.forward(ids, positions, rows, table, positions - start).copy())
    return np.concatenate(out)


def assert_relative(got: F32, expected: F32, limit: float = 1e-4) -> None:
    error = float(np.abs(got - expected).max() / np.abs(expected).max())
    assert error < limit, f"relative error {error:.2g}"


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, golden: dict[str, F32], backend: NativeBackend) -> None:
    case = CASES[name]
    assert_relative(logits_of(case.checkpoint(), case.tokens(), backend), golden[name])


@pytest.mark.parametrize("name", CASES)
def test_the_reference_agrees_too(name: str, golden: dict[str, F32]) -> None:
    """So it may judge the kernels: not by them, but by transformers."""
    case = CASES[name]
    assert_relative(
        logits_of(case.checkpoint(), case.tokens(), ReferenceBackend(dequantize)), golden[name], 1e-5
    )


def test_golden_files_have_all_cases(golden: dict[str, F32]) -> None:
    assert set(golden) == set(CASES)


def test_cases_differ_where_their_feature_matters(golden: dict[str, F32]) -> None:
    """A scaling or a window that changed nothing would test nothing: drop each, and the logits must move."""
    backend = NativeBackend(1)
    for name, config in {
        "sliding_window": replace(CASES["sliding_window"].config, sliding_window=None),
        "linear_rope": small_config(),
        "llama3_rope": small_config(),
        "yarn_rope": small_config(),
    }.items():
        without = replace(CASES[name], config=config)
        got = logits_of(without.checkpoint(), without.tokens(), backend)
        assert np.abs(got - golden[name]).max() > 1e-2 * np.abs(golden[name]).max(), name
    yarn = CASES["yarn_rope"].config
    for change in ({"attention_factor": 1.0}, {"beta_fast": 32.0}, {"original_max_position": 32}):
        other = replace(CASES["yarn_rope"], config=replace(yarn, rope=replace(yarn.rope, **change)))
        got = logits_of(other.checkpoint(), other.tokens(), backend)
        assert np.abs(got - golden["yarn_rope"]).max() > 2e-3 * np.abs(golden["yarn_rope"]).max(), change


@pytest.mark.parametrize("name", ["grouped_queries", "biases", "wide_heads", "yarn_rope"])
def test_pairs_stored_as_neighbours(name: str, golden: dict[str, F32], backend: NativeBackend) -> None:
    """GGUF's order of q and k, with `rope.interleaved`, is the same model."""
    case = CASES[name]
    assert_relative(logits_of(in_gguf_order(case), case.tokens(), backend), golden[name])


def test_llama3_scaling_as_a_tensor_of_factors(golden: dict[str, F32], backend: NativeBackend) -> None:
    case = CASES["llama3_rope"]
    assert_relative(logits_of(with_rope_factors(case), case.tokens(), backend), golden["llama3_rope"])


def test_integer_activations_are_close(golden: dict[str, F32], backend: NativeBackend) -> None:
    """int8 groups before quantized weights, the default: not exact, but the same model."""
    case = CASES["stored_formats"]
    got = logits_of(case.checkpoint(), case.tokens(), backend, activations="auto")
    expected = golden["stored_formats"]
    error = float(np.abs(got - expected).mean() / expected.std())
    assert 1e-4 < error < 3e-2


# --- the loader ------------------------------------------------------------------------------------


def test_every_tensor_is_counted_and_progress_ends_at_all() -> None:
    checkpoint = random_checkpoint(format=lambda name: "Q4_1" if name != "embed" else "Q8_0")
    seen: list[tuple[int, int]] = []
    backend = NativeBackend(1)
    model = load_model(checkpoint, backend, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (checkpoint.nbytes, checkpoint.nbytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert model.num_parameters == sum(int(np.prod(t.shape)) for t in checkpoint.tensors.values())
    vectors = sum(4 * t.shape[0] for t in checkpoint.tensors.values() if len(t.shape) == 1)
    assert model.weight_bytes == backend.weight_bytes + vectors


def test_the_file_s_memory_is_let_go_tensor_by_tensor() -> None:
    checkpoint = random_checkpoint(format="Q8_0")
    released: list[str] = []
    tensors = {n: replace(t, release=partial(released.append, n)) for n, t in checkpoint.tensors.items()}
    load_model(replace(checkpoint, tensors=tensors), NativeBackend(1))
    assert sorted(released) == sorted(tensors)


@pytest.mark.parametrize("format", ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16", "F32"])
def test_packed_weights_take_little_more_than_the_file(format: str) -> None:
    checkpoint = random_checkpoint(small_config(vocab_size=320, hidden_size=128, head_dim=32), format=format)
    assert load_model(checkpoint, NativeBackend(1)).weight_bytes <= 1.1 * checkpoint.nbytes


def test_tied_embeddings_are_packed_once() -> None:
    checkpoint = random_checkpoint(small_config(tie_embeddings=True), format="Q8_0")
    backend = NativeBackend(1)
    load_model(checkpoint, backend)
    matrices = [t for t in checkpoint.tensors.values() if len(t.shape) == 2]
    assert backend.weight_bytes == sum(backend.packed_bytes(t.format, *t.shape) for t in matrices)


@pytest.mark.parametrize("name", ["embed", "norm", "head", "layers.1.q", "layers.0.attn_norm"])
def test_a_missing_tensor_is_named(name: str) -> None:
    checkpoint = random_checkpoint()
    fewer = {n: t for n, t in checkpoint.tensors.items() if n != name}
    with pytest.raises(ModelFileError, match=rf"random\.gguf: .*'{name}'"):
        load_model(replace(checkpoint, tensors=fewer), NativeBackend(1))


@pytest.mark.parametrize("name", ["norm", "layers.1.mlp_norm"])
def test_a_norm_that_is_no_number_is_refused(name: str) -> None:
    checkpoint = random_checkpoint()
    broken = np.full(checkpoint.tensors[name].shape, np.nan, np.float32).view(np.uint8)
    tensors = {**checkpoint.tensors, name: replace(checkpoint.tensors[name], stored=broken)}
    with pytest.raises(ModelFileError, match=rf"random\.gguf: .*'{name}' holds values that are not numbers"):
        load_model(replace(checkpoint, tensors=tensors), NativeBackend(1))


@pytest.mark.parametrize("factor", [0.0, -1.0, np.nan, np.inf])
def test_damaged_rope_factors_are_named(factor: float) -> None:
    weights = random_weights(small_config())
    weights["rope_freqs"] = np.array([1, 1, 1, 1, 1, 1, 1, factor], np.float32)
    with pytest.raises(ModelFileError, match=r"random\.gguf: the rotary factors \(rope_freqs\)"):
        load_model(checkpoint_of(small_config(), weights), NativeBackend(1))


def test_an_unknown_architecture_is_named() -> None:
    checkpoint = random_checkpoint()
    other = replace(checkpoint, config=replace(checkpoint.config, architecture="mamba"))
    with pytest.raises(
        ModelFileError, match=r"random\.gguf: architecture 'mamba' is not supported; known: .*llama"
    ):
        load_model(other, NativeBackend(1))


# --- transformers itself ---------------------------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_golden_files_are_what_transformers_says(name: str, golden: dict[str, F32]) -> None:
    oracle = pytest.importorskip("transformers_oracle", exc_type=ImportError)
    case = CASES[name]
    assert_relative(golden[name], oracle.logits(oracle.load(case.checkpoint()), case.tokens()), 1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(12))
def test_random_configurations(seed: int) -> None:
    """Any mixture of the family's features, asked of transformers on the spot."""
    oracle = pytest.importorskip("transformers_oracle", exc_type=ImportError)
    random = np.random.default_rng(seed)

    def pick(*values: object) -> object:
        return values[random.integers(len(values))]

    kv_heads, head_dim = int(random.integers(1, 4)), int(random.choice([16, 32, 48, 64]))
    heads = kv_heads * int(random.integers(1, 5))
    scaling = str(pick("none", "linear", "llama3", "yarn"))
    factor = float(random.choice([1.5, 2, 8]))
    window = int(random.integers(1, 30)) if random.random() < 0.3 else None
    config = small_config(
        vocab_size=int(random.integers(10, 200)),
        hidden_size=heads * 32 * int(random.integers(1, 3)),  # transformers wants a multiple of the heads
        intermediate_size=int(random.integers(1, 7)) * 32,
        num_layers=int(random.integers(1, 4)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(random.choice([1e-6, 1e-5])),
        tie_embeddings=bool(random.integers(2)),
        sliding_window=window,
        rope=RopeConfig(
            dim=head_dim,
            theta=float(random.choice([1e4, 5e5, 1e6])),
            scaling=scaling,
            factor=factor if scaling != "none" else 1.0,
            original_max_position=int(random.choice([16, 32, 64])) if scaling in ("llama3", "yarn") else 0,
            attention_factor=0.1 * np.log(factor) + 1.0 if scaling == "yarn" else 1.0,
        ),
    )
    # Mistral's class, which the oracle takes for windows, has no biases.
    case = Case(config, biases=bool(random.integers(2)) and window is None, seed=seed)
    expected = oracle.logits(oracle.load(case.checkpoint()), case.tokens())
    assert_relative(logits_of(case.checkpoint(), case.tokens(), NativeBackend(2)), expected)
    assert_relative(logits_of(in_gguf_order(case), case.tokens(), NativeBackend(2)), expected)
