"""Answers that are known already: the same question, asked again, is answered with what was answered before.

Only what is sure to be the same is used: questions with a seed, or without temperature. (The engine's promise is that
the same request gives the same bytes, whatever else runs.) When nobody can answer, what is kept may stand in, marked as
such, for other questions too: `ResponseCache.stale`. A content store: it holds answers' texts, and is off unless a
deployment file turns it on. No tenant gets another's.
"""

from tokentrail.gateway.caching.answers import SERVED_BY, CachedAnswer, Kept, RecordingAnswer
from tokentrail.gateway.caching.cache import CachingBackend, ResponseCache, key_of, reusable
from tokentrail.gateway.caching.stores import MemoryStore, RedisStore, Store

__all__ = [
    "SERVED_BY",
    "CachedAnswer",
    "CachingBackend",
    "Kept",
    "MemoryStore",
    "RecordingAnswer",
    "RedisStore",
    "ResponseCache",
    "Store",
    "key_of",
    "reusable",
]
