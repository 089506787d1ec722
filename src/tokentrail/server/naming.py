"""Which model a request's name means."""

from __future__ import annotations

from tokentrail.answer import Backend, ModelCard
from tokentrail.protocol import ModelNotFound

_LATEST = ":latest"


def tagged(name: str) -> str:
    """A model's name as Ollama lists it: one without a tag has the tag `latest`."""
    return name if ":" in name.rsplit("/", 1)[-1] else name + _LATEST


def card_for_texts(backend: Backend, name: str | None) -> ModelCard:
    """The model whose tokens are asked for: the main one without a name, or where there is no other. Raises a 404
    error.
    """
    if not name or len(backend.models()) == 1:
        return main_model(backend)
    return find_model(backend, name)


def texts_of(backend: Backend, name: str | None) -> Backend:
    """Who knows that model's texts. Raises a 404 error."""
    return backend.for_model(card_for_texts(backend, name).id)


def find_model(backend: Backend, name: str) -> ModelCard:
    """The model or adapter with this name. Programs take names from Ollama's list and ask any dialect with them, so the
    tag `latest` may stand behind it. Raises a 404 error.
    """
    cards = backend.models()
    for card in cards:
        if card.id == name:
            return card
    for card in cards:
        if tagged(card.id) == tagged(name):
            return card
    raise ModelNotFound(name)


def main_model(backend: Backend) -> ModelCard:
    """The one that is meant where no name is given. Raises a 404 error for a key that may ask none."""
    cards = backend.models()
    if not cards:
        raise ModelNotFound("")
    return cards[0]
