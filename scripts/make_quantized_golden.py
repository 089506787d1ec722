"""Write `tests/golden/gptqmodel.npz`: small checkpoints that gptqmodel quantized, and what it makes of them.

For each case: the .safetensors file and the `quantization_config` that gptqmodel wrote, and the logits that
`transformers` computes in float32 with the weights that gptqmodel's own layers dequantize. Needs all three.

    python scripts/make_quantized_golden.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

GOLDEN = Path(__file__).resolve().parent.parent / "tests/golden/gptqmodel.npz"
VOCAB, HIDDEN, INTERMEDIATE = 32, 64, 128
PROMPT = [3, 17, 4, 29, 11, 8, 25]
CASES = (
    # method, bits, group, symmetric, desc_act, layout
    ("gptq", 4, 32, True, False, "gptq"),
    ("gptq", 4, 32, False, True, "gptq"),
    ("gptq", 4, 32, False, True, "gptq_v2"),
    ("gptq", 4, -1, True, True, "gptq"),
    ("gptq", 2, 32, False, False, "gptq_v2"),
    ("gptq", 3, 32, True, False, "gptq"),
    ("gptq", 3, 32, False, True, "gptq_v2"),
    ("gptq", 8, 32, True, True, "gptq"),
    ("gptq", 8, 32, False, False, "gptq_v2"),
    ("awq", 4, 32, False, False, "gemm"),
)


def case_name(case: tuple[Any, ...]) -> str:
    method, bits, group, symmetric, desc_act, layout = case
    words = [f"{bits}bit", "row" if group == -1 else f"{group}", "sym" if symmetric else "asym"]
    return "-".join([layout if method == "gptq" else method, *words, *(["act"] if desc_act else [])])


def write_base(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.15,
    )
    LlamaForCausalLM(config).to(torch.float16).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w0", pad_token="w1", eos_token="w2"
    ).save_pretrained(folder)


def quantize(base: Path, out: Path, case: tuple[Any, ...]) -> None:
    method, bits, group, symmetric, desc_act, layout = case
    config = QuantizeConfig(
        bits=bits, group_size=group, sym=symmetric, desc_act=desc_act, format=layout, quant_method=method
    )
    generator = torch.Generator().manual_seed(1)
    samples = torch.randint(0, VOCAB, (64, 64), generator=generator).tolist()
    model = GPTQModel.load(str(base), config, backend=BACKEND.AUTO)
    model.quantize([{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in samples], batch_size=4)
    model.save(str(out))


def reference_logits(base: Path, out: Path, case: tuple[Any, ...]) -> np.ndarray:
    """Logits [prompt, vocab] with the weights that gptqmodel's layers dequantize to."""
    backend = BACKEND.GPTQ_TORCH if case[0] == "gptq" else BACKEND.AWQ_TORCH
    quantized = GPTQModel.load(str(out), backend=backend, device="cpu").model
    plain = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    # AWQ changes norms, too, and gptqmodel stores in a type of its own choice what it does not quantize.
    stored = load_file(out / "model.safetensors")
    plain.load_state_dict(
        {name: t.float() for name, t in stored.items() if t.is_floating_point()}, strict=False
    )
    modules = dict(plain.named_modules())
    count = 0
    for name, module in quantized.named_modules():
        if not hasattr(module, "qweight"):
            continue
        count += 1
        module.scales = stored[
            f"{name}.scales"
        ].float()  # as stored: loading may have rounded them to bfloat16
        if case[0] == "gptq":
            weight = module.dequantize_weight().T
        else:
            from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

            parts = module.qweight, module.qzeros, module.scales, module.bits, module.group_size
            weight = dequantize_gemm(*parts).T
        modules[name].weight.data = weight.to(torch.float32).contiguous()
    assert count == 7, count
    with torch.no_grad():
        return plain(torch.tensor([PROMPT])).logits[0].numpy()


def main() -> None:
    arrays: dict[str, np.ndarray] = {"prompt": np.array(PROMPT, np.int32)}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        write_base(base)
        for case in CASES:
            name = case_name(case)
            out = Path(folder) / name
            quantize(base, out, case)
            config = json.loads((out / "config.json").read_text())
            config["quantization_config"].pop("meta", None)
            arrays[f"{name}/config"] = np.frombuffer(json.dumps(config).encode(), np.uint8)
            arrays[f"{name}/tensors"] = np.fromfile(out / "model.safetensors", np.uint8)
            arrays[f"{name}/logits"] = reference_logits(base, out, case)
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    main()
