"""What a client of any kind may want to know of the server before it asks: what it keeps, which models it has, and how
they draw.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokentrail import __version__
from tokentrail.protocol import SamplingDefaults
from tokentrail.server.openapi import answers
from tokentrail.server.schemas import json_response
from tokentrail.server.state import ServerState


class ModelAbout(msgspec.Struct, kw_only=True):
    id: str
    parent: str | None
    """Of an adapter: the model that it adapts."""
    max_model_len: int
    architecture: str
    num_parameters: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    quantization: str
    fingerprint: str
    defaults: SamplingDefaults
    """How it draws unless a request says."""


class About(msgspec.Struct, kw_only=True):
    version: str
    trail_text: bool
    """Journeys hold texts, token ids and alternatives."""
    trail_size: int
    """Finished journeys that are kept."""
    keys: bool
    """Requests need a key."""
    admin: bool
    """This key may see and change what is not its own."""
    gateway: bool
    """A deployment file is in force."""
    admin_api: bool
    """Keys and tenants can be managed here, with an admin's key."""
    ledger: bool
    """What is used is written down."""
    models: list[ModelAbout]


def create_router(state: ServerState, *, admin_api: bool) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["operations"])

    @router.get("/about", openapi_extra=answers(About))
    async def about(request: Request) -> Response:
        """What this server keeps and serves, as far as this key may ask it."""
        backend, identity = state.backend_for(request), request.state.identity
        models = []
        for card in backend.models():
            details = backend.details(card.id)
            models.append(
                ModelAbout(
                    id=card.id,
                    parent=card.parent,
                    max_model_len=card.max_model_len,
                    architecture=details.architecture,
                    num_parameters=details.num_parameters,
                    num_layers=details.num_layers,
                    hidden_size=details.hidden_size,
                    vocab_size=details.vocab_size,
                    quantization=details.quantization,
                    fingerprint=details.fingerprint,
                    defaults=details.defaults,
                )
            )
        return json_response(
            About(
                version=__version__,
                trail_text=state.config.trail_text,
                trail_size=state.config.trail_size,
                keys=state.keys.required,
                admin=identity.admin,
                gateway=state.gateway is not None,
                admin_api=admin_api,
                ledger=state.gateway is not None and state.gateway.settings.ledger is not None,
                models=models,
            )
        )

    return router
