"""`LLM` in a script, on the demo model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tokentrail import LLM, SamplingParams, StructuredOutputsParams
from tokentrail.journey.render import render
from tokentrail.protocol import ContextLengthExceeded, InvalidRequest, ModelFileError

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=512, kv_cache_memory=64 * 2**20) as loaded:
        yield loaded


def test_it_answers_a_conversation(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=30))
    assert "Paris" in output.outputs[0].text
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\n")
    several = llm.chat([messages, messages], SamplingParams(temperature=0, max_tokens=30))
    assert [one.outputs[0].text for one in several] == [output.outputs[0].text] * 2


def test_prompts_in_every_form(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("The capital of France is")
    forms = [
        "The capital of France is",
        {"prompt": "The capital of France is"},
        {"prompt_token_ids": ids},
        ids,
    ]
    outputs = llm.generate(forms, GREEDY)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert all(output.prompt_token_ids == ids for output in outputs)
    assert [output.prompt is None for output in outputs] == [False, False, True, True]
    (alone,) = llm.generate(ids, GREEDY)
    assert alone.outputs[0].token_ids == outputs[0].outputs[0].token_ids


def test_speculation_changes_nothing_that_is_seen(llm: LLM) -> None:
    """Text, stop strings, choices, log-probabilities: tokens come several at a time, and are cut at the same place."""
    prompt = "one, two, three, four, five, six\n" * 4
    sampling = [
        SamplingParams(temperature=0, max_tokens=40, logprobs=2),
        SamplingParams(temperature=0, max_tokens=40, stop=("four, f", "x")),
        SamplingParams(temperature=0, max_tokens=40, stop=("ee, four",), include_stop_str_in_output=True),
        SamplingParams(temperature=0.7, seed=3, n=3, max_tokens=30, stop=("six\none, two",), logprobs=1),
        SamplingParams(temperature=0.4, seed=4, n=2, max_tokens=24, repetition_penalty=1.1, min_tokens=12),
    ]
    with LLM(max_model_len=512, kv_cache_memory=64 * 2**20, speculative_model="ngram") as speculating:
        drafted = 0
        for parameters in sampling:
            (output,) = speculating.generate(prompt, parameters)
            (plain,) = llm.generate(prompt, parameters)
            assert output.outputs == plain.outputs
            journey = speculating.journey(output.request_id)
            assert journey is not None
            assert journey.accepted_tokens <= journey.drafted_tokens
            drafted += journey.accepted_tokens
        assert drafted > 40


def test_answers_of_a_form(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "year": {"type": "integer"}},
        "required": ["city", "year"],
        "additionalProperties": False,
    }
    forms: list[dict[str, Any]] = [{"json": schema}, {"regex": "[a-c]{4}"}, {"choice": ("yes", "no")}]
    parameters = [
        SamplingParams(temperature=0, max_tokens=60, structured_outputs=StructuredOutputsParams(**form))
        for form in forms
    ]
    texts = [output.outputs[0].text for output in llm.generate(["Rome was founded"] * 3, parameters)]
    assert list(json.loads(texts[0])) == ["city", "year"]
    assert re.fullmatch("[a-c]{4}", texts[1])
    assert texts[2] in ("yes", "no")
    with pytest.raises(InvalidRequest, match="unclosed group"):
        llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")))


def test_together_and_alone_are_the_same(llm: LLM) -> None:
    prompts = [f"Number {k} is" for k in range(8)]
    sampling = [
        SamplingParams(temperature=k % 3 * 0.6, seed=k, max_tokens=5 + k, logprobs=2, n=1 + k % 2)
        for k in range(8)
    ]
    together = llm.generate(prompts, sampling)
    for prompt, parameters, output in zip(prompts, sampling, together, strict=True):
        (alone,) = llm.generate(prompt, parameters)
        assert alone.outputs == output.outputs
        assert len(output.outputs) == parameters.n


def test_a_script_repeats_itself_and_seeds_replay(llm: LLM) -> None:
    free = SamplingParams(temperature=1.5, max_tokens=10)
    first, second = llm.generate(["Hello"] * 2, free)
    assert first.outputs[0].text != second.outputs[0].text
    (again,) = llm.generate("Hello", SamplingParams(temperature=1.5, max_tokens=10, seed=second.seed))
    assert again.outputs == second.outputs


def test_stop_strings_end_an_answer_and_free_its_blocks(llm: LLM) -> None:
    (whole,) = llm.generate("1, 2, 3, 4,", SamplingParams(temperature=0, max_tokens=30))
    text = whole.outputs[0].text
    stop = text[8:10]
    (output,) = llm.generate("1, 2, 3, 4,", SamplingParams(temperature=0, max_tokens=30, stop=(stop,)))
    assert output.outputs[0].text == text[: text.index(stop)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    assert llm._engine.stats.blocks_used == 0


def test_it_keeps_journeys(llm: LLM) -> None:
    (output,) = llm.generate("Once upon", GREEDY)
    journey = llm.journey(output.request_id)
    assert journey is not None
    assert journey.outcome == "length"
    assert [token.id for token in journey.sequences[0].tokens] == output.outputs[0].token_ids


def test_mistakes_are_named_before_anything_runs(llm: LLM) -> None:
    steps = llm._engine.stats.steps
    with pytest.raises(InvalidRequest, match="temperature"):
        llm.generate(["fine", "not"], [GREEDY, SamplingParams(temperature=3)])
    with pytest.raises(ContextLengthExceeded):
        llm.generate(["fine", "word " * 600], GREEDY)
    with pytest.raises(ValueError, match="2 prompts, but 1"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(InvalidRequest, match="'prompt'"):
        llm.generate({"text": "x"}, GREEDY)
    assert llm._engine.stats.steps == steps
    with pytest.raises(TypeError, match="no argument 'max_len'"):
        LLM(max_len=5)
    with pytest.raises(ModelFileError, match=r"nothing\.gguf"):
        LLM("nothing.gguf")


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, tokentrail; print([m for m in ('numpy', 'msgspec', 'asyncio') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_embeddings(llm: LLM) -> None:
    texts = ["The capital of France is Paris.", "Paris is France's capital.", "Bake the bread for an hour."]
    first, same, other = (one.embedding for one in llm.embed(texts, pooling="mean"))
    assert len(first) == 576

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert cosine(first, first) == pytest.approx(1, abs=1e-6)
    assert cosine(first, same) > cosine(first, other) + 0.02
    ids = llm.get_tokenizer().encode(texts[0])
    (alone,) = llm.embed(ids, pooling="mean")
    assert alone.embedding == first
    assert alone.prompt_token_ids == ids
    (cut,) = llm.embed(texts[0], pooling="mean", dimensions=64)
    assert cosine(cut.embedding, cut.embedding) == pytest.approx(1, abs=1e-6)
    assert cut.embedding[0] / cut.embedding[1] == pytest.approx(first[0] / first[1])
    (last,) = llm.embed(texts[0])
    assert last.embedding != first
    with pytest.raises(InvalidRequest, match="from 1 to 576"):
        llm.embed("a", dimensions=577)
    with pytest.raises(ContextLengthExceeded, match="prompts"):
        llm.embed("word " * 3000)
    assert llm.embed([]) == []
    view = llm.journey(last.request_id)
    assert view is not None
    assert view.outcome == "stop"
    assert render(view) is not None
