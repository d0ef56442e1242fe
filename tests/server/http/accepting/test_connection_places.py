"""Who has a place among the open connections, and who gives it up."""

from __future__ import annotations

from random import Random

import pytest

from server.http.accepting.connection_places import FIRST_HEAD_S, LEAST_HEAD_S, ConnectionPlaces, Phase, Place


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Clients:
    """Clients of a server with so many places, and the names of those whose connections were closed."""

    def __init__(self, limit: int) -> None:
        self.clock = Clock()
        self.places = ConnectionPlaces(limit, self.clock)
        self.closed: list[str] = []

    def open(self, owner: str, name: str = "", *, is_trusted: bool = False, is_scarce: bool = False) -> Place | None:
        return self.places.take(
            owner, lambda: self.closed.append(name or owner), is_trusted=is_trusted, is_scarce=is_scarce
        )

    def work(self, owner: str) -> Place:
        place = self.open(owner)
        assert place is not None
        place.begin(lambda: False)
        return place

    def idle(self, owner: str, *, has_key: bool = False) -> Place:
        place = self.work(owner)
        if has_key:
            place.authenticate()
        place.end()
        return place


def test_the_client_that_waits_with_the_most_makes_room() -> None:
    clients = Clients(16)
    clients.open("good", "good")
    for index in range(20):
        clients.open("bad", f"bad {index}")
    assert "good" not in clients.closed
    assert clients.closed == [f"bad {index}" for index in range(6)]  # fourteen places are one client's at most
    place = clients.open("another")
    assert place is not None
    assert not place.is_extra
    assert len(clients.places) <= 16


def test_those_that_say_the_least_make_room_first() -> None:
    clients = Clients(4)
    with_key = clients.idle("a", has_key=True)
    clients.idle("b")
    receiving = clients.open("c")
    assert receiving is not None
    receiving.begin(lambda: True)
    clients.open("d")
    for owner in ("e", "f", "g"):
        clients.work(owner)
    assert clients.closed == ["d", "b", "c"]
    clients.work("h")
    assert clients.closed == ["d", "b", "c", "a"]
    assert with_key.is_released


def test_those_that_have_just_come_are_spared_beside_a_crowd_that_idles() -> None:
    clients = Clients(16)
    idle = [clients.idle("crowd") for _ in range(14)]
    new = [clients.open("crowd", f"new {index}") for index in range(2)]  # an eighth of the places
    assert [place.is_released for place in idle] == [True] * 2 + [False] * 12
    assert not any(place is None or place.is_released for place in new)


def test_a_crowd_of_new_connections_makes_room_itself() -> None:
    clients = Clients(16)
    clients.idle("good")
    for index in range(20):
        clients.open(f"bad {index}")
    assert clients.closed == [f"bad {index}" for index in range(5)]


def test_who_is_worked_for_keeps_its_place() -> None:
    clients = Clients(2)
    clients.work("a")
    has_ended = False
    receiving = clients.open("b")
    assert receiving is not None
    receiving.begin(lambda: not has_ended)
    has_ended = True  # its body is whole, though nobody has said so
    extra = clients.open("c")
    assert extra is not None
    assert extra.is_extra
    assert not extra.promote()
    assert clients.closed == []
    receiving.end()
    assert extra.promote()
    assert clients.closed == ["b"]


def test_a_body_of_a_client_with_a_key_keeps_its_place() -> None:
    clients = Clients(1)
    place = clients.open("a")
    assert place is not None
    place.begin(lambda: True)
    place.authenticate()
    extra = clients.open("b")
    assert extra is not None
    assert extra.is_extra


def test_one_client_leaves_places_to_others() -> None:
    clients = Clients(16)
    for _ in range(14):
        clients.work("bad")
    extra = clients.open("bad")
    assert extra is not None
    assert extra.is_extra
    good = clients.open("good")
    assert good is not None
    assert not good.is_extra
    trusted = clients.open("bad", is_trusted=True)
    assert trusted is not None
    assert not trusted.is_extra


def test_those_beyond_the_limit_are_bounded_and_the_oldest_makes_room() -> None:
    clients = Clients(1)
    clients.work("a")
    places = [clients.open("b", str(index)) for index in range(5)]
    assert clients.closed == ["0", "1", "2"]
    for place in places[3:]:
        assert place is not None
        place.begin(lambda: False)
    assert clients.open("b") is None


