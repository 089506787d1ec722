"""Which names a server answers to. A web page from anywhere can ask a server on its reader's machine, by a name of its
own that it lets point there (DNS rebinding): the browser takes both for one. The name stands in the `Host` header.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from tokentrail.server.config import is_loopback
from tokentrail.server.errors import HTTPError

# Nobody outside can have these resolved: RFC 6761, RFC 6762, and ICANN's reservation of 2024.
_PRIVATE = (".localhost", ".local", ".internal")


class Hosts:
    """The hosts that are answered for: those of `allowed`, in which `*` stands for any and `*.example.com` for all
    below it. Without any: all, but for a server that only its own machine can reach and that asks for no key. That
    one answers to addresses and to names that nobody outside can own.
    """

    def __init__(self, allowed: Sequence[str], *, bound_to: str, has_keys: bool) -> None:
        self._allowed = [host.lower() for host in allowed]
        self._any = "*" in allowed or (not allowed and (has_keys or not is_loopback(bound_to)))

    def check(self, header: bytes | None) -> None:
        """Raises a 403 error for the value of a `Host` header that names another host. Browsers always send one."""
        if self._any or header is None:
            return
        host = _without_port(header.decode("latin-1").strip().lower()).rstrip(".")
        if self._allowed:
            known = any(_matches(host, one) for one in self._allowed)
        else:
            known = "." not in host or host.endswith(_PRIVATE) or _is_address(host)
        if not known:
            raise HTTPError(
                403,
                f"This server does not answer for the host {host[:100]!r}; --allowed-hosts names those that it does.",
                type="invalid_request_error",
                code="host_not_allowed",
            )


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern.strip("[]")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
