"""Small valid models of every format, made as the tests make theirs; `tests/` and its rooms are on the path."""

from __future__ import annotations

import base64
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import family_cases
import gguf_cases
import numpy as np
import test_quantized as quantized
from test_mixtures_gguf import ARCHITECTURES, to_gguf

import gguf_files
import hf_folders
import lora_folders
from fuzzing import gguf_layout, safetensors_layout
from fuzzing.files import ModelFiles, read_files
from fuzzing.templates import TEMPLATES
from random_blocks import BLOCKS, random_blocks
from tokenizer_folders import FAMILIES, TEXT, trained
from tokentrail.checkpoints import open_checkpoint
from tokentrail.checkpoints.ggml_types import GGML_TYPES

GOLDEN = Path(family_cases.__file__).resolve().parents[1] / "golden"
TYPES = {form.name: form.id for form in GGML_TYPES.values()}
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GENERATION = {"eos_token_id": [2, 3], "temperature": 0.7, "top_p": 0.9, "top_k": 40, "do_sample": True}


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tokentrail-fuzz-")


def _cases(name: str) -> dict[str, Any]:
    return dict(json.loads((GOLDEN / f"{name}.json").read_text()))


# --- GGUF -----------------------------------------------------------------------------------------


def _with_type(data: bytes, name: str, seed: int = 0) -> bytes:
    """The file with its matrices in a type, drawn as bytes; those whose rows do not fit stay, and experts' biases."""
    layout, draw = gguf_layout.take_apart(data), np.random.default_rng(seed)
    kind = TYPES[name]
    for tensor in layout.tensors:
        fits = len(tensor.dimensions) >= 2 and tensor.dimensions[0] % GGML_TYPES[kind].block_size == 0
        if not fits or tensor.name.endswith(b".bias"):
            continue
        k, *rest = tensor.dimensions
        rows = int(np.prod(rest))
        if name in BLOCKS:
            tensor.data = random_blocks(name, rows, k, draw).tobytes()
        else:
            values = np.frombuffer(tensor.data, np.float32)
            tensor.data = (
                values.astype(np.float16) if name == "F16" else hf_folders.bfloat16(values)
            ).tobytes()
        tensor.kind = kind
    return gguf_layout.put_together(layout)


def _wide_llama(path: Path) -> bytes:
    """Rows of 256, which K types and grids need."""
    sizes = {
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 256,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.rope.dimension_count": 128,
    }
    shapes = {
        "attn_q": (256, 256),
        "attn_k": (128, 256),
        "attn_v": (128, 256),
        "attn_output": (256, 256),
        "ffn_gate": (256, 256),
        "ffn_up": (256, 256),
        "ffn_down": (256, 256),
        "attn_norm": (256,),
        "ffn_norm": (256,),
    }
    draw = np.random.default_rng(0)
    tensors = {f"blk.0.{name}.weight": draw.standard_normal(shape) / 16 for name, shape in shapes.items()}
    tensors |= {"token_embd.weight": draw.standard_normal((24, 256)), "output_norm.weight": np.ones(256)}
    gguf_files.write_model(
        path,
        tokens=[chr(97 + i) for i in range(24)],
        metadata=sizes,
        tensors={name: values.astype(np.float32) for name, values in tensors.items()},
    )
    return path.read_bytes()


