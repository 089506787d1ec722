"""`tokentrail inspect`: what a model file holds, how it splits a text, what its chat template writes."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.terminal import console as stdout
from tokentrail.cli.terminal import print_json, typed
from tokentrail.cli.units import format_size

if TYPE_CHECKING:
    from tokentrail.checkpoints import Checkpoint
    from tokentrail.text import Tokenizer

# The conversation that shows a template; every role that templates commonly know, once.
SAMPLE = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
CHIP_STYLES = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)
_WHITE_SPACE = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "·"}


def inspect(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="GGUF file. Left out: the demo model.", show_default=False),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="TEXT", help="Show how TEXT is split into tokens.")
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Show what the chat template makes of a short conversation.")
    ] = False,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            "--chat-template",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Show this Jinja2 template instead of the model's.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in a model file: sizes, types, context, tokens, template."""
    from tokentrail.checkpoints import demo_model_path, open_checkpoint

    checkpoint = open_checkpoint(model if model is not None else demo_model_path())
    result = facts(checkpoint)
    if tokens is not None:
        from tokentrail.text import Tokenizer

        result["tokens"] = split(Tokenizer.from_checkpoint(checkpoint), typed(tokens, "--tokens"))
    if template or chat_template is not None:
        result["rendered_template"] = rendered(checkpoint, chat_template)
    if as_json:
        print_json(result)
    else:
        _print(result)


def facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the file says, as `--json` prints it. Sizes in bytes."""
    from tokentrail.ops.backend import KV_DTYPES, KvLayout

    config = checkpoint.config
    formats: dict[str, dict[str, int]] = {}
    parts = {"embed": 0, "layers": 0, "head": 0, "other": 0}
    for name, tensor in checkpoint.tensors.items():
        count = 1
        for size in tensor.shape:
            count *= size
        entry = formats.setdefault(tensor.format, {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += count
        entry["bytes"] += tensor.nbytes
        part = name.split(".")[0]
        parts[part if part in parts else "other"] += count
    kv = {
        dtype: KvLayout(dtype, config.num_layers, 1, 16, config.num_kv_heads, config.head_dim)
        for dtype in KV_DTYPES
    }
    source = checkpoint.tokenizer
    return {
        "path": str(checkpoint.path),
        "file_bytes": checkpoint.path.stat().st_size,
        "name": checkpoint.name,
        "architecture": config.architecture,
        "parameters": sum(parts.values()),
        "parameters_by_part": {part: count for part, count in parts.items() if count},
        "tensor_bytes": checkpoint.nbytes,
        "tensors_by_type": dict(sorted(formats.items(), key=lambda item: -item[1]["bytes"])),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "tied_embeddings": config.tie_embeddings,
        "context_length": config.max_position,
        "rope": {"theta": config.rope.theta, "scaling": config.rope.scaling},
        "sliding_window": config.sliding_window,
        "kv_bytes_per_token": {dtype: layout.bytes_per_token for dtype, layout in kv.items()},
        "tokenizer": {"kind": source.kind, "pre": source.pre},
        "bos_token_id": source.bos_token_id,
        "eos_token_ids": {str(id): source.tokens[id] for id in checkpoint.eos_token_ids},
        "has_chat_template": checkpoint.chat_template is not None,
    }


def split(tokenizer: Tokenizer, text: str) -> list[dict[str, Any]]:
    """`text` as tokens: id, text, and the bytes in hexadecimal; special tokens in it are parsed."""
    result = []
    for id in tokenizer.encode(text):
        data = tokenizer.token_bytes(id)
        result.append(
            {
                "id": id,
                "text": data.decode("utf-8", "replace"),
                "bytes": data.hex(),
                "special": tokenizer.is_special(id),
            }
        )
    return result


def read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--chat-template") from None


def rendered(checkpoint: Checkpoint, override: Path | None) -> str:
    """What the template makes of `SAMPLE`."""
    from tokentrail.text import ChatTemplate

    source = checkpoint.tokenizer
    bos, eos = ("" if id is None else source.tokens[id] for id in (source.bos_token_id, source.eos_token_id))
    if override is None:
        template = ChatTemplate(
            checkpoint.chat_template, origin=str(checkpoint.path), bos_token=bos, eos_token=eos
        )
    else:
        template = ChatTemplate(read_template(override), origin=str(override), bos_token=bos, eos_token=eos)
    return template.render(SAMPLE, add_generation_prompt=True)


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    console.print(Text(result["name"], style="bold"), Text(result["path"], style="dim"), soft_wrap=True)
    parts = ", ".join(f"{part} {count:,}" for part, count in result["parameters_by_part"].items())
    kv, small = (result["kv_bytes_per_token"][dtype] for dtype in ("bfloat16", "int8"))
    context = result["context_length"]
    attention = f"{result['heads']} heads of {result['head_dim']}, {result['kv_heads']} for keys and values"
    window = f", window {result['sliding_window']:,}" if result["sliding_window"] else ""
    rope = result["rope"]
    scaling = "" if rope["scaling"] == "none" else f", {rope['scaling']} scaling"
    ends = ", ".join(f"{text} ({id})" for id, text in result["eos_token_ids"].items())
    kind, pre = result["tokenizer"]["kind"], result["tokenizer"]["pre"]
    widths = f"hidden {result['hidden_size']:,}, feed-forward {result['intermediate_size']:,}"
    tied = ", tied head" if result["tied_embeddings"] else ""
    rows = [
        ("architecture", f"{result['architecture']}, {result['layers']} layers, {widths}"),
        ("attention", attention + window),
        ("parameters", f"{result['parameters']:,} ({parts}{tied})"),
        ("context", f"{context:,} tokens, RoPE base {rope['theta']:,.0f}{scaling}"),
        (
            "KV cache",
            f"{format_size(kv)} a token in bfloat16, {format_size(kv * context)} for the context; "
            f"{format_size(small)} and {format_size(small * context)} in int8",
        ),
        ("vocabulary", f"{result['vocab_size']:,} tokens, {kind}{' / ' + pre if pre else ''}"),
        ("end of answer", ends or "no token ends it"),
        ("chat template", "yes" if result["has_chat_template"] else "none"),
        ("file", f"{format_size(result['file_bytes'])}, tensors {format_size(result['tensor_bytes'])}"),
    ]  # fmt: skip
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(Text(name, style="cyan"), Text(value))
    console.print(grid)
    table = Table("type", "tensors", "parameters", "bytes", "bits each", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, entry in result["tensors_by_type"].items():
        bits = 8 * entry["bytes"] / entry["parameters"]
        size = format_size(entry["bytes"])
        table.add_row(kind, f"{entry['tensors']:,}", f"{entry['parameters']:,}", size, f"{bits:.2f}")
    console.print()
    console.print(table)
    if "tokens" in result:
        console.print()
        console.print(_chips(result["tokens"]))
    if "rendered_template" in result:
        console.print()
        console.print(Text(result["rendered_template"]))


def _chips(tokens: list[dict[str, Any]]) -> Any:
    """Tokens one after another, coloured in turn, each with its id; those that share a character together, as
    `我 = <E6><88> 19805 + <91> 235`."""
    from rich.text import Text

    line = Text()
    index = 0
    for group in characters(tokens):
        if len(group) > 1:
            line.append(f"{visible(b''.join(bytes.fromhex(token['bytes']) for token in group))} = ")
        for at, token in enumerate(group):
            line.append(" + " if at else "", style="dim")
            style = "white on red" if token["special"] else CHIP_STYLES[index % len(CHIP_STYLES)]
            line.append(visible(bytes.fromhex(token["bytes"])), style=style)
            line.append(f" {token['id']}", style="dim")
            index += 1
        line.append("  ")
    line.append(f"\n{len(tokens)} token{'s' * (len(tokens) != 1)}")
    return line


def characters(tokens: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Groups of tokens: those that one character is spread over, every other alone."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    group: list[dict[str, Any]] = []
    for token in tokens:
        group.append(token)
        text = decoder.decode(bytes.fromhex(token["bytes"]))
        if decoder.getstate()[0]:
            continue  # within a character
        if len(group) > 1 and "\ufffd" in text:
            yield from ([one] for one in group)  # it was none
        else:
            yield group
        group = []
    yield from ([one] for one in group)


def visible(data: bytes) -> str:
    """Text with its white space shown; bytes that are no whole character in hexadecimal."""
    shown = []
    for char in data.decode("utf-8", "surrogateescape"):
        if "\udc80" <= char <= "\udcff":
            shown.append(f"<{ord(char) - 0xDC00:02X}>")
        elif char in _WHITE_SPACE:
            shown.append(_WHITE_SPACE[char])
        else:
            shown.append(char if char.isprintable() else f"<U+{ord(char):04X}>")
    return "".join(shown)


def register(app: typer.Typer) -> None:
    app.command(cls=Command)(inspect)
