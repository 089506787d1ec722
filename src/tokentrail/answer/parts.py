"""What a checkpoint says about text, loaded together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tokentrail.answer.parsing import Formats
from tokentrail.checkpoints import (
    Checkpoint,
    ModelConfig,
    demo_model_path,
    generation_defaults,
    model_name,
    open_checkpoint,
    read_generation_config,
)
from tokentrail.protocol import ModelFileError, SamplingDefaults
from tokentrail.text import ChatTemplate, Infill, Tokenizer, read_chat_template

NO_DEFAULTS = SamplingDefaults()
GENERATION_CONFIG = "generation_config.json"
GENERATION_CHOICES = "auto (the model's own), vllm (none), or a folder with a generation_config.json"


@dataclass(frozen=True)
class TextParts:
    tokenizer: Tokenizer
    template: ChatTemplate
    path: Path
    """The checkpoint's file or folder."""
    name: str
    """The folder's name, or the file's without its ending: what the model answers to unless told otherwise. (The name
    inside the file is a title, often with spaces, and not made to be typed.)"""
    defaults: SamplingDefaults = NO_DEFAULTS
    """For requests that do not say."""
    formats: Formats = field(default_factory=Formats)
    """How the model marks thoughts and tool calls."""
    config: ModelConfig | None = None
    """None where nobody asks for it."""
    quantization: str = ""
    """The type that most bytes of the file's tensors have."""
    file_bytes: int = 0
    """Of the tensors."""
    pooling: str = "last"
    """How embeddings are pooled, where a request does not say: last, mean or cls."""
    infill: Infill | None = None
    """How the model fills in the middle of a text; None: it cannot."""


def load_text_parts(
    model: str | None,
    chat_template: str | None = None,
    *,
    name: str | None = None,
    generation_config: str = "auto",
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    pooling: str | None = None,
) -> TextParts:
    """Open a checkpoint for its text parts only.

    `model` None: the demo model; `chat_template`: a template to use instead of the checkpoint's: its path, its text, or
    the name of one that the checkpoint has besides; `name`: what the model answers to instead of its file's name;
    `generation_config`: where the defaults of sampling parameters come from: `auto` (the model), `vllm` (nowhere), or a
    folder; the parsers: names of formats, where the template does not tell the right ones; `pooling`: how embeddings
    are pooled, instead of as the checkpoint says.
    Raises `ModelFileError` naming what is wrong with a file.
    """
    checkpoint = open_checkpoint(demo_model_path() if model is None else Path(model))
    tokenizer = Tokenizer.from_checkpoint(checkpoint)
    source, named = checkpoint.chat_template, checkpoint.named_templates
    origin = f"{checkpoint.path}: the chat template"
    if chat_template is not None:
        source, origin = read_chat_template(chat_template, named)
        named = {}  # what a user gives is for all requests

    def text(id: int | None) -> str:
        return "" if id is None else tokenizer.id_to_token(id)

    template = ChatTemplate(
        source,
        named=named,
        special_tokens=checkpoint.tokenizer.special_tokens,
        bos_token=text(tokenizer.bos_token_id),
        eos_token=text(checkpoint.tokenizer.eos_token_id),
        origin=origin,
    )
    return TextParts(
        tokenizer,
        template,
        checkpoint.path,
        name or model_name(checkpoint.path),
        _defaults(checkpoint, generation_config),
        Formats.of(template.source, tool_call_parser, reasoning_parser),
        checkpoint.config,
        _main_format(checkpoint),
        checkpoint.nbytes,
        pooling or checkpoint.pooling or "last",
        Infill.of(tokenizer, checkpoint.tokenizer),
    )


def _main_format(checkpoint: Checkpoint) -> str:
    nbytes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        nbytes[tensor.format] += tensor.nbytes
    return nbytes.most_common(1)[0][0]


def _defaults(checkpoint: Checkpoint, choice: str) -> SamplingDefaults:
    """See `load_text_parts`, `generation_config`."""
    if choice == "vllm":
        return SamplingDefaults()
    if choice == "auto":
        return generation_defaults(checkpoint)
    path = Path(choice)
    file = path / GENERATION_CONFIG if path.is_dir() else path
    if not file.is_file():
        raise ModelFileError(f"--generation-config {choice}: is not {GENERATION_CHOICES}.")
    return read_generation_config(file)
