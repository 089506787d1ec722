"""Ways to damage a model's files: of what a format is made of, and blindly. All follow from a `Random` alone."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing import gguf_layout, safetensors_layout, templates
from fuzzing.files import ModelFiles
from tokentrail import checkpoints
from tokentrail.checkpoints.ggml_types import GGML_TYPES, REMOVED_TYPES
from tokentrail.checkpoints.safetensors import BITS

INTEGERS = [
    *(
        0,
        1,
        2,
        3,
        5,
        7,
        8,
        15,
        16,
        17,
        31,
        32,
        33,
        63,
        64,
        100,
        127,
        128,
        255,
        256,
        1000,
        1024,
        4096,
        65535,
        65536,
    ),
    *(
        10**6,
        2**24,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**40,
        2**62,
        2**63 - 1,
        2**63,
        2**64 - 1,
        10**30,
        10**400,
    ),
    *(-1, -(2**31), -(2**63)),
]
FLOATS = [
    *(
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        1e-45,
        1e-30,
        1e-5,
        1e5,
        1e12,
        1e38,
        1e308,
        -1e308,
        3.4e38,
        65504.0,
        65520.0,
    ),
    *(1e6, 255.99999, float("inf"), float("-inf"), float("nan")),
]
TEXTS = [
    *(
        "",
        " ",
        "a",
        "none",
        "null",
        "0",
        "1",
        "llama",
        "qwen2",
        "gemma3",
        "gpt-oss",
        "yarn",
        "linear",
        "longrope",
    ),
    *("llama3", "dynamic", "default", "silu", "gelu_pytorch_tanh", "int4", "F8_E4M3", "a" * 5000, "\0", "\n"),
    *("\x1b[31m", "\r\nX", "\u202e", "\ufeff", "世", "../../etc/passwd", "/etc/passwd", "model.safetensors"),
    *("(a+)+$", "(", "{{", "{% for x in range(10**9) %}{% endfor %}", "<0x00>", "<0xZZ>", "▁", "<s>", "</s>"),
    *("re:.*", "re:(a+)+$", "re:(.*)*(.*)*x", "re:" + ".*" * 40 + "x"),
]


def _keys_in_sources() -> list[str]:
    """Whatever looks like a key in the readers' own source: what they might look for."""
    found: set[str] = set()
    for path in sorted(Path(checkpoints.__file__).parent.glob("*.py")):
        found |= set(re.findall(r'"([a-z][a-z0-9_.]{2,40})"', path.read_text(encoding="utf-8")))
    return sorted(found)


KEYS = _keys_in_sources()


def damaged(draw: random.Random, model: ModelFiles) -> ModelFiles:
    """One to four changes; or, that more may run, other values of tensors alone."""
    weights = [
        name for name in model.damaged or tuple(model.files) if name.endswith((".gguf", ".safetensors"))
    ]
    if weights and draw.random() < 0.35:
        return _of_bytes(_values_only)(draw, model, draw.choice(weights))
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        names = [name for name in model.damaged or tuple(model.files) if model.files.get(name)]
        if not names:
            return model
        weights = [3 if name.endswith((".gguf", ".safetensors")) else 1 for name in names]
        name = draw.choices(names, weights)[0]
        model = _choose(draw, name)(draw, model, name)
    return model


def _choose(draw: random.Random, name: str) -> Callable[[random.Random, ModelFiles, str], ModelFiles]:
    if draw.random() < 0.03:
        return _whole_file
    if draw.random() < 0.2:
        return _of_bytes(blind)
    if name.endswith(".gguf"):
        return _of_bytes(gguf)
    if name.endswith(".safetensors"):
        return _of_bytes(safetensors)
    if name.endswith(".json"):
        return _of_bytes(json_file)
    if name.endswith(".jinja"):
        return _of_bytes(template)
    if name.endswith("tokenizer.model"):
        return _of_bytes(lines if draw.random() < 0.1 else protocol_buffer)
    return _of_bytes(lines)


def _of_bytes(
    change: Callable[[random.Random, bytes], bytes],
) -> Callable[[random.Random, ModelFiles, str], ModelFiles]:
    def apply(draw: random.Random, model: ModelFiles, name: str) -> ModelFiles:
        try:
            content = change(draw, model.files[name])
        except (
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            ArithmeticError,
            LookupError,
            MemoryError,
            RecursionError,
        ):
            content = blind(draw, model.files[name])  # it has been damaged beyond taking apart
        except Exception as error:
            if type(error).__name__ != "error":  # struct's
                raise
            content = blind(draw, model.files[name])
        return model.changed({**model.files, name: content})

    return apply


