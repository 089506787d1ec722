"""What lies on disk: model files, opened without trust or copying, in one vocabulary for all formats.

`open_checkpoint(path)` gives a `Checkpoint`: the configuration, memory-mapped tensors under canonical names
(`layout.py` lists them), and the sources of the tokenizer and the chat template. `dequantize` says what the
stored types mean. Knows nothing of kernels, models or text; needs NumPy only.
"""

from tokentrail.checkpoints.dequantize import DEQUANTIZED_TYPES, RUNNABLE_FORMATS, dequantize, is_runnable
from tokentrail.checkpoints.generation import generation_defaults, read_generation_config
from tokentrail.checkpoints.gguf import GGUFFile, GGUFTensor, read_gguf
from tokentrail.checkpoints.gguf_split import gguf_part_names
from tokentrail.checkpoints.gguf_tokenizer import end_token_ids
from tokentrail.checkpoints.hf_tokenizer import read_bpe_files, read_chat_templates, read_folder_tokenizer
from tokentrail.checkpoints.json_file import MAX_TOKENIZER_BYTES, read_bytes
from tokentrail.checkpoints.layout import ROPE_TENSORS
from tokentrail.checkpoints.lora import LoraAdapter, read_lora
from tokentrail.checkpoints.model import (
    AddedToken,
    Checkpoint,
    ModelConfig,
    RopeConfig,
    Tensor,
    TokenizerSource,
)
from tokentrail.checkpoints.opening import demo_model_path, model_name, open_checkpoint
from tokentrail.checkpoints.quantize import QUANTIZATIONS, QuantizationLoss, quantize_checkpoint
from tokentrail.checkpoints.sentencepiece import SentencePieceModel, read_sentencepiece
from tokentrail.checkpoints.tekken import read_tekken
from tokentrail.checkpoints.tiktoken import read_ranks

__all__ = [
    "DEQUANTIZED_TYPES",
    "MAX_TOKENIZER_BYTES",
    "QUANTIZATIONS",
    "ROPE_TENSORS",
    "RUNNABLE_FORMATS",
    "AddedToken",
    "Checkpoint",
    "GGUFFile",
    "GGUFTensor",
    "LoraAdapter",
    "ModelConfig",
    "QuantizationLoss",
    "RopeConfig",
    "SentencePieceModel",
    "Tensor",
    "TokenizerSource",
    "demo_model_path",
    "dequantize",
    "end_token_ids",
    "generation_defaults",
    "gguf_part_names",
    "is_runnable",
    "model_name",
    "open_checkpoint",
    "quantize_checkpoint",
    "read_bpe_files",
    "read_bytes",
    "read_chat_templates",
    "read_folder_tokenizer",
    "read_generation_config",
    "read_gguf",
    "read_lora",
    "read_ranks",
    "read_sentencepiece",
    "read_tekken",
]