def _gguf_tokenizers(folder: Path) -> Iterator[tuple[str, bytes]]:
    """A file for each kind of tokenizer that GGUF has."""
    template = {"tokenizer.chat_template": TEMPLATES["chatml"], "tokenizer.ggml.bos_token_id": 0}
    vocabulary = json.loads(trained("llama3"))["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in vocabulary["merges"]]
    for pre in ("llama-bpe", "qwen2", "deepseek-v3", "gpt-2", "smollm"):
        path = gguf_files.write_model(folder / "m", tokens=tokens, merges=merges, pre=pre, metadata=template)
        yield f"bpe-{pre}", path.read_bytes()
    pieces = ["<unk>", "<s>", "</s>", "<|user|>", "    ", "<pad>"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [*"▁abcdeé世.", "▁a", "ab", "▁ab", "cd", "▁世"]
    types = [2, 3, 3, 3, 4, 5] + [6] * 256 + [1] * (len(pieces) - 262)
    for kind in ("llama", "t5", "gemma4"):
        path = gguf_files.write_model(
            folder / "m",
            kind=kind,
            pre=None,
            merges=["a b", "▁ ab"] if kind == "gemma4" else None,
            tokens=pieces,
            types=types,
            scores=[-float(i) for i in range(len(pieces))],
            metadata={**template, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.bos_token_id": 1},
        )
        yield kind, path.read_bytes()


def gguf() -> Iterator[ModelFiles]:
    with _folder() as name:
        folder = Path(name)
        wide = _wide_llama(folder / "m")
        for kind in ("F32", "F16", "BF16", *BLOCKS):
            data = wide if kind == "F32" else _with_type(wide, kind)
            yield ModelFiles(f"type-{kind}", {"model.gguf": data}, "model.gguf")
        for label, case in gguf_cases.CASES.items():
            data = case.write(folder / "m").read_bytes()
            yield ModelFiles(f"arch-{label}", {"model.gguf": data}, "model.gguf")
            yield ModelFiles(f"arch-{label}-Q4_0", {"model.gguf": _with_type(data, "Q4_0")}, "model.gguf")
        for kind, data in _gguf_tokenizers(folder):
            yield ModelFiles(f"tokenizer-{kind}", {"model.gguf": data}, "model.gguf")


def gguf_experts() -> Iterator[ModelFiles]:
    saved = _cases("mixtures")
    with _folder() as name:
        for case, architecture in ARCHITECTURES.items():
            folder = Path(name) / case
            family_cases.write_folder(folder, saved[case]["config"], saved[case]["shapes"])
            source = open_checkpoint(folder)
            for single in (False, True) if architecture == "llama" else (False,):
                data = to_gguf(source, architecture, folder / "m.gguf", single=single).read_bytes()
                label = f"{case}-single" if single else case
                yield ModelFiles(label, {"model.gguf": data}, "model.gguf")
                for kind in ("Q4_0", "Q8_0", "MXFP4"):
                    files = {"model.gguf": _with_type(data, kind)}
                    yield ModelFiles(f"{label}-{kind}", files, "model.gguf")


def gguf_split() -> Iterator[ModelFiles]:
    tokens = [chr(97 + i) for i in range(24)]
    for count in (2, 4, 6):
        with _folder() as name:
            path = gguf_files.write_model(Path(name) / "m.gguf", tokens=tokens, split_tensors=count)
            opened = path.name if count % 2 else ""
            yield ModelFiles(f"{count}-a-part", read_files(path.parent), opened)


# --- Hugging Face folders -------------------------------------------------------------------------


def _small_tokenizer(size: int) -> dict[str, bytes]:
    """A tokenizer of few tokens, with a chat template."""
    texts = ["<s>", "<|im_end|>", "</s>", *(chr(97 + i) for i in range(26)), "Ġ", "th", "he", "ab"]
    texts += [chr(0x100 + i) for i in range(size)]
    added = [
        {"id": id, "content": texts[id], "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for id in range(3)
    ]
    merges = ["t h", "h e", "a b"] if size >= 33 else []
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: id for id, text in enumerate(texts[:size])},
            "merges": merges,
        },
    }
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATES["chatml"]}
    return {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
        "generation_config.json": json.dumps(GENERATION).encode(),
    }


def _in_type(data: bytes, dtype: str) -> bytes:
    layout = safetensors_layout.take_apart(data)
    for tensor in layout.tensors:
        values = np.frombuffer(tensor.data, np.float32)
        tensor.data = (values.astype(np.float16) if dtype == "F16" else hf_folders.bfloat16(values)).tobytes()
        tensor.dtype = dtype
    return safetensors_layout.put_together(*safetensors_layout.header_of(layout))


def safetensors() -> Iterator[ModelFiles]:
    for group in ("families", "mixtures"):
        for index, (case, saved) in enumerate(_cases(group).items()):
            with _folder() as name:
                folder = family_cases.write_folder(Path(name) / "m", saved["config"], saved["shapes"])
                files = read_files(folder) | _small_tokenizer(saved["config"]["vocab_size"])
            for dtype in ("F32", "BF16") if index % 2 else ("BF16", "F16"):
                stored = files["model.safetensors"]
                stored = stored if dtype == "F32" else _in_type(stored, dtype)
                engine = {"quantization": ("int8", "int4")[index % 2]} if index % 3 == 0 else {}
                yield ModelFiles(f"{case}-{dtype}", {**files, "model.safetensors": stored}, engine=engine)


