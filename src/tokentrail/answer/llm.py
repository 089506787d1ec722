"""`LLM`: a model in a script, with vLLM's interface."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tokentrail.answer.admission import SEED_BITS, Admission, AnswerSequence, Desk
from tokentrail.answer.backend import join
from tokentrail.answer.embedding import EmbeddingJob, EmbeddingRequest, as_floats, prepare_embedding
from tokentrail.answer.parts import load_text_parts
from tokentrail.answer.types import (
    AnswerRequest,
    ChatPrompt,
    Chunk,
    Prompt,
    TextPrompt,
    TokenLogprob,
    TokensPrompt,
)
from tokentrail.engine import EngineConfig, LocalEngine
from tokentrail.hub import find_model
from tokentrail.journey import JourneyStore, JourneyView
from tokentrail.observability import Metrics
from tokentrail.protocol import DEFAULTED, InvalidRequest, SamplingParams
from tokentrail.text import Tokenizer

PromptInput = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's `{"prompt": text}` and `{"prompt_token_ids": ids}`."""
Messages = Sequence[Mapping[str, Any]]


@dataclass
class CompletionOutput:
    """One choice."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    """Sum of the tokens' log-probabilities."""
    logprobs: list[TokenLogprob] | None
    """Token by token, if `SamplingParams.logprobs` asked for them."""
    finish_reason: str | None
    stop_reason: str | int | None
    """The stop string or token id that ended it, if one did."""


@dataclass
class RequestOutput:
    """One prompt and its answers."""

    request_id: str
    prompt: str | None
    """The text that was tokenized: for a conversation, what the template made of it. None for token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    seed: int
    """The seed used, given or drawn."""
    prompt_logprobs: list[TokenLogprob] | None = None
    """Of the prompt's tokens, if `SamplingParams.prompt_logprobs` asked for them; the first has none."""
    finished: bool = True


@dataclass
class EmbeddingOutput:
    """One prompt and its vector."""

    request_id: str
    prompt_token_ids: list[int]
    embedding: list[float]


