"""The facts for a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tokentrail.cli.terminal import console as stdout
from tokentrail.cli.units import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PEOPLES_NAMES = {"feed_forward": "feed-forward", "shared_experts": "shared experts"}


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print the facts; to stdout unless another `console` is given."""
    from rich.text import Text

    console = console or stdout()
    name, path = result["name"], result["path"]
    console.print(
        *([Text(name, style="bold")] if name != path else []), Text(path, style="dim"), soft_wrap=True
    )
    _print_grid(console, _model_rows(result))
    console.print()
    console.print(_parts(result))
    console.print()
    console.print(_types(result))
    console.print()
    console.print(_formats(result))
    console.print()
    console.print(Text("On this machine", style="bold"))
    _print_grid(console, _machine_rows(result))
    if "tokens" in result:
        from tokentrail.cli.inspect.tokens import chips

        console.print()
        console.print(chips(result["tokens"]))
    if "rendered_template" in result:
        console.print()
        console.print(Text(result["rendered_template"]))


def _print_grid(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(Text(name, style="cyan"), Text(value))
    console.print(grid)


def _table(*columns: str) -> Table:
    """The first column holds words, the others numbers."""
    from rich.table import Table

    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _model_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    kv = result["kv_bytes_per_token"]
    context, window = result["context_length"], result["sliding_window"]
    attention = f"{result['heads']} heads of {result['head_dim']}, {result['kv_heads']} for keys and values"
    if window:
        attention += f", window {window:,} in {result['windowed_layers']} layers"
    rope = result["rope"]
    scaling = "" if rope["scaling"] == "none" else f", {rope['scaling']} scaling"
    ends = ", ".join(f"{text} ({id})" if text else id for id, text in result["eos_token_ids"].items())
    kind, pre = result["tokenizer"]["kind"], result["tokenizer"]["pre"]
    widths = f"hidden {result['hidden_size']:,}, feed-forward {result['intermediate_size']:,}"
    if result["experts"]:
        widths += f", {result['experts_per_token']} of {result['experts']} experts a token"
    cache = ", ".join(f"{format_size(nbytes)} in {dtype}" for dtype, nbytes in kv.items())
    if window:
        cache += "; windows save none of it yet"
    templates = "yes" if result["has_chat_template"] else "none"
    if result["named_chat_templates"]:
        templates += f", and by name: {', '.join(result['named_chat_templates'])}"
    family = result["model_type"]
    if family.replace("-", "_") != result["architecture"]:
        family += f" (runs as {result['architecture']})"
    return [
        ("family", f"{family}, {result['layers']} layers, {widths}"),
        ("attention", attention),
        ("context", f"{context:,} tokens, RoPE base {rope['theta']:,.0f}{scaling}"),
        ("KV cache", f"a token: {cache}"),
        ("vocabulary", f"{result['vocab_size']:,} tokens, {kind}{' / ' + pre if pre else ''}"),
        ("end of answer", ends or "no token ends it"),
        ("chat template", templates),
        *_sampling_rows(result.get("sampling_defaults", {})),
        *_quantization_rows(result),
        ("on disk", f"{format_size(result['file_bytes'])}, tensors {format_size(result['tensor_bytes'])}"),
    ]


def _parts(result: dict[str, Any]) -> Table:
    total, active = result["parameters"], result["active_parameters"]
    table = _table("parameters", "", "share")
    for part, count in result["parameters_by_part"].items():
        name = _PEOPLES_NAMES.get(part, part)
        if part == "embedding" and result["tied_embeddings"]:
            name = "embedding, also the head"
        table.add_row(name, f"{count:,}", f"{count / total:.1%}")
    table.add_row("all", f"{total:,}", "")
    if active != total:
        table.add_row("active for a token", f"{active:,}", f"{active / total:.1%}")
    return table


def _types(result: dict[str, Any]) -> Table:
    table = _table("stored as", "tensors", "parameters", "bytes", "bits each")
    for kind, entry in result["tensors_by_type"].items():
        bits = 8 * entry["bytes"] / entry["parameters"]
        size = format_size(entry["bytes"])
        table.add_row(_named(kind), f"{entry['tensors']:,}", f"{entry['parameters']:,}", size, f"{bits:.2f}")
    return table


def _formats(result: dict[str, Any]) -> Table:
    memory = result["memory"]
    table = _table("weights in memory", "", "bytes")
    rows = [("as they are", memory["weights"])]
    for name, entry in memory["weights_by_format"].items():
        label = name if name == entry["format"] else f"{name} ({entry['format']})"
        rows.append((f"all in {label}", entry["bytes"]))
    rows += [(f"with --quantization {kind}", n) for kind, n in memory["weights_quantized_on_loading"].items()]
    for label, nbytes in rows:
        table.add_row(label, format_size(nbytes), f"{nbytes:,}")
    return table


def _sampling_rows(defaults: dict[str, Any]) -> list[tuple[str, str]]:
    """What requests that do not say are answered with, where the model's makers recommend something."""
    if not defaults:
        return []
    return [("sampling", ", ".join(f"{name} {value:g}" for name, value in defaults.items()) + " by default")]


def _quantization_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """How a folder is quantized (of GGUF files the types say it), and what quantizing on loading loses."""
    rows = []
    if result["quantization"] not in ("", "gguf"):
        rows.append(("quantized", f"by {result['quantization']}"))
    if kind := result.get("quantized_on_loading"):
        losses = result.get("quantization_loss", {})
        parts = ", ".join(f"{part.replace('_', '-')} {loss:.1%}" for part, loss in sorted(losses.items()))
        rows.append(
            ("quantized", f"on loading, {kind}" + (f"; relative error of weights: {parts}" if parts else ""))
        )
    return rows


def _named(format: str) -> str:
    """`G4_128`, as the formats of AWQ, GPTQ and their kin are called inside, in words."""
    from tokentrail.checkpoints.formats import grouped_format

    grouped = grouped_format(format)
    return format if grouped is None else f"int{grouped.bits}, groups of {grouped.group}"


def _machine_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    memory, machine = result["memory"], result["machine"]
    longest = machine["longest_context"]
    draft = f", draft model {format_size(memory['draft'])}" if memory["draft"] else ""
    rows = [
        ("memory", f"{format_size(machine['free_bytes'])} free, {format_size(machine['usable_bytes'])} may be used"),
        ("taken", f"weights {format_size(memory['weights'])}, buffers {format_size(memory['buffers'])}{draft}, and "
                  f"{format_size(memory['kv_bytes_per_token'])} of {memory['kv_cache_dtype']} KV cache a token"),
    ]  # fmt: skip
    if longest:
        whole = " (the model's whole context)" if longest == result["context_length"] else ""
        batches = ", or ".join(
            f"{count:,} of {int(tokens):,} tokens" for tokens, count in machine["most_sequences"].items()
        )
        rows += [("longest context", f"{longest:,} tokens{whole}"), ("most sequences", batches)]
    served = machine["as_served"]
    if "error" in served:
        rows.append(("served", f"not: {served['error']}"))
    else:
        cache = (
            f"{format_size(served['kv_cache_bytes'])} of KV cache for {served['kv_cache_tokens']:,} tokens"
        )
        rows.append(("served", f"with {cache}: {format_size(served['total_bytes'])} in all"))
    best = machine["at_best"]
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] != 1)}, {machine['isa']}"
    if best is None:
        return [("cores", threads), *rows]
    decode = ", ".join(
        f"{entry['tokens_per_second']:,.0f} for {sequences} ({entry['bound_by']})"
        for sequences, entry in best["decode"].items()
    )
    prompt = best["prompt"]
    return [
        ("cores", f"{threads}, reading {best['memory_bytes_per_second'] / 1e9:.1f} GB/s"),
        *rows,
        ("at best", f"tokens/s of answers behind {best['context']:,} tokens: {decode}"),
        (
            "",
            f"tokens/s of prompts of {prompt['tokens']:,}: {prompt['tokens_per_second']:,.0f} ({prompt['bound_by']})",
        ),
    ]