def sharded() -> Iterator[ModelFiles]:
    for shards in (2, 4, 12):
        with _folder() as name:
            folder = hf_folders.write_folder(Path(name) / "m", shards=shards)
            files = read_files(folder) | _small_tokenizer(hf_folders.VOCAB)
            yield ModelFiles(f"{shards}-shards", files)
            del files["model.safetensors.index.json"]
            yield ModelFiles(f"{shards}-shards-without-index", files)


Parts = Callable[[int, int, int], dict[str, np.ndarray]]


def _quantized(
    parts: Parts, settings: dict[str, Any], *, hidden: int = 64, inner: int = 128
) -> dict[str, bytes]:
    """A Llama whose linear layers are stored in parts, given (rows, columns, seed)."""
    heads, kv_heads, head_dim, vocab = 4, 2, 16, hf_folders.VOCAB
    config = hf_folders.llama_config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        quantization_config=settings,
    )
    shapes = dict.fromkeys(LINEARS, (hidden, hidden))
    shapes |= {"k_proj": (kv_heads * head_dim, hidden), "v_proj": (kv_heads * head_dim, hidden)}
    shapes |= {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    draw = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "model.embed_tokens.weight": draw.standard_normal((vocab, hidden)).astype(np.float16),
        "lm_head.weight": draw.standard_normal((vocab, hidden)).astype(np.float16),
        "model.norm.weight": np.ones(hidden, np.float16),
    }
    for norm in ("input_layernorm", "post_attention_layernorm"):
        arrays[f"model.layers.0.{norm}.weight"] = np.ones(hidden, np.float16)
    for seed, (name, (n, k)) in enumerate(shapes.items()):
        within = "self_attn" if name in LINEARS[:4] else "mlp"
        for word, array in parts(n, k, seed).items():
            arrays[f"model.layers.0.{within}.{name}.{word}"] = array
    with _folder() as name:
        path = Path(name) / "model.safetensors"
        quantized.write(path, arrays)
        files = {path.name: path.read_bytes(), "config.json": json.dumps(config).encode()}
    return files | _small_tokenizer(vocab)


def awq() -> Iterator[ModelFiles]:
    for group in (32, 64, -1):
        settings = {**quantized.AWQ, "group_size": group}

        def parts(n: int, k: int, seed: int, group: int = group) -> dict[str, np.ndarray]:
            return quantized.Random(n, k, 4, k if group == -1 else group, seed).awq()

        yield ModelFiles(f"group-{group}", _quantized(parts, settings))


def gptq() -> Iterator[ModelFiles]:
    for bits in (2, 3, 4, 8):
        for v2 in (False, True):
            for scatter in (False, True):
                settings = {**quantized.GPTQ, "bits": bits, "desc_act": scatter}
                settings["checkpoint_format"] = "gptq_v2" if v2 else "gptq"

                def parts(
                    n: int, k: int, seed: int, bits: int = bits, v2: bool = v2, scatter: bool = scatter
                ) -> dict[str, np.ndarray]:
                    return quantized.Random(n, k, bits, 32, seed).gptq(v2=v2, scatter=scatter)

                label = f"{bits}-bits{'-v2' if v2 else ''}{'-desc_act' if scatter else ''}"
                yield ModelFiles(label, _quantized(parts, settings))


