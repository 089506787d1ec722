"""What lies on disk: model files, opened without trust or copying, in one vocabulary for all formats.

`open_checkpoint(path)` gives a `Checkpoint`: the configuration, memory-mapped tensors under canonical names
(`layout.py` lists them), and the sources of the tokenizer and the chat template. `dequantize` says what the
stored types mean. Knows nothing of kernels, models or text; needs NumPy only.
"""

from tokentrail.checkpoints.dequantize import DEQUANTIZED_TYPES, RUNNABLE_FORMATS, dequantize, is_runnable
from tokentrail.checkpoints.gguf import GGUFFile, GGUFTensor, read_gguf
from tokentrail.checkpoints.gguf_tokenizer import end_token_ids
from tokentrail.checkpoints.model import Checkpoint, ModelConfig, RopeConfig, Tensor, TokenizerSource
from tokentrail.checkpoints.opening import demo_model_path, model_name, open_checkpoint

__all__ = [
    "DEQUANTIZED_TYPES",
    "RUNNABLE_FORMATS",
    "Checkpoint",
    "GGUFFile",
    "GGUFTensor",
    "ModelConfig",
    "RopeConfig",
    "Tensor",
    "TokenizerSource",
    "demo_model_path",
    "dequantize",
    "end_token_ids",
    "is_runnable",
    "model_name",
    "open_checkpoint",
    "read_gguf",
]
