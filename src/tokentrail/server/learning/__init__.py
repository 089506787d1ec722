"""What can be learnt on the real model: how one token is drawn, stage by stage, and what memory it takes.

Numbers are the engine's own: the logits it computed and the token it drew; what lies between is the sampler's
definition (`ops.reference.sampling`).
"""

from tokentrail.server.learning.routes import create_router

__all__ = ["create_router"]