def compressed_tensors() -> Iterator[ModelFiles]:
    for bits in (4, 8):
        for symmetric in (False, True):
            for scatter in (False, True):

                def parts(
                    n: int,
                    k: int,
                    seed: int,
                    bits: int = bits,
                    symmetric: bool = symmetric,
                    scatter: bool = scatter,
                ) -> dict[str, np.ndarray]:
                    return quantized.Random(n, k, bits, 32, seed).packed(symmetric=symmetric, scatter=scatter)

                label = f"packed-{bits}-bits-{symmetric:d}{scatter:d}"
                yield ModelFiles(label, _quantized(parts, quantized.compressed(bits)))

    def int8(n: int, k: int, seed: int) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(seed)
        weight = draw.integers(-128, 128, (n, k)).astype(np.int8)
        return {"weight": weight, "weight_scale": quantized.bfloat16(draw.uniform(0.001, 0.01, (n, 1)))}

    yield ModelFiles("int8", _quantized(int8, quantized.compressed(8, layout="int-quantized")))

    def float8(n: int, k: int, seed: int) -> dict[str, np.ndarray]:
        return _float8(n, k, seed, "weight_scale", (n, 1))

    settings = quantized.compressed(8, "float", "float-quantized")
    yield ModelFiles("float8", _quantized(float8, settings))


def _float8(n: int, k: int, seed: int, word: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, 256, (n, k), dtype=np.uint8)
    codes[codes & 127 == 127] = 0
    scale = draw.uniform(0.0001, 0.001, shape).astype(np.float32).reshape(shape)
    return {"weight": quantized.typed(codes, "F8_E4M3"), word: scale}


