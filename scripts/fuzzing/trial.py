"""Opens a damaged model as a user would, runs what opens, and judges what comes of it."""

from __future__ import annotations

import contextlib
import io
import random
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

import tokentrail
from fuzzing.files import ModelFiles
from tokentrail import LLM
from tokentrail.answer.parts import load_text_parts
from tokentrail.cli.inspect.facts import facts
from tokentrail.cli.inspect.machine import machine_facts
from tokentrail.cli.inspect.show import show
from tokentrail.cli.inspect.tokens import split
from tokentrail.engine import EngineConfig
from tokentrail.engine.opening import open_model
from tokentrail.ops.native import native_digest
from tokentrail.protocol import CapacityError, InvalidRequest, ModelFileError, SamplingParams, TokentrailError

__all__ = ["Outcome", "load_everything", "run"]

LONGEST_MESSAGE = 2500
PACKAGE = str(Path(tokentrail.__file__).parent)
TEXTS = (
    "Hello, 你好 123! <s> \n\n\tthe the <|im_end|>",
    "a" * 3000,
    " " * 3000,
    "<|im_start|>\0\ud800\U0001f469\u200d\U0001f469 ▁▁<0x0A>" * 20,
    "12345678901234567890" * 50,
    "",
)
TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "ab" * 40},
    {"role": "user", "content": "世界\n again"},
]
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}}
]


class Outcome(NamedTuple):
    kind: str
    """`ran`, `refused`, or what is wrong: a word, and where."""
    detail: str = ""


def load_everything() -> None:
    """Import what is otherwise imported late, so that it is not done anew in every process."""
    import tokenizers  # noqa: F401

    import tokentrail.engine.core
    import tokentrail.engine.model_runner
    import tokentrail.text.building  # noqa: F401

    native_digest()


def run(model: ModelFiles, folder: Path, draw: random.Random) -> Outcome:
    path = model.write(folder)
    output = io.StringIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stdout(output):
                _use(model, folder, path, draw)
            outcome = Outcome("ran")
        except TokentrailError as error:
            outcome = _judged(error, folder)
        except BaseException as error:  # a panic of Rust is no `Exception`
            outcome = Outcome(f"{type(error).__name__} at {_where(error)}", traceback.format_exc())
    ours = [warning for warning in caught if issubclass(warning.category, RuntimeWarning)]
    if ours and outcome.kind in ("ran", "refused"):
        first = ours[0]
        return Outcome(
            f"warning: {first.message} at {Path(first.filename).name}:{first.lineno}", outcome.detail
        )
    return outcome


def _judged(error: TokentrailError, folder: Path) -> Outcome:
    message = str(error)
    if "are not finite numbers" in message:
        return Outcome("refused", message)  # by the sampler: values that overflow
    if not isinstance(error, (ModelFileError, CapacityError, InvalidRequest)):
        return Outcome(f"{type(error).__name__} at {_where(error)}", traceback.format_exc())
    problem = None
    if not message.isprintable():
        problem = "unprintable message"
    elif not 10 <= len(message) <= LONGEST_MESSAGE:
        problem = f"message of {len(message)} characters"
    elif not isinstance(error, InvalidRequest) and str(folder) not in message:
        problem = "message without the file"
    if problem is None:
        return Outcome("refused", message)
    return Outcome(f"{problem} at {_where(error)}", f"{message[:3000]!r}\n{traceback.format_exc()}")


def _where(error: BaseException) -> str:
    """The last line of ours."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)
    ]
    if not frames:
        return "the script"
    return f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].name}"


def _use(model: ModelFiles, folder: Path, path: Path, draw: random.Random) -> None:
    """Text first, as the server does; then tokens through the kernels."""
    if model.text_only and draw.random() < 0.85:
        _read_text(path, draw)
        return
    fields = {
        "max_num_batched_tokens": draw.choice((7, 32)),
        "max_num_seqs": 3,
        "kv_cache_memory": 4 << 20,
        "kv_cache_dtype": draw.choice(("auto", "auto", "int8", "float32")),
        "activation_dtype": draw.choice(("auto", "auto", "auto", "float32")),
        "block_size": draw.choice((16, 16, 64)),
        "enforce_eager": draw.random() < 0.1,
        "threads": draw.choice((1, 1, 3)),
        "speculative_model": "ngram" if draw.random() < 0.1 else None,
        **model.engine,
    }
    fields["lora"] = {name: str(folder / inner) for name, inner in fields.get("lora", {}).items()}
    if draw.random() < 0.1:
        _inspect(EngineConfig(model=str(path), **fields))
    if draw.random() < 0.2:
        _read_text(path, draw)
    with LLM(str(path), **fields) as llm:
        vocabulary = llm.get_tokenizer().vocab_size
        prompts: list[list[int]] = [
            [draw.randrange(min(vocabulary, 1 << 16)) for _ in range(length)]
            for length in (1, draw.choice((5, 40)), 9)
        ]
        sampling = [
            SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2),
            SamplingParams(temperature=1, max_tokens=3, seed=1, top_p=0.9, top_k=5, min_p=0.01),
            SamplingParams(temperature=0.5, max_tokens=2, seed=1, frequency_penalty=1, logit_bias={0: 5.0}),
        ]
        with contextlib.suppress(InvalidRequest):  # the context can be too short for them
            llm.generate(prompts, sampling, use_tqdm=False, lora=draw.choice([None, *fields["lora"]]))
        llm.generate(
            [[0]], SamplingParams(max_tokens=1), use_tqdm=False, lora=next(iter(fields["lora"]), None)
        )
        if draw.random() < 0.3:
            with contextlib.suppress(InvalidRequest):
                llm.chat(TALK, SamplingParams(max_tokens=2), use_tqdm=False)


def _read_text(path: Path, draw: random.Random) -> None:
    parts = load_text_parts(str(path))
    tokenizer = parts.tokenizer
    for text in (draw.choice(TEXTS), TEXTS[0]):
        for special in (True, False):
            with _oddities_allowed():
                ids = tokenizer.encode(text, parse_special=special)
                assert all(0 <= id < tokenizer.vocab_size for id in ids)
                tokenizer.decode(ids, skip_special_tokens=special, text_start=special)
    for id in range(min(tokenizer.vocab_size, 1200)):
        tokenizer.token_bytes(id)
        tokenizer.is_special(id)
        tokenizer.token_to_id(tokenizer.id_to_token(id))
    with _oddities_allowed():
        split(tokenizer, TEXTS[0])
    assert tokenizer.longest_token >= 0
    for tools in (None, TOOLS):
        with _oddities_allowed():
            parts.template.render(TALK, tools=tools)
    with _oddities_allowed():
        parts.template.render(
            [*TALK, {"role": "assistant", "content": "x"}],
            add_generation_prompt=False,
            continue_final_message=True,
        )


@contextlib.contextmanager
def _oddities_allowed():  # type: ignore[no-untyped-def]
    """A request may be refused, in one line."""
    try:
        yield
    except InvalidRequest as error:
        message = str(error)
        if "\n" in message or len(message) > LONGEST_MESSAGE:
            raise AssertionError(f"a refusal of {len(message)} characters: {message[:500]!r}") from error


def _inspect(config: EngineConfig) -> None:
    checkpoint, loss = open_model(config)
    try:
        tokenizer = load_text_parts(config.model).tokenizer
    except ModelFileError:
        tokenizer = None
    result = facts(checkpoint, tokenizer)
    if loss is not None:
        loss.measure(checkpoint)
        result["quantization_loss"] = loss.by_part()
    result |= machine_facts(checkpoint, config, measure=False)
    show(result)
