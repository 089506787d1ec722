"""What a chat template makes of a short conversation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tokentrail.checkpoints import Checkpoint

SAMPLE = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
"""Every role that templates commonly know, once."""


def rendered(checkpoint: Checkpoint, override: Path | None) -> str:
    """What the model's template, or the one in the file `override`, makes of `SAMPLE`."""
    from tokentrail.text import ChatTemplate

    source = checkpoint.tokenizer
    texts = {
        name: "" if id is None else source.tokens[id]
        for name, id in (("bos_token", source.bos_token_id), ("eos_token", source.eos_token_id))
    }
    if override is None:
        template = ChatTemplate(checkpoint.chat_template, origin=str(checkpoint.path), **texts)
    else:
        template = ChatTemplate(_read(override), origin=str(override), **texts)
    return template.render(SAMPLE, add_generation_prompt=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--chat-template") from None