def _whole_file(draw: random.Random, model: ModelFiles, name: str) -> ModelFiles:
    files = dict(model.files)
    kind = draw.randrange(4)
    if kind == 0:
        del files[name]
    elif kind == 1:
        files[name] = b""
    elif kind == 2:
        files[name] = files[draw.choice(sorted(files))]
    else:
        files[
            draw.choice(
                (
                    "model.safetensors",
                    "pytorch_model.bin",
                    "model.gguf",
                    "b.gguf",
                    "tokenizer.json",
                    "x.safetensors",
                )
            )
        ] = files[name]
    return model.changed(files)


# --- blindly --------------------------------------------------------------------------------------


def blind(draw: random.Random, data: bytes) -> bytes:
    content = bytearray(data)
    if not content:
        return draw.randbytes(draw.randrange(64))
    # Most that can go wrong is at the front.
    at = draw.randrange(min(len(content), draw.choice((64, 1024, 8192, len(content)))))
    kind = draw.randrange(9)
    if kind == 0:
        for _ in range(draw.randrange(1, 9)):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        content[at] ^= 1 << draw.randrange(8)
    elif kind == 2:
        content[at] = draw.randrange(256)
    elif kind == 3:
        value = draw.choice(INTEGERS) % 2**64
        patch = value.to_bytes(8, "little")[: draw.choice((1, 2, 4, 8))]
        content[at : at + len(patch)] = patch
    elif kind == 4:
        del content[at:]
    elif kind == 5:
        del content[at : at + draw.randrange(1, 65)]
    elif kind == 6:
        content[at:at] = draw.randbytes(draw.randrange(1, 65))
    elif kind == 7:
        other = draw.randrange(len(content))
        size = draw.randrange(1, 4097)
        content[at : at + size] = content[other : other + size]
    else:
        content += draw.randbytes(draw.randrange(1, 4097)) if draw.random() < 0.5 else content[:at]
    return bytes(content)