class LLM:
    """A model loaded into this process.

    >>> with LLM() as llm:
    ...     llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))

    `model`: path of a GGUF file or of a Hugging Face model's folder, or the name of one on a hub (`org/name`,
    `org/name:Q4_K_M`); None: the demo model. `revision` and `hub` say where on a hub (see `hub.find_model`). Further
    keywords are the fields of `EngineConfig`, with vLLM's names for them too. Requests without a seed draw theirs from
    `seed`, so a script repeats itself.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        chat_template: str | None = None,
        trail_text: bool = True,
        revision: str | None = None,
        hub: str | None = None,
        generation_config: str = "auto",
        **engine: Any,
    ) -> None:
        """Raises `ModelFileError`, `CapacityError` and their kin when the model cannot be loaded."""
        if "gpu_memory_utilization" in engine:  # vLLM's name
            engine["memory_utilization"] = engine.pop("gpu_memory_utilization")
        unknown = sorted(set(engine) - set(EngineConfig.__struct_fields__))
        if unknown:
            raise TypeError(f"LLM() has no argument {unknown[0]!r}; see EngineConfig for what there is")
        if model is not None:
            found = find_model(model, revision=revision, hub=hub)
            model = str(found.path)
            engine.setdefault("name", found.name)
        draft = engine.get("speculative_model")
        if draft not in (None, "ngram", "[ngram]"):
            engine["speculative_model"] = str(find_model(draft, hub=hub).path)
        config = EngineConfig(model=model, **engine)
        parts = load_text_parts(model, chat_template, name=config.name, generation_config=generation_config)
        self._engine = LocalEngine(config)
        self._name = parts.name
        self._journeys = JourneyStore(keep_text=trail_text)
        rng = random.Random(config.seed)
        self._desk = Desk(parts, self._journeys, Metrics(), draw_seed=lambda: rng.getrandbits(SEED_BITS))

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: str | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue one prompt or several, each with its own parameters if several are given.

        `lora`: name of the adapter to answer with, one of those in `LLM(lora={name: path})`. `use_tqdm` (vLLM's name):
        show a progress bar for several prompts on a terminal. Raises `InvalidRequest` before anything is computed.
        """
        return self._run([_prompt(one) for one in _several(prompts)], sampling_params, use_tqdm, lora)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora: str | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, by the model's chat template.

        `tools`: functions that the model may call, as OpenAI's API describes them; a call stands in the answer's text
        as the model writes it. `continue_final_message`: the last message is the answer's beginning; set
        `add_generation_prompt` to False with it. `lora` as in `generate`.
        """
        conversations: list[Any] = list(messages)
        if conversations and isinstance(conversations[0], Mapping):
            conversations = [conversations]
        prompts: list[Prompt] = [
            ChatPrompt(
                messages=[dict(message) for message in conversation],
                tools=[dict(tool) for tool in tools or ()],
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=dict(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm, lora)

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        pooling: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        add_special_tokens: bool = True,
        truncate_prompt_tokens: int | None = None,
        lora: str | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingOutput]:
        """One vector for each prompt: the model's last hidden states, pooled.

        `pooling`: last, mean or cls; None: as the checkpoint says, otherwise last. `dimensions`: keep the first so
        many values. `normalize`: of length one. `truncate_prompt_tokens`: keep so many of a prompt's last tokens; -1:
        as many as the context holds. `lora` and `use_tqdm` as in `generate`. Raises `InvalidRequest` before anything is
        computed.
        """
        several = [_prompt(one) for one in _several(prompts)]
        if not several:
            return []
        self._check_adapter(lora)
        request = EmbeddingRequest(
            id=f"llm-{uuid.uuid4().hex}",
            prompts=several,
            model=lora or self._name,
            endpoint="LLM",
            field="prompts",
            pooling=pooling,
            dimensions=dimensions,
            normalize=normalize,
            add_special_tokens=add_special_tokens,
            truncate_tokens=truncate_prompt_tokens,
        )
        info = self._engine.info
        prepared = prepare_embedding(self._desk, request, info)
        job = EmbeddingJob(self._desk, request, prepared, info)
        numbers = {sequence.id: number for number, sequence in enumerate(job.sequences)}
        try:
            with _progress(len(several), use_tqdm and len(several) > 1, "embedding") as advance:
                for step in self._engine.generate(job.sequences):
                    self._journeys.on_step(step.record, step.deltas)
                    for delta in step.deltas:
                        number = numbers[delta.id]
                        if job.take(number, delta):
                            advance(1, len(job.sequences[number].prompt))
            job.end("stop")
        finally:
            job.end("abort")  # if it has not ended otherwise
        return [
            EmbeddingOutput(request.id, ids, as_floats(vector))
            for ids, vector in zip(prepared.token_ids, job.result().vectors, strict=True)
        ]

    def journey(self, request_id: str) -> JourneyView | None:
        """What happened to one of the last 1,000 requests; `journey.render.render` draws it."""
        return self._journeys.view(request_id)

    def get_default_sampling_params(self) -> SamplingParams:
        """What requests without parameters are answered with: as the model's makers recommend (see
        `generation_config`: auto, vllm for neutral values, or a folder with a generation_config.json)."""
        return self._desk.parts.defaults.fill(SamplingParams(), DEFAULTED)

    def get_tokenizer(self) -> Tokenizer:
        return self._desk.parts.tokenizer

    def close(self) -> None:
        """Free the model."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- running -----------------------------------------------------------------------------------

    def _check_adapter(self, lora: str | None) -> None:
        if lora is not None and all(one.name != lora for one in self._engine.info.adapters):
            known = ", ".join(one.name for one in self._engine.info.adapters) or "none"
            raise InvalidRequest(f"lora: {lora!r} is not loaded; there is: {known}.", param="lora")

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
        lora: str | None,
    ) -> list[RequestOutput]:
        self._check_adapter(lora)
        if sampling is None:
            sampling = self.get_default_sampling_params()
        if isinstance(sampling, SamplingParams):
            sampling = [sampling] * len(prompts)
        if len(sampling) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(sampling)} sampling parameters")
        admissions: list[Admission] = []
        try:
            for prompt, parameters in zip(prompts, sampling, strict=True):
                admissions.append(self._admit(prompt, parameters, lora or self._name))
            chunks = self._compute(admissions, progress and len(prompts) > 1)
        finally:
            for admission in admissions:
                admission.end("abort")  # if it has not ended otherwise
        return [_output(admission, chunks) for admission in admissions]

    def _admit(self, prompt: Prompt, sampling: SamplingParams, model: str) -> Admission:
        info = self._engine.info
        request = AnswerRequest(
            id=f"llm-{uuid.uuid4().hex}",
            prompts=[prompt],
            sampling=sampling,
            model=model,
            endpoint="LLM",
        )
        self._desk.check(request, info)
        return self._desk.admit(request, self._desk.prepare(request, info), info)

    def _compute(self, admissions: Sequence[Admission], progress: bool) -> dict[str, list[Chunk]]:
        """The chunks of each sequence, by its id."""
        running: dict[str, tuple[Admission, AnswerSequence]] = {}
        for admission in admissions:
            for sequence in admission.sequences:
                running[sequence.request.id] = (admission, sequence)
        chunks: dict[str, list[Chunk]] = {id: [] for id in running}
        left = {admission.request.id: len(admission.sequences) for admission in admissions}
        steps = self._engine.generate([sequence.request for _, sequence in running.values()])
        with _progress(len(admissions), progress) as advance:
            for step in steps:
                self._journeys.on_step(step.record, step.deltas)
                for delta in step.deltas:
                    if delta.id not in running:
                        continue
                    admission, sequence = running[delta.id]
                    chunk = admission.write(sequence, delta)
                    chunks[delta.id].append(chunk)
                    done = 0
                    if chunk.finish_reason is not None:
                        del running[delta.id]
                        if delta.finish is None:
                            self._engine.abort([delta.id])
                        left[admission.request.id] -= 1
                        if not left[admission.request.id]:
                            admission.end(admission.outcome)
                            done = 1
                    advance(done, len(delta.token_ids))
        return chunks


