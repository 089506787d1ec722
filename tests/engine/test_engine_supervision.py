"""Who is sent again after a death, when, and who is given up."""

from __future__ import annotations

from engine_fakes import request
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrail.engine.supervision import DEATHS_ALLOWED, InFlight, Recovery
from tokentrail.protocol import Delta


def flights(recovery: Recovery, *ids: str) -> list[InFlight]:
    made = [InFlight(request(id, [3, 4], prompt_logprobs=1)) for id in ids]
    for flight in made:
        recovery.add(flight)
    return made


def token(recovery: Recovery, flight: InFlight, value: int = 7) -> list[InFlight]:
    flight.deliver(Delta(flight.request.id, [value], [-1.0]))
    return recovery.progressed(flight)


def started() -> Recovery:
    recovery = Recovery()
    assert recovery.started() == []
    return recovery


def test_a_request_is_sent_at_once_and_resumes_from_what_was_delivered() -> None:
    recovery = started()
    [a] = flights(recovery, "a")
    assert a.sent
    assert a.message() == a.request
    token(recovery, a, 7)
    token(recovery, a, 8)
    assert recovery.died() == []
    assert recovery.started() == [a]
    message = a.message()
    assert message.output == [7, 8]
    assert message.resumed
    assert message.sampling.prompt_logprobs is None  # was delivered with the first token
    assert message.prompt == a.request.prompt


def test_a_request_without_a_token_yet_still_wants_its_prompt_logprobs() -> None:
    recovery = started()
    [a] = flights(recovery, "a")
    recovery.died()
    recovery.started()
    assert a.message().sampling.prompt_logprobs == 1
    assert a.message().resumed


def test_what_arrives_while_the_engine_is_away_waits_and_is_new() -> None:
    recovery = started()
    flights(recovery, "a")
    recovery.died()
    [late] = flights(recovery, "late")
    assert not late.sent
    assert [flight.request.id for flight in recovery.started()] == ["a", "late"]
    assert not late.message().resumed
    recovery.ended(late)
    assert recovery.get("late") is None


def test_three_deaths_without_a_token_give_all_up() -> None:
    recovery = started()
    made = flights(recovery, "a", "b")
    assert recovery.died() == []
    recovery.started()
    assert recovery.died() == []
    assert recovery.started() == [made[0]]
    assert recovery.died() == made
    assert recovery.down
    assert recovery.get("a") is None
    assert recovery.started() == []
    assert not recovery.down


def test_a_token_starts_the_count_anew() -> None:
    recovery = started()
    [a] = flights(recovery, "a")
    for _ in range(20):
        assert recovery.died() == []
        recovery.started()
        assert recovery.died() == []
        recovery.started()
        token(recovery, a)


def test_processes_that_do_not_start_count_too() -> None:
    recovery = started()
    made = flights(recovery, "a")
    assert [recovery.died() for _ in range(3)] == [[], [], made]


def test_deaths_with_nothing_in_flight_concern_nobody() -> None:
    recovery = started()
    for _ in range(5):
        assert recovery.died() == []
        recovery.started()
    [a] = flights(recovery, "a")
    assert recovery.died() == []
    assert recovery.started() == [a]


def test_a_careful_life_takes_one_after_the_other() -> None:
    recovery = started()
    a, b, c = flights(recovery, "a", "b", "c")
    token(recovery, c)
    recovery.died()
    assert recovery.started() == [c, a, b]  # those that have shown they can be computed go first
    recovery.died()  # before all had a token again
    assert recovery.cautious
    assert recovery.started() == [c]
    [new] = flights(recovery, "new")
    assert not new.sent
    assert token(recovery, c) == [a]
    assert token(recovery, c) == []
    assert recovery.ended(a) == [b]
    assert token(recovery, b) == [new]
    assert not recovery.cautious
    [newer] = flights(recovery, "newer")
    assert newer.sent


class Simulation:
    """An engine that dies when it comes to compute the poison, sometimes before others got anywhere."""

    def __init__(self, poison: str, draw: st.DrawFn) -> None:
        self.recovery = started()
        self.poison = poison
        self.draw = draw
        self.given_up: list[str] = []
        self.deaths = 0

    def live(self, sent: list[InFlight]) -> None:
        """One life: computes in some order until it meets the poison."""
        while sent:
            at = self.draw(st.integers(0, len(sent) - 1))
            flight = sent.pop(at)
            if flight.request.id == self.poison:
                self.deaths += 1
                self.given_up += [gone.request.id for gone in self.recovery.died()]
                return
            sent += token(self.recovery, flight)
            if self.draw(st.integers(0, 3)) == 0:
                sent += self.recovery.ended(flight)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_poison_takes_nobody_with_it_who_had_a_token(data: st.DataObject) -> None:
    simulation = Simulation("poison", data.draw)
    recovery = simulation.recovery
    count = data.draw(st.integers(1, 6))
    made = flights(recovery, *(f"r{i}" for i in range(count)))
    for flight in made:
        token(recovery, flight)
    [poison] = flights(recovery, "poison")
    sent = [*made, poison]
    for _ in range(20):
        simulation.live(sent)
        if "poison" in simulation.given_up:
            break
        sent = recovery.started()
    assert simulation.given_up == ["poison"]
    assert simulation.deaths <= 2 + DEATHS_ALLOWED
    # And the line moves on.
    sent = recovery.started()
    simulation.poison = ""
    simulation.live(sent)
    assert not recovery._line
