"""What happens now: who runs and waits, the engine's last steps, its KV blocks, how fast tokens come. `GET /v1/live`.

Nothing is recorded for it: it reads what journeys and metrics know anyway, so an engine's step costs the same whether
or not anybody watches.
"""

from tokentrail.server.watching.routes import create_router

__all__ = ["create_router"]