def _several(prompts: PromptInput | Sequence[PromptInput]) -> list[Any]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    several = list(prompts)
    return [several] if several and isinstance(several[0], int) else several


def _prompt(prompt: PromptInput) -> Prompt:
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            return TokensPrompt(list(prompt["prompt_token_ids"]))
        if "prompt" in prompt:
            return TextPrompt(prompt["prompt"])
        raise InvalidRequest("A prompt given as a dict needs 'prompt' or 'prompt_token_ids'.", param="prompt")
    return TextPrompt(prompt) if isinstance(prompt, str) else TokensPrompt(list(prompt))


def _output(admission: Admission, chunks: Mapping[str, list[Chunk]]) -> RequestOutput:
    outputs = []
    prompt_logprobs: list[TokenLogprob] | None = None
    for index, sequence in enumerate(admission.sequences):
        choice = join(index, chunks[sequence.request.id])
        if index == 0:
            prompt_logprobs = choice.prompt_logprobs
        outputs.append(
            CompletionOutput(
                index=index,
                text=choice.text,
                token_ids=choice.token_ids,
                cumulative_logprob=sum(sequence.trail.logprobs),
                logprobs=choice.logprobs,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
        )
    return RequestOutput(
        request_id=admission.request.id,
        prompt=admission.prompt_texts[0],
        prompt_token_ids=admission.prompt_token_ids[0],
        outputs=outputs,
        num_cached_tokens=admission.usage.cached_tokens,
        seed=admission.seed,
        prompt_logprobs=prompt_logprobs,
    )


@contextmanager
def _progress(total: int, wanted: bool, doing: str = "generating") -> Iterator[Any]:
    """Yields `advance(requests, tokens)`."""
    if not wanted:
        yield lambda requests, tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=total, rate="")
        made = 0

        def advance(requests: int, tokens: int) -> None:
            nonlocal made
            made += tokens
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{made / elapsed:.0f} tokens/s" if elapsed else ""
            bar.update(task, advance=requests, rate=rate)

        yield advance
