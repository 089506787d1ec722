"""The dialect of Hugging Face's Text Generation Inference: /generate, /generate_stream, POST /, /info."""

from tokentrail.server.tgi.errors import shape
from tokentrail.server.tgi.routes import create_router

__all__ = ["create_router", "shape"]
