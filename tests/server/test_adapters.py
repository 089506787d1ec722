"""Low-rank adapters by model name: listed with their model, asked for by their own name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scripted_engine import engine_info
from scripted_server import MODEL, MakeServer, ScriptedServer

from tokentrail.protocol import AdapterInfo, InvalidRequest

ADAPTER = AdapterInfo(name="polite", path="/models/polite", rank=8, fingerprint="fp_polite")


def with_adapter(adapter: AdapterInfo) -> Any:
    return msgspec.structs.replace(engine_info(), adapters=[adapter])


@pytest.fixture
def server(make_server: MakeServer) -> ScriptedServer:
    return make_server(engine={"info": with_adapter(ADAPTER)})


def test_adapters_are_listed_with_their_parent(server: ScriptedServer) -> None:
    cards = {card["id"]: card for card in server.get("/v1/models").json()["data"]}
    assert set(cards) == {MODEL, "polite"}
    assert cards["polite"]["parent"] == MODEL
    assert cards["polite"]["root"] == "/models/polite"
    assert cards[MODEL]["parent"] is None
    assert server.get("/v1/models/polite").json()["id"] == "polite"


@pytest.mark.parametrize(
    ("model", "adapter", "fingerprint"), [(MODEL, "", "fp_scripted"), ("polite", "polite", "fp_polite")]
)
def test_the_model_field_chooses(server: ScriptedServer, model: str, adapter: str, fingerprint: str) -> None:
    answer = server.chat(model=model).json()
    assert answer["model"] == model
    assert answer["system_fingerprint"] == fingerprint
    assert server.engine.requests[-1].adapter == adapter
    journey = server.get(f"/v1/journeys/{answer['id']}").json()
    assert journey["model"] == model
    assert journey["system_fingerprint"] == fingerprint


def test_others_are_not_found(server: ScriptedServer) -> None:
    response = server.chat(model="rude")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_an_adapter_cannot_have_the_models_name(server: ScriptedServer) -> None:
    from tokentrail.answer import LocalBackend

    server.engine.info = with_adapter(msgspec.structs.replace(ADAPTER, name=MODEL))
    with pytest.raises(InvalidRequest, match="--lora demo"):
        LocalBackend(server.engine, server.state.backend.desk.parts, names=(MODEL,))