def test_where_descriptors_are_scarce_a_connection_takes_anothers_place_or_none() -> None:
    clients = Clients(16)
    clients.work("a")
    assert clients.open("b", is_scarce=True) is None
    clients.open("c")
    assert clients.open("b", is_scarce=True) is not None
    assert clients.closed == ["c"]


def test_the_fewer_places_are_free_the_shorter_is_the_deadline() -> None:
    clients = Clients(10)
    assert clients.places.first_head_timeout() == FIRST_HEAD_S
    clients.open("a", "a")
    clients.clock.now = FIRST_HEAD_S - 2
    assert clients.places.end_overdue(9) == 0
    for _ in range(8):
        clients.work("b")
    clients.open("c", "c")
    assert clients.places.first_head_timeout() == LEAST_HEAD_S
    assert clients.places.end_overdue(9) == 1
    assert clients.closed == ["a"]
    assert len(clients.places) == 9


def test_a_connection_is_new_until_its_first_head_or_its_end() -> None:
    clients = Clients(4)
    assert not clients.places.has_new
    first, second = clients.open("a"), clients.open("b")
    assert first is not None
    assert second is not None
    first.begin(lambda: False)
    assert clients.places.has_new
    second.release()
    assert not clients.places.has_new


def test_a_place_is_given_back_once() -> None:
    clients = Clients(4)
    place = clients.open("a")
    assert place is not None
    place.release()
    place.release()
    place.begin(lambda: False)
    place.end()
    assert len(clients.places) == 0
    assert clients.places.held_by("a") == 0


@pytest.mark.parametrize("limit", [1, 2, 16])
def test_another_client_of_a_proxy_has_its_share(limit: int) -> None:
    clients = Clients(limit)
    places = [clients.open("proxy", is_trusted=True) for _ in range(limit)]
    for place in places:
        assert place is not None
        place.begin(lambda: False)
    results = [place.assign("client") for place in places if place is not None]
    assert results == [index < clients.places.share for index in range(limit)]
    assert clients.places.held_by("client") == clients.places.share
    assert len(clients.places) == limit


class CountingOwner(str):
    """The name of a client that counts how often it is looked up."""

    __slots__ = ()
    num_looks = 0

    def __hash__(self) -> int:
        CountingOwner.num_looks += 1
        return super().__hash__()


def test_a_connection_looks_at_few_clients_however_many_wait() -> None:
    clients = Clients(512)
    for number in range(512):
        clients.open(CountingOwner(number))
    CountingOwner.num_looks = 0
    clients.open(CountingOwner("one more"), "one more")
    assert clients.closed == ["0"]
    assert CountingOwner.num_looks < 100


def test_whoever_makes_room_holds_the_most_of_those_that_wait() -> None:
    draw, clients, num_ended = Random(5), Clients(24), 0
    held: list[Place] = []
    for _ in range(3000):
        held = [place for place in held if not place.is_released]
        if held and draw.random() < 0.5:
            place = draw.choice(held)
            match draw.randrange(4):
                case 0:
                    place.begin(lambda: False)
                case 1:
                    place.end()
                case 2:
                    place.authenticate()
                case 3:
                    place.release()
            continue
        owners = [place.owner for place in held]
        phases = [place.phase for place in held]
        # Three new ones are spared.
        order = sorted(Phase, key=lambda phase: 2.5 if phase is Phase.NEW and phases.count(phase) <= 3 else phase)
        lowest = next((phase for phase in order if phase in phases), Phase.WORKING)
        most = max((owners.count(place.owner) for place in held if place.phase is lowest), default=0)
        clients.closed.clear()
        made = clients.open(draw.choice("abcdefgh"), is_trusted=True)
        if made is not None and not made.is_extra:
            held.append(made)
            assert [owners.count(owner) for owner in clients.closed] in ([], [most])
            num_ended += len(clients.closed)
    assert num_ended > 100
    held = [place for place in held if not place.is_released]
    assert clients.places.held_by("a") == sum(place.owner == "a" for place in held)
