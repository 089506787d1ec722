"""One request's way through the answer room, with the demo model's tokenizer and a scripted engine."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import ScriptedEngine, engine_info, logprob

from tokentrail.answer import (
    AnswerRequest,
    ChatPrompt,
    Choice,
    Chunk,
    LocalBackend,
    Prompt,
    TextPrompt,
    TokensPrompt,
    collect,
)
from tokentrail.answer.backend import join
from tokentrail.answer.local import LocalAnswer
from tokentrail.answer.parts import TextParts, load_text_parts
from tokentrail.protocol import (
    ContextLengthExceeded,
    EngineDead,
    InvalidRequest,
    ModelFileError,
    Overloaded,
    SamplingDefaults,
    SamplingParams,
    TokentrailError,
)

TEXT = "The quick brown fox 🦊 jumps über the lazy dog.\n\n北京欢迎你！ END of it."
EOS = 2


@pytest.fixture(scope="session")
def parts() -> TextParts:
    return load_text_parts(None)


@pytest.fixture
def ids(parts: TextParts) -> list[int]:
    return parts.tokenizer.encode(TEXT)


def backend(parts: TextParts, tokens: list[int], **options: Any) -> tuple[LocalBackend, ScriptedEngine]:
    engine = ScriptedEngine(lambda request: tokens, **options)
    return LocalBackend(engine, parts), engine


_numbers = itertools.count()


def ask(*prompts: Prompt | str, echo: bool = False, **sampling: Any) -> AnswerRequest:
    return AnswerRequest(
        id=f"test-{next(_numbers)}",
        prompts=[TextPrompt(p) if isinstance(p, str) else p for p in prompts or ("Hello",)],
        sampling=SamplingParams(**sampling),
        model="m",
        endpoint="test",
        echo=echo,
    )


async def answer(backend: LocalBackend, request: AnswerRequest) -> tuple[list[Choice], LocalAnswer]:
    opened = await backend.open(request)
    return await collect(opened), opened


async def test_the_makers_recommendations_hold_where_nobody_says(parts: TextParts, ids: list[int]) -> None:
    recommended = SamplingDefaults(temperature=0.25, top_k=20, repetition_penalty=1.05, max_tokens=2)
    back, engine = backend(replace(parts, defaults=recommended), [*ids, EOS])
    request = ask(top_k=7)
    request.unset = ["temperature", "repetition_penalty", "max_tokens"]
    (choice,), _ = await answer(back, request)
    asked = engine.requests[-1].sampling
    assert (asked.temperature, asked.top_k, asked.repetition_penalty) == (0.25, 7, 1.05)
    assert len(choice.token_ids) == 2
    request = ask()
    request.unset, request.default_max_tokens = ["max_tokens"], 3  # the route's own limit goes before
    (choice,), _ = await answer(back, request)
    assert engine.requests[-1].sampling.temperature == 1.0
    assert len(choice.token_ids) == 3


@pytest.mark.parametrize("choice", ["auto", "vllm", "folder", "file"])
def test_where_recommendations_come_from(tmp_path: Path, choice: str) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text('{"top_k": 5}')
    given = {"folder": str(tmp_path), "file": str(file)}.get(choice, choice)
    defaults = load_text_parts(None, generation_config=given).defaults
    assert defaults == (SamplingDefaults(top_k=5) if choice in ("folder", "file") else SamplingDefaults())
    with pytest.raises(ModelFileError, match="--generation-config nowhere: is not auto"):
        load_text_parts(None, generation_config="nowhere")


async def test_tokens_become_the_text_and_are_counted(parts: TextParts, ids: list[int]) -> None:
    back, engine = backend(parts, [*ids, EOS])
    (choice,), opened = await answer(back, ask("Hello there"))
    assert choice.text == TEXT
    assert choice.token_ids == [*ids, EOS]
    assert (choice.finish_reason, choice.stop_reason, choice.logprobs) == ("stop", None, None)
    assert opened.usage.completion_tokens == len(ids) + 1
    assert opened.usage.prompt_tokens == len(parts.tokenizer.encode("Hello there"))
    assert opened.usage.cached_tokens == opened.usage.prompt_tokens // 2
    assert engine.running == set()
    assert engine.aborted == []


async def test_chat_is_rendered_with_the_models_template(parts: TextParts, ids: list[int]) -> None:
    back, engine = backend(parts, ids)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    await answer(back, ask(ChatPrompt(messages=messages), max_tokens=1))
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert parts.tokenizer.decode(engine.requests[0].prompt, skip_special_tokens=False) == text


@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("stop", [(), ("END",), ("\n北京欢", "nowhere"), ("🦊",), ("lazy dog.\n", "lazy")])
@pytest.mark.parametrize("include", [False, True])
async def test_what_comes_out_does_not_depend_on_how_tokens_were_cut(
    parts: TextParts, ids: list[int], stop: tuple[str, ...], include: bool, logprobs: int | None
) -> None:
    """Text, ids, log-probabilities, reasons and counts are equal however deltas are cut."""
    rng = random.Random(f"{stop}{include}{logprobs}")
    outcomes = []
    for cut in (1, 2, 7, 1000, lambda: rng.randrange(1, 6)):
        back, engine = backend(parts, [*ids, EOS], cut=cut)
        request = ask(stop=stop, include_stop_str_in_output=include, logprobs=logprobs)
        (choice,), opened = await answer(back, request)
        outcomes.append((choice, opened.usage))
        assert engine.running == set()
    assert all(outcome == outcomes[0] for outcome in outcomes)
    choice, usage = outcomes[0]
    found = [(TEXT.find(s) + len(s), s) for s in stop if s in TEXT]
    if found:
        end, matched = min(found)
        assert choice.text == (TEXT[:end] if include else TEXT[: end - len(matched)])
        assert (choice.finish_reason, choice.stop_reason) == ("stop", matched)
        # Counted up to the token that completes the match, and not a token further.
        decoded = parts.tokenizer.decode(choice.token_ids)
        assert matched in decoded
        assert matched not in parts.tokenizer.decode(choice.token_ids[:-1])
    else:
        assert choice.text == TEXT
        assert choice.stop_reason is None
    assert usage.completion_tokens == len(choice.token_ids)
    if logprobs is not None:
        assert choice.logprobs is not None
        assert [entry.token.id for entry in choice.logprobs] == choice.token_ids
        assert [entry.logprob for entry in choice.logprobs] == [logprob(id) for id in choice.token_ids]
        assert all(len(entry.top) == logprobs for entry in choice.logprobs)
        assert b"".join(entry.token.bytes for entry in choice.logprobs if entry.token.id != EOS).decode(
            errors="ignore"
        ) == parts.tokenizer.decode(choice.token_ids).rstrip("\ufffd")


async def test_a_stop_string_ends_the_sequence_in_the_engine(parts: TextParts, ids: list[int]) -> None:
    back, engine = backend(parts, ids)
    await answer(back, ask(stop=("brown",)))
    assert engine.aborted == [engine.requests[0].id]
    assert engine.deltas_taken < len(ids) / 2


async def test_text_is_never_half_a_character(parts: TextParts, ids: list[int]) -> None:
    back, _ = backend(parts, [*ids, EOS])
    opened = await back.open(ask())
    text = ""
    async for chunks in opened:
        for chunk in chunks:
            assert "\ufffd" not in chunk.text
            text += chunk.text
    assert text == TEXT


async def test_an_answer_cut_in_the_middle_of_a_character_shows_that(parts: TextParts) -> None:
    fox = parts.tokenizer.encode("🦊")
    assert len(fox) > 1
    back, _ = backend(parts, fox)
    (choice,), _ = await answer(back, ask(max_tokens=len(fox) - 1))
    assert choice.text == "\ufffd"
    assert choice.finish_reason == "length"


async def test_what_was_held_back_comes_out_at_the_end(parts: TextParts, ids: list[int]) -> None:
    back, _ = backend(parts, ids)
    (choice,), _ = await answer(back, ask(stop=(" of it.!",)))
    assert choice.text == TEXT
    assert (choice.finish_reason, choice.stop_reason) == ("length", None)


async def test_stop_tokens_are_counted_and_shown_only_when_asked(parts: TextParts, ids: list[int]) -> None:
    stop = ids[3]
    cases = [(False, False), (True, False), (False, True), (True, True)]
    for include, special in cases:
        back, _ = backend(parts, [*ids, EOS])
        request = ask(
            stop_token_ids=(stop,), include_stop_str_in_output=include, skip_special_tokens=not special
        )
        (choice,), opened = await answer(back, request)
        assert choice.text == parts.tokenizer.decode(ids[: 3 + include])
        assert choice.stop_reason == stop
        assert opened.usage.completion_tokens == 4
    for include, special in cases:
        back, _ = backend(parts, [*ids[:3], EOS])
        request = ask(include_stop_str_in_output=include, skip_special_tokens=not special)
        (choice,), _ = await answer(back, request)
        shown = "<|im_end|>" if include and special else ""
        assert choice.text == parts.tokenizer.decode(ids[:3]) + shown
        assert choice.stop_reason is None


async def test_min_tokens_holds_for_stop_strings_too(parts: TextParts, ids: list[int]) -> None:
    back, _ = backend(parts, ids)
    (choice,), _ = await answer(back, ask(stop=("brown", "dog"), min_tokens=5))
    assert choice.stop_reason == "dog"
    assert "brown" in choice.text


async def test_each_choice_has_its_own_sequence_and_one_seed(parts: TextParts, ids: list[int]) -> None:
    engine = ScriptedEngine(lambda request: ids[request.choice :], cut=3)
    back = LocalBackend(engine, parts)
    choices, opened = await answer(back, ask("One", "Two", n=3, seed=7, max_tokens=9))
    assert [choice.index for choice in choices] == list(range(6))
    texts = [parts.tokenizer.decode(ids[k : k + 9]) for k in range(3)]
    assert [choice.text.rstrip("\ufffd") for choice in choices] == [
        t.rstrip("\ufffd") for t in [*texts, *texts]
    ]
    assert [request.choice for request in engine.requests] == [0, 1, 2, 0, 1, 2]
    assert {request.sampling.seed for request in engine.requests} == {7}
    assert {request.group for request in engine.requests} == {opened.id}
    assert opened.usage.prompt_tokens == 2
    assert opened.usage.completion_tokens == 54


async def test_a_seed_is_drawn_and_told(parts: TextParts, ids: list[int]) -> None:
    back, engine = backend(parts, ids)
    seeds = set()
    for _ in range(5):
        _, opened = await answer(back, ask(max_tokens=1, seed=None))
        assert engine.requests[-1].sampling.seed == opened.seed
        assert 0 <= opened.seed < 2**53
        seeds.add(opened.seed)
    assert len(seeds) == 5


async def test_streamed_and_collected_are_the_same(parts: TextParts, ids: list[int]) -> None:
    for sampling in ({"n": 1}, {"n": 3, "logprobs": 2}, {"stop": ("lazy",), "n": 2, "logprobs": 0}):
        back, _ = backend(parts, [*ids, EOS], cut=2)
        choices, _ = await answer(back, ask(**sampling))
        streamed: list[list[Chunk]] = [[] for _ in choices]
        async for chunks in await back.open(ask(**sampling)):
            assert chunks
            for chunk in chunks:
                streamed[chunk.index].append(chunk)
        assert [join(index, parts) for index, parts in enumerate(streamed)] == choices


@pytest.mark.parametrize("n", [1, 3])
async def test_diverted_and_iterated_chunks_are_the_answer(parts: TextParts, ids: list[int], n: int) -> None:
    """Whatever `take` refuses comes by iteration, in order, and diverting again is always possible."""
    rng = random.Random(n)
    taken = refused = 0
    for _ in range(20):
        back, engine = backend(parts, [*ids, EOS])
        choices, _ = await answer(back, ask(n=n, stop=("lazy",)))
        opened = await back.open(ask(n=n, stop=("lazy",)))
        got: list[list[Chunk]] = [[] for _ in choices]

        def take(chunk: Chunk, got: list[list[Chunk]] = got) -> bool:
            nonlocal taken, refused
            if rng.random() < 0.2:
                refused += 1
                return False
            taken += 1
            got[chunk.index].append(chunk)
            return True

        async for chunks in opened:
            for chunk in chunks:
                got[chunk.index].append(chunk)
            opened.divert(take)
        assert [join(index, chunks) for index, chunks in enumerate(got)] == choices
        assert engine.running == set()
        assert len(engine.aborted) == 2 * n
    assert taken > refused > 20


async def test_an_error_of_the_one_who_takes_ends_the_answer(parts: TextParts, ids: list[int]) -> None:
    back, engine = backend(parts, ids)

    def take(chunk: Chunk) -> bool:
        raise OSError("the disk is full")

    opened = await back.open(ask())
    chunks = aiter(opened)
    await anext(chunks)
    with pytest.raises(OSError, match="disk"):  # noqa: PT012 (it may come by either)
        opened.divert(take)
        await anext(chunks)
    await opened.aclose()
    assert engine.running == set()
    assert back.metrics.requests["error"] == 1


@pytest.mark.parametrize("n", [1, 4])
async def test_closing_stops_everything_at_once(parts: TextParts, ids: list[int], n: int) -> None:
    back, engine = backend(parts, ids, delay=0.01)
    opened = await back.open(ask(n=n))
    async for _ in opened:
        break
    assert len(engine.running) == n
    await opened.aclose()
    assert engine.running == set()
    assert len(engine.aborted) == n
    assert back.metrics.requests["abort"] == 1
    view = back.journeys.view(opened.id)
    assert view is not None
    assert (view.status, view.outcome) == ("finished", "abort")
    await opened.aclose()
    assert back.metrics.requests["abort"] == 1


@pytest.mark.parametrize("n", [1, 4])
async def test_cancelling_stops_everything_at_once(parts: TextParts, ids: list[int], n: int) -> None:
    back, engine = backend(parts, ids, delay=0.01)
    task = asyncio.create_task(answer(back, ask(n=n)))
    await asyncio.sleep(0.05)
    assert len(engine.running) == n
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.running == set()
    assert back.metrics.requests["abort"] == 1
    assert back.journeys.num_live == 0


async def test_an_answer_that_is_never_read_leaves_nothing_behind(parts: TextParts, ids: list[int]) -> None:
    back, engine = backend(parts, ids)
    opened = await back.open(ask())
    await opened.aclose()
    assert engine.requests == []
    assert back.journeys.num_live == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize(
    ("error", "outcome"), [(Overloaded("full"), "rejected"), (EngineDead("dead"), "error")]
)
async def test_errors_of_the_engine_pass_through_and_end_the_request(
    parts: TextParts, error: TokentrailError, outcome: str, n: int, after: int
) -> None:
    back, engine = backend(parts, [5, 6, 7, 8], error=error, error_after=after)
    with pytest.raises(type(error)):
        await answer(back, ask(n=n))
    assert engine.running == set()
    assert back.metrics.requests[outcome] == 1
    assert back.journeys.num_live == 0


# --- echo ------------------------------------------------------------------------------------------


async def test_an_echo_repeats_the_prompt_before_each_choice(parts: TextParts, ids: list[int]) -> None:
    prompt = "Say <|im_start|> 🦊 twice"
    back, _ = backend(parts, ids)
    choices, _ = await answer(back, ask(prompt, echo=True, n=2, max_tokens=4))
    assert [choice.text for choice in choices] == [prompt + parts.tokenizer.decode(ids[:4])] * 2
    assert [choice.token_ids for choice in choices] == [ids[:4]] * 2


async def test_an_echo_has_the_log_probabilities_of_the_prompt(parts: TextParts, ids: list[int]) -> None:
    prompt = "Say <|im_start|> 🦊 twice"
    tokens = parts.tokenizer.encode(prompt)
    back, _ = backend(parts, ids)
    (choice,), _ = await answer(back, ask(prompt, echo=True, max_tokens=4, logprobs=2))
    assert choice.logprobs is not None
    assert [entry.token.id for entry in choice.logprobs] == [*tokens, *ids[:4]]
    assert choice.logprobs[0].logprob is None
    assert [entry.logprob for entry in choice.logprobs[1:]] == [logprob(id) for id in [*tokens[1:], *ids[:4]]]
    assert [len(entry.top) for entry in choice.logprobs] == [0] + [2] * (len(tokens) + 3)
    for entry, following in itertools.pairwise(choice.logprobs):
        if "\ufffd" not in entry.token.text + following.token.text:
            assert choice.text[entry.offset : following.offset] == entry.token.text


@pytest.mark.parametrize("prompt", ["Hello there", TokensPrompt([1, 50, 60])])
async def test_a_prompt_can_be_scored_without_an_answer(parts: TextParts, prompt: Prompt | str) -> None:
    back, _ = backend(parts, [99])
    (choice,), opened = await answer(back, ask(prompt, echo=True, max_tokens=0, logprobs=0))
    tokens = prompt.token_ids if isinstance(prompt, TokensPrompt) else parts.tokenizer.encode("Hello there")
    assert choice.text == parts.tokenizer.decode(tokens)
    assert choice.token_ids == []
    assert choice.logprobs is not None
    assert [entry.token.id for entry in choice.logprobs] == tokens
    assert opened.usage.completion_tokens == 0
    assert choice.finish_reason == "length"


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"stop": ("",)}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {49152: 1.0}}, "logit_bias"),
        ({"logit_bias": {5: 101.0}}, "logit_bias"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"seed": 2**63}, "seed"),
    ],
)
async def test_values_out_of_range_are_refused_by_name(
    parts: TextParts, sampling: dict[str, Any], param: str
) -> None:
    back, engine = backend(parts, [1])
    with pytest.raises(InvalidRequest) as caught:
        await back.open(ask(**sampling))
    assert caught.value.param == param
    assert param in caught.value.message
    assert engine.requests == []
    assert back.journeys.num_live == 0


@pytest.mark.parametrize("chat", [False, True])
async def test_a_text_that_cannot_fit_is_not_tokenized(
    parts: TextParts, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = 2000
    back, _ = backend(parts, [1], info=engine_info(max_model_len=context))
    text = " " * (context * parts.tokenizer.longest_token)
    with pytest.raises(ContextLengthExceeded, match=r"resulted in \d+ tokens"):
        await back.open(ask(text))
    # One character more cannot fit, whatever the text is.
    monkeypatch.delattr(type(parts.tokenizer), "encode")
    text += "a"
    prompt = ChatPrompt(messages=[{"role": "user", "content": text}]) if chat else TextPrompt(text)
    with pytest.raises(ContextLengthExceeded, match=r"\d+ characters, more than 2000 tokens can hold"):
        await back.open(ask(prompt))


async def test_max_tokens_out_of_range_names_prompt_limit_and_context(parts: TextParts) -> None:
    info = engine_info(max_model_len=20)
    for asked in (-3, 0, 16, 1000):
        back, _ = backend(parts, [1], info=info)
        with pytest.raises(InvalidRequest) as caught:
            await back.open(ask(TokensPrompt([5] * 5), max_tokens=asked))
        assert caught.value.param == "max_tokens"
        for number in (5, 15, 20, asked):
            assert f"{number}" in caught.value.message
        assert caught.value.code == ("context_length_exceeded" if asked > 15 else None)
    back, engine = backend(parts, [7] * 100, info=info)
    for asked in (15, None):
        (choice,), _ = await answer(back, ask(TokensPrompt([5] * 5), max_tokens=asked))
        assert len(choice.token_ids) == 15
        assert engine.requests[-1].sampling.max_tokens == 15


@pytest.mark.parametrize("tokens", [20, 21, 4000])
async def test_a_prompt_longer_than_the_context_is_refused(parts: TextParts, tokens: int) -> None:
    back, _ = backend(parts, [1], info=engine_info(max_model_len=20))
    for prompt in (TokensPrompt([5] * tokens), TextPrompt(" the" * tokens)):
        with pytest.raises(ContextLengthExceeded) as caught:
            await back.open(ask(prompt))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
        assert f"maximum context length is 20 tokens. However, your prompt resulted in {tokens}" in (
            caught.value.message
        )


async def test_empty_and_impossible_prompts_are_refused(parts: TextParts) -> None:
    back, _ = backend(parts, [1])
    for prompt in (TextPrompt(""), TokensPrompt([])):
        with pytest.raises(InvalidRequest, match="empty"):
            await back.open(ask(prompt))
    for token in (-1, 49152, 2**40):
        with pytest.raises(InvalidRequest, match="not a token id"):
            await back.open(ask(TokensPrompt([1, token])))


async def test_a_long_prompt_is_tokenized_beside_the_loop_and_alike(parts: TextParts) -> None:
    text = "All work and no play makes Jack a dull boy. " * 1000
    back, engine = backend(parts, [1], info=engine_info(max_model_len=100_000))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await answer(back, ask(text, max_tokens=1))
    ticking.cancel()
    assert ticks > 1
    assert engine.requests[0].prompt == parts.tokenizer.encode(text)


# --- what is left behind ---------------------------------------------------------------------------


async def test_the_journey_tells_what_happened(parts: TextParts, ids: list[int]) -> None:
    back, _ = backend(parts, [*ids, EOS])
    request = ask(ChatPrompt(messages=[{"role": "user", "content": "secret"}]), stop=("lazy",), seed=3)
    (choice,), opened = await answer(back, request)
    view = back.journeys.view(opened.id)
    assert view is not None
    assert (view.status, view.outcome, view.seed) == ("finished", "stop", 3)
    assert view.completion_tokens == opened.usage.completion_tokens
    assert view.prompt_tokens == opened.usage.prompt_tokens
    assert [event.event for event in view.events] == [
        "received",
        "templated",
        "queued",
        "scheduled",
        "first_token",
        "finished",
    ]
    assert view.stages.template is not None
    assert view.stages.tokenize is not None
    assert view.stages.detokenize > 0
    (sequence,) = view.sequences
    assert [token.logprob for token in sequence.tokens] == [logprob(id) for id in choice.token_ids]
    assert "secret" not in repr(view)
    assert (sequence.text, sequence.prompt, sequence.tokens[0].id) == (None, None, None)


async def test_the_journey_holds_texts_when_told_to(parts: TextParts, ids: list[int]) -> None:
    back, _ = backend(parts, [*ids, EOS])
    back.journeys.keep_text = True
    (choice,), opened = await answer(back, ask("the prompt", stop=("lazy",), logprobs=2))
    view = back.journeys.view(opened.id)
    assert view is not None
    (sequence,) = view.sequences
    assert (sequence.prompt, sequence.text) == ("the prompt", choice.text)
    assert [token.id for token in sequence.tokens] == choice.token_ids
    assert [len(token.top or ()) for token in sequence.tokens] == [2] * len(choice.token_ids)


async def test_metrics_count_the_request(parts: TextParts, ids: list[int]) -> None:
    back, _ = backend(parts, [*ids, EOS], delay=0.001)
    await answer(back, ask())
    await answer(back, ask(max_tokens=4))
    metrics = back.metrics
    assert (metrics.requests["stop"], metrics.requests["length"]) == (1, 1)
    assert metrics.first_token.buckets()[-1][1] == 2
    assert metrics.inter_token.buckets()[-1][1] == len(ids) + 3
    assert metrics.inter_token.sum > 0.001 * len(ids)
    assert metrics.request_generation_tokens.sum == len(ids) + 1 + 4
    assert metrics.per_output_token.buckets()[-1][1] == 2
    assert metrics.queue_time.buckets()[-1][1] == 2
    assert b"tokentrail_engine_up" in metrics.render()[0]