def fp8() -> Iterator[ModelFiles]:
    def blocks(n: int, k: int, seed: int) -> dict[str, np.ndarray]:
        return _float8(n, k, seed, "weight_scale_inv", (-(-n // 128), -(-k // 128)))

    def small_blocks(n: int, k: int, seed: int) -> dict[str, np.ndarray]:
        return _float8(n, k, seed, "weight_scale_inv", (-(-n // 24), -(-k // 40)))

    yield ModelFiles("blocks", _quantized(blocks, quantized.FP8))
    yield ModelFiles(
        "small-blocks", _quantized(small_blocks, {**quantized.FP8, "weight_block_size": [24, 40]})
    )
    for shape in ((), (1,)):
        name = "tensor" if shape else "scalar"

        def whole(n: int, k: int, seed: int, shape: tuple[int, ...] = shape) -> dict[str, np.ndarray]:
            return _float8(n, k, seed, "weight_scale", shape)

        yield ModelFiles(name, _quantized(whole, {"quant_method": "fp8"}))

    def rows(n: int, k: int, seed: int) -> dict[str, np.ndarray]:
        return _float8(n, k, seed, "weight_scale", (n, 1))

    yield ModelFiles("rows", _quantized(rows, {"quant_method": "fbgemm_fp8"}))


def mxfp4() -> Iterator[ModelFiles]:
    saved = _cases("mixtures")["gpt_oss"]
    with _folder() as name:
        folder = family_cases.write_folder(Path(name) / "m", saved["config"], saved["shapes"])
        files = read_files(folder) | _small_tokenizer(saved["config"]["vocab_size"])
    layout, draw = safetensors_layout.take_apart(files["model.safetensors"]), np.random.default_rng(0)
    tensors = []
    for tensor in layout.tensors:
        stack = tensor.name.rpartition(".")[2]
        if stack not in ("gate_up_proj", "down_proj"):
            tensors.append(tensor)
            continue
        experts, k, n = tensor.shape  # stored transposed
        blocks = draw.integers(0, 256, (experts, n, k // 32, 16), dtype=np.uint8)
        scales = draw.integers(118, 124, (experts, n, k // 32), dtype=np.uint8)
        for word, array in (("blocks", blocks), ("scales", scales)):
            tensors.append(
                safetensors_layout.Stored(f"{tensor.name}_{word}", "U8", list(array.shape), array.tobytes())
            )
    layout.tensors = tensors
    config = {**saved["config"], "quantization_config": {"quant_method": "mxfp4"}}
    files["model.safetensors"] = safetensors_layout.put_together(*safetensors_layout.header_of(layout))
    files["config.json"] = json.dumps(config).encode()
    yield ModelFiles("gpt_oss", files)


# --- adapters, tokenizers, templates --------------------------------------------------------------


def lora() -> Iterator[ModelFiles]:
    with _folder() as name:
        folder = hf_folders.write_folder(Path(name) / "m")
        config = open_checkpoint(folder).config
        base = read_files(folder) | _small_tokenizer(hf_folders.VOCAB)
        path = Path(name) / "m.gguf"
        gguf_files.write_model(path, tokens=[chr(97 + i) for i in range(24)])
        whole = path.read_bytes()
        for index, (rank, parts) in enumerate(((4, "q k v o gate up down"), (1, "q v"), (16, "up down"))):
            settings = {"use_rslora": index == 1, "alpha_pattern": {"q_proj": 8}} if index else {}
            adapter = Path(name) / f"a{index}"
            lora_folders.write_adapter(
                adapter, lora_folders.random_pairs(config, rank=rank, parts=parts), **settings
            )
            files = {f"adapter/{key}": data for key, data in read_files(adapter).items()}
            engine = {"lora": {"a": "adapter"}}
            yield ModelFiles(f"folder-{index}", base | files, "", tuple(files), engine)
            yield ModelFiles(
                f"gguf-{index}", {"model.gguf": whole} | files, "model.gguf", tuple(files), engine
            )


def _text_base() -> dict[str, bytes]:
    """A model with room for the vocabularies of the tests."""
    tensors = hf_folders.llama_tensors()
    draw = np.random.default_rng(0)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = draw.standard_normal((1000, hf_folders.HIDDEN)).astype(np.float32)
    with _folder() as name:
        config = hf_folders.llama_config(vocab_size=1000)
        return read_files(hf_folders.write_folder(Path(name) / "m", config=config, tensors=tensors))


def tokenizer() -> Iterator[ModelFiles]:
    base = _text_base()
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    config = {"tokenizer_config.json": json.dumps(settings).encode()}

    def model(name: str, files: dict[str, bytes]) -> ModelFiles:
        files = config | files
        return ModelFiles(name, base | files, "", tuple(files), text_only=True)

    for family in FAMILIES:
        yield model(family, {"tokenizer.json": trained(family).encode()})
    bpe = json.loads(trained("qwen2"))["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    vocab = json.dumps(bpe["vocab"]).encode()
    added = json.dumps({"<|im_start|>": len(bpe["vocab"]), "<|im_end|>": len(bpe["vocab"]) + 1}).encode()
    lines = ("#version: 0.2\n" + "\n".join(merges) + "\n").encode()
    yield model("bpe-files", {"vocab.json": vocab, "merges.txt": lines, "added_tokens.json": added})
    ranks = [bytes([byte]) for byte in range(256)]
    ranks += [word.encode() for word in ("th", "he", "the", " the", "in", "世", "世界", " q", "qu")]
    tiktoken = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
    yield model("tiktoken", {"qwen.tiktoken": tiktoken})
    yield model("tiktoken-model", {"tokenizer.model": tiktoken})
    for name, data in _sentencepieces():
        yield model(name, {"tokenizer.model": data})


def _sentencepieces() -> Iterator[tuple[str, bytes]]:
    import sentencepiece

    for kind in ("bpe", "unigram"):
        for extra in ({}, {"byte_fallback": True, "user_defined_symbols": ["<|im|>", "▁▁▁▁", "fox"]}):
            out = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(TEXT.splitlines()),
                model_writer=out,
                model_type=kind,
                vocab_size=420 if extra else 260,
                character_coverage=0.98,
                hard_vocab_limit=False,
                minloglevel=2,
                **extra,
            )
            yield f"sentencepiece-{kind}-{len(extra)}", out.getvalue()


def template() -> Iterator[ModelFiles]:
    base = _text_base() | _small_tokenizer(33)
    for name, source in TEMPLATES.items():
        files = {"chat_template.jinja": source.encode()}
        yield ModelFiles(name, base | files, "", tuple(files), text_only=True)


FORMATS: dict[str, Callable[[], Iterator[ModelFiles]]] = {
    "gguf": gguf,
    "gguf-experts": gguf_experts,
    "gguf-split": gguf_split,
    "safetensors": safetensors,
    "sharded": sharded,
    "fp8": fp8,
    "mxfp4": mxfp4,
    "awq": awq,
    "gptq": gptq,
    "compressed-tensors": compressed_tensors,
    "lora": lora,
    "tokenizer": tokenizer,
    "template": template,
}


def models_of(format: str) -> list[ModelFiles]:
    random.seed(0)
    return list(FORMATS[format]())
