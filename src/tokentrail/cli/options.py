"""Options that several commands share, written once: a dataclass whose fields become a command's flags.

`@takes_options` replaces a command's parameter annotated with such a dataclass by one flag for each of its
fields, and hands the command the filled-in dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tokentrail.cli.units import parse_count, parse_size, read_flag

if TYPE_CHECKING:
    from tokentrail.engine.config import EngineConfig
    from tokentrail.protocol import SamplingParams

R = TypeVar("R")

MODEL = "Model"
BATCHING = "Memory and batching"
SPECULATION = "Speculative decoding: the same answers, sooner"
NUMERICS = "Numbers"
ACCEPTED = "Accepted for vLLM's sake"

_TEMPERATURE = 0.7
"""Where neither the user nor the model's makers name one."""

KEY_VARIABLE = "TOKENTRAIL_API_KEY"
"""Environment variable that holds API keys: a server's, or the one to send."""


def takes_options(command: Callable[..., R]) -> Callable[..., R]:
    """Turn parameters annotated with a dataclass of options into that dataclass's fields."""
    # Not typing.get_type_hints: before Python 3.11 it hides Annotated inside Optional where the default is None.
    hints = inspect.get_annotations(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        annotation = hints[name]
        if not (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
            parameters.append(parameter.replace(annotation=annotation))
            continue
        groups[name] = annotation
        field_hints = inspect.get_annotations(annotation, eval_str=True)
        for field in dataclasses.fields(annotation):
            default = field.default
            if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
                    annotation=field_hints[field.name],
                )
            )
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]

    @functools.wraps(command)
    def call(**values: Any) -> R:
        for name, group in groups.items():
            values[name] = group(
                **{field.name: values.pop(field.name) for field in dataclasses.fields(group)}
            )
        return command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries a key. Of several (a server's own list), the first is as good as any."""
    key = (api_key or "").split(",")[0].strip()
    return {"authorization": f"Bearer {key}"} if key else {}


def note(text: str) -> None:
    """Tell the user something that is no error, on stderr."""
    print(f"note: {text}", file=sys.stderr)


@dataclass(frozen=True)
class EngineOptions:
    """Which model runs, and in what memory: the flags behind `EngineConfig`."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="GGUF file, Hugging Face folder, or name on a hub: org/name, org/name:Q4_K_M. Left out: the demo "
            "model, SmolLM2-135M-Instruct.",
            rich_help_panel=MODEL,
        ),
    ] = None
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision",
            metavar="NAME",
            help="Branch, tag or commit of the model on its hub. Left out: the newest of the main branch.",
            rich_help_panel=MODEL,
        ),
    ] = None
    hub: Annotated[
        str | None,
        typer.Option(
            "--hub",
            metavar="NAME",
            help="Where models are looked for by name: huggingface or modelscope. Left out: $TOKENTRAIL_HUB, or "
            "huggingface.",
            rich_help_panel=MODEL,
        ),
    ] = None
    max_model_len: Annotated[
        str | None,
        typer.Option(
            "--max-model-len",
            "-c",
            metavar="TOKENS",
            help="Context length, prompt and answer together. Left out: the model's, or what memory allows.",
            rich_help_panel=MODEL,
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option(
            "--chat-template",
            metavar="FILE",
            help="Chat template to use instead of the model's: a Jinja2 file, the template's text itself, or the name "
            "of one that the model has besides.",
            rich_help_panel=MODEL,
        ),
    ] = None
    generation_config: Annotated[
        str,
        typer.Option(
            "--generation-config",
            metavar="auto|vllm|FOLDER",
            help="Where sampling parameters that nobody gives come from: auto (the model's generation_config.json), "
            "vllm (neutral values), or another folder's file.",
            rich_help_panel=MODEL,
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            "-t",
            min=1,
            metavar="N",
            help="Threads that compute. Left out: a core each of those this process may use (one less from eight on).",
            rich_help_panel=BATCHING,
        ),
    ] = None
    max_num_seqs: Annotated[
        int,
        typer.Option(
            "--max-num-seqs",
            "-np",
            min=1,
            metavar="N",
            help="Answers generated in one step at most.",
            rich_help_panel=BATCHING,
        ),
    ] = 64
    max_num_batched_tokens: Annotated[
        str,
        typer.Option(
            "--max-num-batched-tokens",
            metavar="TOKENS",
            help="Tokens computed in one step at most; longer prompts go in chunks.",
            rich_help_panel=BATCHING,
        ),
    ] = "512"
    max_waiting: Annotated[
        int,
        typer.Option(
            "--max-waiting",
            min=1,
            metavar="N",
            help="Requests that wait at most; more are refused at once with 429.",
            rich_help_panel=BATCHING,
        ),
    ] = 1024
    step_timeout: Annotated[
        float,
        typer.Option(
            "--step-timeout",
            min=0.0,
            metavar="SECONDS",
            help="Time without a step after which an engine process that has work is restarted; its requests go on. "
            "0: never.",
            rich_help_panel=BATCHING,
        ),
    ] = 300.0
    kv_cache_memory: Annotated[
        str | None,
        typer.Option(
            "--kv-cache-memory",
            metavar="SIZE",
            help="Memory for the KV cache, such as 2GiB. Left out: sized from the memory that is free.",
            rich_help_panel=BATCHING,
        ),
    ] = None
    block_size: Annotated[
        int,
        typer.Option(
            "--block-size",
            metavar="TOKENS",
            help="Tokens in one KV block: 16, 32, 64, 128 or 256.",
            rich_help_panel=BATCHING,
        ),
    ] = 16
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse the KV blocks of prompts that begin alike.",
            rich_help_panel=BATCHING,
        ),
    ] = True
    lora: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="NAME=PATH",
            help="Low-rank adapter (a PEFT folder) that requests ask for by its name; repeatable.",
            rich_help_panel=MODEL,
        ),
    ] = None
    speculative_model: Annotated[
        str | None,
        typer.Option(
            "--speculative-model",
            "-md",
            metavar="MODEL|ngram",
            help="Who drafts tokens for a step to verify: ngram (what followed the same words before), or "
            "a smaller model with the same tokenizer.",
            rich_help_panel=SPECULATION,
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int,
        typer.Option(
            "--num-speculative-tokens",
            min=1,
            metavar="N",
            help="Tokens drafted for an answer in one step at most; fewer or none where that pays more.",
            rich_help_panel=SPECULATION,
        ),
    ] = 8
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            "--kv-cache-dtype",
            metavar="TYPE",
            help="auto (bfloat16), bfloat16, int8 (half the memory) or float32 (exact comparisons).",
            rich_help_panel=NUMERICS,
        ),
    ] = "auto"
    activation_dtype: Annotated[
        str,
        typer.Option(
            "--activation-dtype",
            metavar="TYPE",
            help="auto (int8 groups before quantized weights) or float32 (slower, for exact comparisons).",
            rich_help_panel=NUMERICS,
        ),
    ] = "auto"
    seed: Annotated[
        int,
        typer.Option("--seed", help="Seed of whatever the engine itself draws.", rich_help_panel=NUMERICS),
    ] = 0
    enforce_eager: Annotated[
        bool,
        typer.Option(
            "--enforce-eager",
            help="Run the model's Python step by step instead of the recorded program: same bytes, slower.",
            rich_help_panel=NUMERICS,
        ),
    ] = False
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="TYPE",
            help="On a CPU the weights are computed in the file's own formats.",
            rich_help_panel=ACCEPTED,
        ),
    ] = "auto"
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            "-q",
            metavar="KIND",
            help="Quantize a model in F32, F16 or BF16 while it is loaded: int8, or int4 (embedding and head in int8). "
            "A quantized model needs no flag; vLLM's word for what it is (such as awq) is accepted.",
            rich_help_panel=MODEL,
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        typer.Option(
            "--gpu-memory-utilization",
            metavar="SHARE",
            help="On a CPU: the share of the free memory that weights and KV cache may take.",
            rich_help_panel=ACCEPTED,
        ),
    ] = 0.9
    tensor_parallel_size: Annotated[
        int,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            min=1,
            metavar="N",
            help="On a CPU one process uses all cores (see --threads); above 1 has no effect.",
            rich_help_panel=ACCEPTED,
        ),
    ] = 1

    def engine_config(self, positional: str | None = None) -> EngineConfig:
        """The engine's settings; explains on stderr what flags meant for a GPU do here.

        `positional`: the model as vLLM's users write it, behind the command and without a flag.
        """
        from tokentrail.engine.config import EngineConfig

        if positional is not None and self.model is not None and positional != self.model:
            raise typer.BadParameter(
                f"{self.model!r} and {positional!r} are two models; give one", param_hint="--model"
            )

        if self.hub is not None:
            from tokentrail.hub import HUBS

            _one_of("--hub", self.hub, HUBS)
        _one_of("--block-size", self.block_size, (16, 32, 64, 128, 256))
        _one_of("--kv-cache-dtype", self.kv_cache_dtype, ("auto", "bfloat16", "int8", "float32"))
        _one_of("--activation-dtype", self.activation_dtype, ("auto", "float32"))
        _one_of("--dtype", self.dtype, ("auto", "half", "float16", "bfloat16", "float", "float32"))
        if self.quantization is not None:
            from tokentrail.checkpoints import QUANTIZATIONS
            from tokentrail.engine.config import STORED_QUANTIZATIONS

            _one_of("--quantization", self.quantization, (*QUANTIZATIONS, *STORED_QUANTIZATIONS))
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise typer.BadParameter(
                f"{self.gpu_memory_utilization:g} is not a share above 0 and up to 1",
                param_hint="--gpu-memory-utilization",
            )
        max_model_len = None
        if self.max_model_len is not None and self.max_model_len != "-1":  # -1: vLLM's word for automatic
            max_model_len = read_flag("--max-model-len", self.max_model_len, parse_count)
        kv_cache_memory = None
        if self.kv_cache_memory is not None:
            kv_cache_memory = read_flag("--kv-cache-memory", self.kv_cache_memory, parse_size)
        if self.gpu_memory_utilization != 0.9:
            note(
                f"--gpu-memory-utilization {self.gpu_memory_utilization:g}: without a GPU, the share of "
                "free memory that weights and KV cache may take; --kv-cache-memory sets the cache exactly."
            )
        if self.tensor_parallel_size > 1:
            note(
                f"--tensor-parallel-size {self.tensor_parallel_size}: without GPUs the model is not split; "
                "one process uses all cores, or as many as --threads says."
            )
        if self.dtype != "auto":
            note(
                f"--dtype {self.dtype}: on a CPU the weights are computed in the file's own formats; "
                "--activation-dtype float32 and --kv-cache-dtype float32 widen the rest."
            )
        if self.speculative_model is None and self.num_speculative_tokens != 8:
            note(
                f"--num-speculative-tokens {self.num_speculative_tokens}: nobody drafts; name who does with "
                "--speculative-model ngram, or a draft model's file."
            )
        model, name = self._find(self.model or positional, self.revision)
        draft = self.speculative_model
        if draft not in (None, "ngram", "[ngram]"):
            draft, _ = self._find(draft, None)
        return EngineConfig(
            model=model,
            name=name,
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=read_flag(
                "--max-num-batched-tokens", self.max_num_batched_tokens, parse_count
            ),
            max_waiting=self.max_waiting,
            step_timeout=self.step_timeout or None,
            block_size=self.block_size,
            kv_cache_memory=kv_cache_memory,
            kv_cache_dtype=self.kv_cache_dtype,
            activation_dtype=self.activation_dtype,
            dtype=self.dtype,
            quantization=self.quantization,
            memory_utilization=self.gpu_memory_utilization,
            enable_prefix_caching=self.enable_prefix_caching,
            enforce_eager=self.enforce_eager,
            threads=self.threads,
            seed=self.seed,
            tensor_parallel_size=self.tensor_parallel_size,
            lora=_adapters(self.lora or ()),
            speculative_model=draft,
            num_speculative_tokens=self.num_speculative_tokens,
        )

    def _find(self, model: str | None, revision: str | None) -> tuple[str | None, str | None]:
        """(path, name on a hub) of a model, which is downloaded if need be."""
        if model is None:
            if revision is not None:
                raise typer.BadParameter("give the model it is of, too", param_hint="--revision")
            return None, None
        from tokentrail.hub import find_model

        found = find_model(model, revision=revision, hub=self.hub, tell=note)
        return str(found.path), found.name


def _adapters(values: Iterable[str]) -> dict[str, str]:
    """`["name=path"]` → `{name: path}`."""
    adapters: dict[str, str] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not (separator and name.strip() and path):
            raise typer.BadParameter(
                f"{value!r} is not NAME=PATH, such as polite=./polite-lora", param_hint="--lora"
            )
        if name in adapters:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--lora")
        adapters[name] = path
    return adapters


def _one_of(flag: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        names = ", ".join(map(str, choices[:-1])) + f" or {choices[-1]}"
        raise typer.BadParameter(f"{value!r} is not one of {names}", param_hint=flag)


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen, for commands that generate. What is left out is as the model's makers recommend it."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            min=1,
            metavar="N",
            help="Tokens to generate at most. Left out: all the context has left (chat: 512).",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.0,
            max=2.0,
            help="0 always takes the likeliest token. Left out: as the model's makers recommend (see "
            "--generation-config), as the next four; or 0.7.",
        ),
    ] = None
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the likeliest tokens that hold this share.")
    ] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Draw from this many likeliest tokens; 0: all.")
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", help="Drop tokens less likely than this share of the likeliest."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", help="Above 1 makes tokens already seen less likely."),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End the answer where this text begins; repeatable."),
    ] = None
    sampling_seed: Annotated[
        int | None,
        typer.Option(
            "--sampling-seed", metavar="SEED", help="Repeat an answer exactly. Left out: drawn, and told."
        ),
    ] = None

    def parameters(self, **more: Any) -> SamplingParams:
        """The same as the engine takes them. Raises `InvalidRequest` naming a value out of range."""
        from tokentrail.cli.terminal import typed
        from tokentrail.protocol import DEFAULTED, SamplingParams

        given = {name: getattr(self, name) for name in DEFAULTED}
        sampling = SamplingParams(
            **{"temperature": _TEMPERATURE, **{k: value for k, value in given.items() if value is not None}},
            stop=tuple(typed(text, "--stop") for text in self.stop or ()),
            seed=self.sampling_seed,
            **more,
        )
        sampling.validate()
        return sampling

    def unset(self) -> frozenset[str]:
        """Those of the parameters that were left out, and that a model may recommend values for."""
        from tokentrail.protocol import DEFAULTED

        return frozenset(name for name in DEFAULTED if getattr(self, name) is None)