def _bytes_of_values(draw: random.Random, data: bytes) -> bytes:
    """Other values for a tensor: what is no number, what is largest, anything."""
    kind = draw.randrange(6)
    if kind == 0:
        return b"\xff" * len(data)
    if kind == 1:
        return bytes(len(data))
    if kind == 2:
        return draw.randbytes(len(data))
    if kind == 3:
        return (b"\x00\x7c" * (len(data) // 2 + 1))[: len(data)]  # infinity in half precision
    if kind == 4:
        return (b"\xff\xff\x7f\x7f" * (len(data) // 4 + 1))[: len(data)]  # the largest float
    content = bytearray(data)
    for _ in range(draw.randrange(1, 65)):
        if content:
            content[draw.randrange(len(content))] = draw.choice((0, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    return bytes(content)


def _resized(draw: random.Random, data: bytes, size: int) -> bytes | None:
    """The data made to take another size, where that is no more than a file of a test should have."""
    if not 0 <= size <= 1 << 22:
        return None
    return (data * (size // max(len(data), 1) + 1))[:size] if data else bytes(size)


def _other_shape(draw: random.Random, shape: list[int]) -> list[int]:
    shape = list(shape)
    kind = draw.randrange(7)
    if not shape or kind == 0:
        shape.insert(draw.randrange(len(shape) + 1), draw.choice((0, 1, 1, 2, 3)))
        return shape
    at = draw.randrange(len(shape))
    if kind == 1:
        draw.shuffle(shape)
    elif kind == 2:
        shape[at] = draw.choice(INTEGERS)
    elif kind == 3:
        shape[at] += draw.choice((-32, -8, -1, 1, 8, 32))
    elif kind == 4:
        shape[at] *= 2
    elif kind == 5:
        shape[at] //= 2
    else:
        del shape[at]
    return shape


def _other_name(draw: random.Random, name: str, names: list[str]) -> str:
    kind = draw.randrange(4)
    if kind == 0:
        return draw.choice(names)
    if kind == 1:
        return re.sub(r"\d+", lambda match: str(draw.choice((0, 1, 2, 5, 99, 10**6, 10**20))), name)
    if kind == 2:
        return name.replace("weight", "bias") if "weight" in name else name + ".weight"
    return name + draw.choice((".", "x", "\n", ".weight", "\x1b[1m", "_blocks", ".qweight"))


def _values_only(draw: random.Random, data: bytes) -> bytes:
    if data[:4] == b"GGUF":
        layout = gguf_layout.take_apart(data)
        for tensor in draw.sample(layout.tensors, min(draw.randrange(1, 4), len(layout.tensors))):
            tensor.data = _bytes_of_values(draw, tensor.data)
        return gguf_layout.put_together(layout)
    stored = safetensors_layout.take_apart(data)
    for part in draw.sample(stored.tensors, min(draw.randrange(1, 4), len(stored.tensors))):
        part.data = _bytes_of_values(draw, part.data)
    return safetensors_layout.put_together(*safetensors_layout.header_of(stored))


# --- GGUF -----------------------------------------------------------------------------------------


def gguf(draw: random.Random, data: bytes) -> bytes:
    layout = gguf_layout.take_apart(data)
    for _ in range(draw.choice((1, 1, 2))):
        draw.choice(
            (
                _gguf_value,
                _gguf_value,
                _gguf_value,
                _gguf_keys,
                _gguf_tensor,
                _gguf_tensor,
                _gguf_tensors,
                _gguf_header,
            )
        )(draw, layout)
    return gguf_layout.put_together(layout)


def _gguf_scalar(draw: random.Random, kind: int, value: Any) -> Any:
    if kind == gguf_layout.STRING:
        if draw.random() < 0.2:
            return draw.randbytes(draw.randrange(40))
        return draw.choice((draw.choice(TEXTS).encode(), value * 2, value[:-1], value + b"\xff"))
    if kind in (6, 12):
        return draw.choice(FLOATS)
    if kind == 7:
        return draw.choice((0, 1, 1 - value, 2))
    return draw.choice((draw.choice(INTEGERS), value + 1, value - 1, value * 2, value // 2, -value))


def _gguf_value(draw: random.Random, layout: gguf_layout.Layout) -> None:
    entry = draw.choice(layout.metadata)
    if entry.kind != gguf_layout.ARRAY:
        entry.value = _gguf_scalar(draw, entry.kind, entry.value)
        return
    kind, items = entry.value
    items = list(items)
    change = draw.randrange(6)
    if change == 0 and items:
        at = draw.randrange(len(items))
        items[at] = _gguf_scalar(draw, kind, items[at])
    elif change == 1:
        items = items[: draw.randrange(len(items) + 1)]
    elif change == 2:
        items += items[: draw.randrange(1, 50)]
    elif change == 3 and items:
        items = [_gguf_scalar(draw, kind, item) if draw.random() < 0.2 else item for item in items]
    elif change == 4:
        draw.shuffle(items)
    elif kind not in (gguf_layout.STRING, gguf_layout.ARRAY):
        kind = draw.choice([other for other in gguf_layout.SCALARS if other != kind])
    entry.value = kind, items


def _gguf_keys(draw: random.Random, layout: gguf_layout.Layout) -> None:
    entry = draw.choice(layout.metadata)
    at = layout.metadata.index(entry)
    kind = draw.randrange(6)
    if kind == 0:
        del layout.metadata[at]
    elif kind == 1:
        layout.metadata.append(copy.deepcopy(entry))
    elif kind == 2:
        entry.key = draw.choice(layout.metadata).key
    elif kind == 3 and entry.kind not in (gguf_layout.STRING, gguf_layout.ARRAY):
        entry.kind = draw.choice([*gguf_layout.SCALARS, 13, 99])
    elif kind == 4:  # the same model under another architecture
        architecture = layout.entry("general.architecture")
        if architecture is not None and isinstance(architecture.value, bytes):
            old, new = architecture.value, draw.choice(_ARCHITECTURES).encode()
            architecture.value = new
            for other in layout.metadata:
                if other.key.startswith(old + b"."):
                    other.key = new + other.key[len(old) :]
    else:
        prefix = layout.entry("general.architecture")
        head = prefix.value + b"." if prefix is not None and isinstance(prefix.value, bytes) else b""
        key = draw.choice((head, head, b"tokenizer.ggml.", b"")) + draw.choice(KEYS).encode()
        scalar = draw.choice((4, 5, 6, 7, 8, 10, gguf_layout.ARRAY))
        value: Any = draw.choice(TEXTS).encode()
        if scalar == gguf_layout.ARRAY:
            value = draw.choice(
                ((4, [1, 2, 3]), (6, FLOATS[:5]), (7, [0, 1]), (8, [b"a", b"b"]), (9, []), (4, []))
            )
        elif scalar != gguf_layout.STRING:
            value = draw.choice(FLOATS if scalar == 6 else (0, 1) if scalar == 7 else INTEGERS)
        layout.metadata.append(gguf_layout.Entry(key, scalar, value))


_ARCHITECTURES = (
    *(
        "llama",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3",
        "glm4",
        "chatglm",
        "phi3",
        "gpt-oss",
        "qwen2moe",
    ),
    *("qwen3moe", "ernie4_5", "ernie4_5-moe", "internlm2", "mistral3", "smollm3", "clip"),
)


def _gguf_tensor(draw: random.Random, layout: gguf_layout.Layout) -> None:
    tensor = draw.choice(layout.tensors)
    kind = draw.randrange(7)
    if kind < 2:
        tensor.data = _bytes_of_values(draw, tensor.data)
    elif kind == 2:
        tensor.dimensions = _other_shape(draw, tensor.dimensions)
    elif kind == 3:  # consistent: another shape or type, and data for it
        if draw.random() < 0.5:
            tensor.dimensions = _other_shape(draw, tensor.dimensions)
        else:
            tensor.kind = draw.choice(list(GGML_TYPES))
        size = gguf_layout.nbytes(tensor.dimensions, tensor.kind)
        tensor.data = _resized(draw, tensor.data, size) or tensor.data
    elif kind == 4:
        tensor.kind = draw.choice([*GGML_TYPES, *REMOVED_TYPES, 43, 2**32 - 1, 2**31])
    elif kind == 5:
        tensor.offset = draw.choice([*INTEGERS, *(32 * i for i in range(50))]) % 2**64
    else:
        tensor.name = _other_name(
            draw, tensor.name.decode("latin-1"), [t.name.decode("latin-1") for t in layout.tensors]
        ).encode()


def _gguf_tensors(draw: random.Random, layout: gguf_layout.Layout) -> None:
    kind = draw.randrange(5)
    tensor = draw.choice(layout.tensors)
    if kind == 0:
        layout.tensors.remove(tensor)
    elif kind == 1:
        layout.tensors.append(copy.deepcopy(tensor))
    elif kind == 2:  # exchange what two hold
        other = draw.choice(layout.tensors)
        tensor.name, other.name = other.name, tensor.name
    elif kind == 3:
        draw.shuffle(layout.tensors)
    else:  # all matrices in another type
        target = draw.choice(list(GGML_TYPES))
        for each in layout.tensors:
            if len(each.dimensions) > 1 and each.dimensions[0] % GGML_TYPES[target].block_size == 0:
                size = gguf_layout.nbytes(each.dimensions, target)
                resized = _resized(draw, each.data, size)
                if resized is not None:
                    each.kind, each.data = target, resized


def _gguf_header(draw: random.Random, layout: gguf_layout.Layout) -> None:
    kind = draw.randrange(3)
    counts = [len(layout.tensors), len(layout.metadata)]
    if kind == 0:
        layout.version = draw.choice((0, 1, 2, 3, 4, 3 << 24, 2**32 - 1))
    else:
        at = draw.randrange(2)
        counts[at] = draw.choice((counts[at] + 1, counts[at] - 1, draw.choice(INTEGERS) % 2**64))
        layout.counts = counts[0], counts[1]


# --- safetensors ----------------------------------------------------------------------------------


def safetensors(draw: random.Random, data: bytes) -> bytes:
    layout = safetensors_layout.take_apart(data)
    kind = draw.randrange(10)
    if kind < 6:
        _stored_tensor(draw, layout)
    elif kind < 8:
        _stored_tensors(draw, layout)
    header, stored = safetensors_layout.header_of(layout)
    if kind == 8:
        return safetensors_layout.put_together(_other_json(draw, header), stored)
    if kind == 9:
        return safetensors_layout.put_together(blind(draw, json.dumps(header).encode()), stored)
    return safetensors_layout.put_together(header, stored)


def _stored_tensor(draw: random.Random, layout: safetensors_layout.Layout) -> None:
    tensor = draw.choice(layout.tensors)
    kind = draw.randrange(7)
    if kind < 2:
        tensor.data = _bytes_of_values(draw, tensor.data)
    elif kind < 5:
        if kind < 4:
            tensor.shape = _other_shape(draw, tensor.shape)
        else:
            tensor.dtype = draw.choice(sorted(BITS))
        size = BITS[tensor.dtype]
        for length in tensor.shape:
            size *= length
        resized = _resized(draw, tensor.data, -(-size // 8))
        if resized is not None and draw.random() < 0.9:
            tensor.data = resized
    elif kind == 5:
        begin = draw.choice(INTEGERS)
        tensor.offsets = draw.choice(
            ([begin, begin + len(tensor.data)], [0, len(tensor.data)], [8, 4], [-1, 5])
        )
    else:
        tensor.name = _other_name(draw, tensor.name, [other.name for other in layout.tensors])


def _stored_tensors(draw: random.Random, layout: safetensors_layout.Layout) -> None:
    kind = draw.randrange(4)
    tensor = draw.choice(layout.tensors)
    if kind == 0:
        layout.tensors.remove(tensor)
    elif kind == 1:
        added = copy.deepcopy(tensor)
        added.name = _other_name(draw, tensor.name, [tensor.name])
        layout.tensors.append(added)
    elif kind == 2:
        other = draw.choice(layout.tensors)
        tensor.name, other.name = other.name, tensor.name
    else:  # all of a type in another
        source, target = tensor.dtype, draw.choice(("F32", "F16", "BF16", "F8_E4M3", "I8", "I32", "F64"))
        for each in layout.tensors:
            size = BITS[target]
            for length in each.shape:
                size *= length
            resized = _resized(draw, each.data, size // 8)
            if each.dtype == source and resized is not None:
                each.dtype, each.data = target, resized


# --- JSON -----------------------------------------------------------------------------------------


def json_file(draw: random.Random, data: bytes) -> bytes:
    value = json.loads(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        value = _other_json(draw, value)
    text = json.dumps(value, ensure_ascii=draw.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def any_json(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return draw.choice(INTEGERS)
    if kind == 2:
        return draw.choice(FLOATS)
    if kind == 3:
        return draw.choice(TEXTS)
    if kind == 4:
        return draw.choice((None, True, False))
    if kind == 5:
        return draw.choice(([], {}, ""))
    if kind == 6:
        return [any_json(draw, depth + 1) for _ in range(draw.randrange(5))]
    if kind == 7:
        return {draw.choice(KEYS): any_json(draw, depth + 1) for _ in range(draw.randrange(5))}
    deep: Any = 0
    for _ in range(draw.choice((50, 900, 3000))):
        deep = [deep] if draw.random() < 0.5 else {"a": deep}
    return deep


def _places(value: Any, limit: int = 4000) -> list[tuple[Any, Any]]:
    """(container, key) of all that is inside, the outermost first."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending and len(found) < limit:
        item = pending.pop(0)
        if isinstance(item, dict):
            found += [(item, key) for key in item]
            pending += list(item.values())
        elif isinstance(item, list):
            found += [(item, key) for key in range(min(len(item), 300))]
            pending += item[:300]
    return found


def _other_json(draw: random.Random, value: Any) -> Any:
    places = _places(value)
    if not places or draw.random() < 0.01:
        return any_json(draw)
    # The places near the root are few and matter most.
    container, key = (
        places[min(int(draw.expovariate(0.05)), len(places) - 1)]
        if draw.random() < 0.6
        else draw.choice(places)
    )
    kind = draw.randrange(9)
    old = container[key]
    if kind < 3:
        container[key] = any_json(draw)
    elif kind == 3:
        if type(old) is int:
            container[key] = draw.choice((old + 1, old - 1, old * 2, old // 2, -old, float(old), str(old)))
        elif isinstance(old, str):
            container[key] = draw.choice((old + "x", old[:-1], old * 200, [old], old.encode().hex()))
        elif isinstance(old, list):
            container[key] = draw.choice((old * 2, old[1:], old[:-1], old[::-1], [*old, any_json(draw)]))
        else:
            container[key] = [old]
    elif kind == 4:
        del container[key]
    elif kind == 5 and isinstance(container, dict):
        container[draw.choice(KEYS)] = any_json(draw)
    elif kind == 6 and isinstance(container, dict):
        container[draw.choice((*TEXTS, *KEYS))] = container.pop(key)
    elif kind == 7:
        other, place = draw.choice(places)
        if place in other if isinstance(other, dict) else place < len(other):
            container[key] = copy.deepcopy(other[place])
    else:
        container[key] = draw.choice((copy.deepcopy(value), any_json(draw)))
    return value


# --- texts, protocol buffers, templates -----------------------------------------------------------


def lines(draw: random.Random, data: bytes) -> bytes:
    parts = data.split(b"\n")
    at = draw.randrange(len(parts))
    kind = draw.randrange(7)
    if kind == 0:
        del parts[at]
    elif kind == 1:
        parts.insert(at, draw.choice(parts))
    elif kind == 2:
        parts[at] = draw.choice(
            (
                draw.choice(TEXTS).encode(),
                b"a",
                b"a b c",
                b"YQ== 5",
                b"YQ==",
                b"YQ== -1",
                b"= 1",
                b"\xff \xfe",
            )
        )
    elif kind == 3:
        draw.shuffle(parts)
    elif kind == 4:
        parts[at] = parts[at] * draw.choice((2, 50, 5000))
    elif kind == 5:
        del parts[at:]
    else:
        parts[at] = parts[at].replace(b" ", draw.choice((b"", b"\t", b"  ", b" 99999999999 ")))
    return b"\n".join(parts)


def _fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """(number, wire type, value as it stands) of a message."""

    def varint(at: int) -> int:
        while data[at] & 128:
            at += 1
        return at + 1

    def number(chunk: bytes) -> int:
        return sum((byte & 127) << 7 * i for i, byte in enumerate(chunk))

    found, at = [], 0
    while at < len(data):
        end = varint(at)
        tag = number(data[at:end])
        at = end
        if tag & 7 == 0:
            end = varint(at)
        elif tag & 7 == 2:
            start = varint(at)
            size = number(data[at:start])
            at, end = start, start + size
        else:
            end = at + (4 if tag & 7 == 5 else 8)
        found.append((tag >> 3, tag & 7, data[at:end]))
        at = end
    return found


def _varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _message(fields: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(
        _varint(number << 3 | wire) + (_varint(len(value)) if wire == 2 else b"") + value
        for number, wire, value in fields
    )


def protocol_buffer(draw: random.Random, data: bytes) -> bytes:
    fields = _fields(data)
    for _ in range(draw.choice((1, 1, 3, 20))):
        # The settings stand behind the pieces.
        at = (
            draw.randrange(len(fields))
            if draw.random() < 0.5
            else max(len(fields) - 1 - draw.randrange(4), 0)
        )
        number, wire, value = fields[at]
        kind = draw.randrange(6)
        if kind == 0:
            del fields[at]
        elif kind == 1:
            fields.append(draw.choice(fields))
        elif kind == 2:
            fields[at] = draw.choice((number + 1, number - 1, 1)), wire, value
        elif kind == 3 and wire == 2:
            fields[at] = number, wire, blind(draw, value)
        elif wire == 2:
            inner = _fields(value) or [(1, 2, b"")]
            place = draw.randrange(len(inner))
            inner_number, inner_wire, inner_value = inner[place]
            if inner_wire == 0:
                inner_value = _varint(draw.choice(INTEGERS))
            elif inner_wire == 2:
                inner_value = draw.choice(
                    (draw.choice(TEXTS).encode(), blind(draw, inner_value), inner_value * 2, b"")
                )
            else:
                inner_value = draw.choice((draw.randbytes(len(inner_value)), b"\xff" * len(inner_value)))
            inner[place] = inner_number, inner_wire, inner_value
            if draw.random() < 0.2:
                inner.append((draw.choice((2, 3, 4, 35, 40, 41, 42)), 0, _varint(draw.choice(INTEGERS))))
            fields[at] = number, wire, _message(inner)
        if not fields:
            break
    return _message(fields)


def template(draw: random.Random, data: bytes) -> bytes:
    if draw.random() < 0.6:
        return templates.hostile(draw).encode("utf-8", "surrogatepass")
    parts = re.split(rb"(\{[{%].*?[%}]\})", data)
    at = draw.randrange(len(parts))
    kind = draw.randrange(4)
    if kind == 0:
        del parts[at]
    elif kind == 1:
        parts.insert(at, draw.choice(parts))
    elif kind == 2:
        parts.insert(at, templates.statement(draw, 3).encode())
    else:
        parts[at] = re.sub(
            rb"\bm(essages?)?\b|'[^']*'", lambda m: templates.expression(draw, 3).encode(), parts[at], count=1
        )
    return b"".join(parts)
