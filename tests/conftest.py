"""Shared by all tests. Being here, it also puts this folder on the path: `gguf_files` can be imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postgres_server import PostgresServer
from redis_server import RedisServer
from tokentrail.checkpoints import Checkpoint, demo_model_path, open_checkpoint
from tokentrail.protocol import ModelFileError


@pytest.fixture(scope="session")
def demo_path() -> Path:
    try:
        return demo_model_path()
    except ModelFileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def demo_checkpoint(demo_path: Path) -> Checkpoint:
    return open_checkpoint(demo_path)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """One for tests that only use it, under keys of their own."""
    server = RedisServer()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    """One for tests that only use it, in databases of their own (`postgres_url`)."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def postgres_url(shared_postgres: PostgresServer) -> str:
    """A new database."""
    return shared_postgres.new_database()
