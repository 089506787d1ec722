"""Ollama's dialect: /api/chat, /api/generate, /api/tags and what else its clients call. Streams are lines of JSON."""

from tokentrail.server.ollama.answers import shape
from tokentrail.server.ollama.routes import create_router

__all__ = ["create_router", "shape"]
