"""Models by name: from `org/name`, `org/name:Q4_K_M` or a local path to a path on this machine.

`find_model(name)` prefers what lies on this machine; else it asks a hub (Hugging Face, or ModelScope), downloads the
files that are needed, and no others, into that hub's own cache, and says where they are. The only room that
uses the network to get models; the hubs' clients are imported when they are asked.
"""

from tokentrail.hub.finding import HUB_VARIABLE, HUBS, FoundModel, find_model

__all__ = ["HUBS", "HUB_VARIABLE", "FoundModel", "find_model"]
