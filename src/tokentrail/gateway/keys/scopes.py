"""What keys can be held to, beside models: kinds of endpoints, whatever dialect they are spoken in."""

from __future__ import annotations

ENDPOINTS: dict[str, str] = {
    "chat": "conversations: /v1/chat/completions, /v1/messages, /api/chat",
    "completions": "texts that go on: /v1/completions, /completion, /infill, /api/generate, /generate",
    "responses": "/v1/responses",
    "embeddings": "vectors: /v1/embeddings, /api/embed",
    "moderations": "/v1/moderations",
    "files": "/v1/files and /v1/batches",
    "tokens": "/tokenize, /detokenize and their kin",
    "journeys": "/v1/journeys",
}
"""Name → what it stands for. Lists of models and what says how the server is are for every key."""
