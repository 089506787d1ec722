"""Trails: what happened to each request, joined by id from engine steps and what the API process saw.

The engine only emits events (`protocol.events`); this room keeps them compactly and turns them into a
readable `JourneyView` when somebody asks. A journey is seen only by the tenant that made it, and holds text,
token ids and alternatives only if the store was told to keep them. `journey.render` draws one in a terminal.
"""

from tokentrail.journey.record import Journey, SequenceTrail, Stage
from tokentrail.journey.schema import (
    CompanyView,
    EventView,
    GatewayStageView,
    JourneyList,
    JourneySummary,
    JourneyView,
    PromptTokenView,
    SequenceView,
    StageTimes,
    StepView,
    TokenView,
)
from tokentrail.journey.store import Asked, JourneyStore

__all__ = [
    "Asked",
    "CompanyView",
    "EventView",
    "GatewayStageView",
    "Journey",
    "JourneyList",
    "JourneyStore",
    "JourneySummary",
    "JourneyView",
    "PromptTokenView",
    "SequenceTrail",
    "SequenceView",
    "Stage",
    "StageTimes",
    "StepView",
    "TokenView",
]
