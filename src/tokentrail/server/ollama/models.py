"""Models as Ollama names and describes them: a name without a tag is that with the tag `latest`."""

from __future__ import annotations

import contextlib
import hashlib
from datetime import datetime, timezone

from msgspec import UNSET

from tokentrail.answer import Backend, ModelCard, ModelDetails
from tokentrail.protocol import ModelNotFound
from tokentrail.server.errors import HTTPError
from tokentrail.server.naming import find_model, tagged
from tokentrail.server.ollama.responses import Details, ListedModel, ShownModel

_FOREVER = datetime(9999, 12, 31, tzinfo=timezone.utc)
"""When a model is dropped from memory that never is."""


def find(backend: Backend, name: str) -> ModelCard:
    """The model with this name. Raises a 404 error in Ollama's words, which its clients look for."""
    with contextlib.suppress(ModelNotFound):
        return find_model(backend, name)
    raise HTTPError(
        404,
        f"model '{name[:200]}' not found; this server has {', '.join(card.id for card in backend.models())}",
        type="invalid_request_error",
        code="model_not_found",
        param="model",
    )


def listed(backend: Backend, card: ModelCard) -> ListedModel:
    details = backend.details(card.id)
    return ListedModel(
        name=tagged(card.id),
        model=tagged(card.id),
        modified_at=_time(card),
        size=details.file_bytes,
        digest=hashlib.sha256(details.fingerprint.encode()).hexdigest(),
        details=_details(card, details),
    )


def running(backend: Backend, card: ModelCard) -> ListedModel:
    """As /api/ps has it: in memory."""
    model = listed(backend, card)
    model.modified_at = UNSET
    model.expires_at = _FOREVER
    model.size_vram = 0
    model.context_length = card.max_model_len
    return model


def shown(backend: Backend, card: ModelCard) -> ShownModel:
    details = backend.details(card.id)
    kind = details.architecture
    capabilities = ["completion"]
    if details.calls_tools:
        capabilities.append("tools")
    if details.infills:
        capabilities.append("insert")
    if details.thinks:
        capabilities.append("thinking")
    return ShownModel(
        modelfile=f"# Served by Tokentrail\nFROM {details.file}\nPARAMETER num_ctx {card.max_model_len}\n",
        parameters=f"num_ctx {card.max_model_len}",
        template=details.chat_template or "",
        details=_details(card, details),
        model_info={
            "general.architecture": kind,
            "general.basename": card.root,
            "general.parameter_count": details.num_parameters,
            f"{kind}.attention.head_count": details.num_heads,
            f"{kind}.attention.head_count_kv": details.num_kv_heads,
            f"{kind}.block_count": details.num_layers,
            # What can be asked of it, which may be less than the model was made for.
            f"{kind}.context_length": card.max_model_len,
            f"{kind}.embedding_length": details.hidden_size,
            f"{kind}.vocab_size": details.vocab_size,
        },
        capabilities=capabilities,
        modified_at=_time(card),
    )


def _time(card: ModelCard) -> datetime:
    return datetime.fromtimestamp(card.created, timezone.utc)


def _details(card: ModelCard, details: ModelDetails) -> Details:
    return Details(
        parent_model=card.parent or "",
        format=details.file_format,
        family=details.architecture,
        families=[details.architecture],
        parameter_size=_count(details.num_parameters),
        quantization_level=details.quantization,
    )


def _count(parameters: int) -> str:
    """134.52M, 7.6B"""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.2f}M"
