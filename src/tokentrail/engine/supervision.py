"""What becomes of the requests in flight when engine processes die: whom to send again, when, whom to give
up.

Pure bookkeeping, without processes or sockets; `EngineClient` acts on it.

An engine process has a *life*. After a death, all requests in flight are sent to the next one, with the
tokens already delivered as the beginning of their output. The same request always gives the same tokens, so
streams continue as if nothing had happened.

- Three deaths in a row without a single token in between: all requests in flight are given up.
- One request may be what kills the engine (a *poison*). When a life ends before all requests that it took
  over have had a token again, the next one is *cautious*: it takes them over one at a time, each after the
  one before it has had a token or ended, and new ones queue behind. A death while exactly one request had no
  token yet is a strike against that one: it goes to the end of the line, and after three strikes in a row it
  alone is given up. So a poison costs the others some restarts (five as a rule), but not their answers,
  unless they too make no progress.
- Where there are several engines of one model (`replicas`), what a dead one had in flight is *released* and added to
  another one's, unless it had no token from the last two processes that died with it: such a suspect stays where it
  is, so that a poison does not go round.
"""

from __future__ import annotations

from collections import deque

import msgspec

from tokentrail.protocol import Delta, GenerateRequest

DEATHS_ALLOWED = 3


class InFlight:
    """A request that is not done, and what was delivered of its answer."""

    __slots__ = ("accepted", "deaths", "delivered", "proven", "request", "sent", "strikes", "told_first")

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.delivered: list[int] = list(request.output)
        self.told_first = False
        self.accepted = False
        """An engine process that died had it."""
        self.sent = False
        """The engine process that lives now has it."""
        self.proven = False
        """It has had a token from that process."""
        self.strikes = 0
        self.deaths = 0
        """Processes that died with it, in a row, from which it had no token."""

    @property
    def suspect(self) -> bool:
        return self.deaths > 1

    def deliver(self, delta: Delta) -> None:
        self.delivered += delta.token_ids
        self.told_first = True

    def message(self) -> GenerateRequest:
        """The request as an engine process gets it now."""
        sampling = self.request.sampling
        if self.told_first and sampling.prompt_logprobs is not None:
            # Already delivered; asking again would only cost the logits of the whole prompt.
            sampling = sampling.replace(prompt_logprobs=None)
        return msgspec.structs.replace(
            self.request,
            sampling=sampling,
            output=self.delivered,
            resumed=self.accepted or self.request.resumed,
        )


class Recovery:
    """Decides over the lives of engine processes. Methods that return requests mean: send these now."""

    def __init__(self) -> None:
        self.deaths = 0
        """In a row without a token in between, since the last giving up."""
        self.down = False
        """All was given up, and no process has started since."""
        self.cautious = False
        self._alive = False
        self._in_flight: dict[str, InFlight] = {}
        self._line: deque[InFlight] = deque()
        """Not sent to the process that lives now, next first."""
        self._unproven: set[str] = set()
        """Sent, but without a token from the process that lives now."""
        self._taken_over: set[str] = set()
        """Those of an earlier life that are in the line or unproven. Empty: this life has recovered."""

    def get(self, id: str) -> InFlight | None:
        return self._in_flight.get(id)

    @property
    def flights(self) -> list[InFlight]:
        """All that are in flight."""
        return list(self._in_flight.values())

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def busy(self) -> bool:
        """The process that lives now has a request."""
        return any(flight.sent for flight in self._in_flight.values())

    def begun(self) -> list[InFlight]:
        """Requests that have had a part of their answer."""
        return [flight for flight in self._in_flight.values() if flight.told_first]

    def add(self, flight: InFlight) -> list[InFlight]:
        self._in_flight[flight.request.id] = flight
        self._line.append(flight)
        if flight.accepted:
            self._taken_over.add(flight.request.id)
        return self._next()

    def release(self, flight: InFlight) -> None:
        """Another engine computes the request from now on: this one's process is dead, or does not have it."""
        del self._in_flight[flight.request.id]
        if not flight.sent:
            self._line.remove(flight)
        self._unproven.discard(flight.request.id)
        self._taken_over.discard(flight.request.id)
        if not self._taken_over:
            self.cautious = False
        flight.accepted |= flight.sent
        flight.sent = flight.proven = False

    def accuse(self) -> None:
        """The process died: count it against those that had no token from it."""
        for flight in self._in_flight.values():
            flight.deaths += flight.sent and not flight.proven

    def progressed(self, flight: InFlight) -> list[InFlight]:
        """A token came for the request."""
        self.deaths = flight.deaths = 0
        if flight.proven:
            return []
        flight.proven = True
        flight.strikes = 0
        return self._settle(flight)

    def ended(self, flight: InFlight) -> list[InFlight]:
        """The request is done, whether finished, refused or aborted."""
        if self._in_flight.pop(flight.request.id, None) is None:
            return []
        if not flight.sent:
            self._line.remove(flight)
        return self._settle(flight)

    def started(self) -> list[InFlight]:
        """A new process is ready."""
        self._alive = True
        self.down = False
        return self._next()

    def died(self) -> list[InFlight]:
        """The process died, or could not start. Returns the requests to give up; they are no longer in
        flight.
        """
        was_alive, self._alive = self._alive, False
        if was_alive:
            if self.cautious and len(self._unproven) == 1:
                self._in_flight[next(iter(self._unproven))].strikes += 1
            self.cautious = bool(self._taken_over)
        if self._in_flight or not was_alive:
            self.deaths += 1
        flights = list(self._in_flight.values())
        if self.deaths >= DEATHS_ALLOWED:
            given_up, flights = flights, []
            self.deaths, self.down = 0, True
        else:
            given_up = [flight for flight in flights if flight.strikes >= DEATHS_ALLOWED]
            flights = [flight for flight in flights if flight.strikes < DEATHS_ALLOWED]
        # Those that have shown that they can be computed go first; suspects go last.
        flights.sort(key=lambda flight: (flight.strikes, not flight.told_first))
        for flight in flights:
            flight.accepted |= flight.sent
            flight.sent = flight.proven = False
        self._in_flight = {flight.request.id: flight for flight in flights}
        self._line = deque(flights)
        self._unproven.clear()
        self._taken_over = set(self._in_flight)
        return given_up

    def _settle(self, flight: InFlight) -> list[InFlight]:
        self._unproven.discard(flight.request.id)
        self._taken_over.discard(flight.request.id)
        if not self._taken_over:
            self.cautious = False
        return self._next()

    def _next(self) -> list[InFlight]:
        if not self._alive:
            return []
        room = (0 if self._unproven else 1) if self.cautious else len(self._line)
        sending = [self._line.popleft() for _ in range(min(room, len(self._line)))]
        for flight in sending:
            flight.sent = True
            self._unproven.add(flight.request.id)
        return sending
