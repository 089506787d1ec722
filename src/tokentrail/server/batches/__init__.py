"""OpenAI's files and batches over a folder of this machine (`--files-dir`): requests that can wait, done in the
background by the very application that answers the others, and none lost or done twice when the server dies.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI

from tokentrail.server.state import ServerState


def create_router(app: FastAPI, state: ServerState) -> APIRouter:
    """The routes; without a folder, ones that say so. Raises a `TokentrailError` where the folder cannot be used."""
    config = state.config
    if config.files_dir is None:
        from tokentrail.server.batches import off

        return off.create_router()
    from tokentrail.server.batches.routes import create_router as create
    from tokentrail.server.batches.runner import BatchRunner
    from tokentrail.server.batches.store import Store

    runner = BatchRunner(
        app,
        Store(Path(config.files_dir)),
        state.keys,
        concurrency=config.batch_concurrency,
        longest_line=config.max_body_bytes,
        quota=config.files_quota_bytes,
    )
    state.background.append(runner)
    return create(state, runner)


__all__ = ["create_router"]
