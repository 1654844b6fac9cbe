"""What two agents say to each other is believed only if it was signed, there and then, for them."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.errors import NodeError
from fsdpkit.launching import signing
from fsdpkit.launching.signing import AgentHandshake, ForgedError, Frames, Head, Keys

SECRET = bytes(range(32))
KEYS = Keys(SECRET, "12345_0")


def connected(keys: Keys = KEYS, node: int = 1) -> tuple[Frames, Frames]:
    """The head's frames and the agent's."""
    head = Head(KEYS)
    claim = AgentHandshake(keys, node, head.greeting)
    found, grant, frames = head.grant(claim.claim)
    assert found == node
    return frames, claim.frames(grant)


@given(bodies=st.lists(st.binary(max_size=300), max_size=8), cut=st.integers(1, 100))
def test_what_is_sealed_comes_out_in_whatever_pieces_it_arrives(
    bodies: list[bytes], cut: int
) -> None:
    head, agent = connected()
    for sender, receiver in ((head, agent), (agent, head)):
        stream = b"".join(sender.seal(body) for body in bodies)
        found = [b for i in range(0, len(stream), cut) for b in receiver.open(stream[i : i + cut])]
        assert found == bodies


@given(st.data())
def test_one_changed_bit_is_noticed_wherever_it_is(data: st.DataObject) -> None:
    head = Head(KEYS)
    claim = bytearray(AgentHandshake(KEYS, 1, head.greeting).claim)
    claim[data.draw(st.integers(0, len(claim) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ForgedError):
        head.grant(bytes(claim))

    sender, receiver = connected()
    frame = bytearray(sender.seal(b"body"))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= 1 << data.draw(st.integers(0, 7))
    if place >= 4:
        with pytest.raises(ForgedError):
            receiver.open(bytes(frame))
    else:  # of the length: more is waited for, or it is not believed; nothing comes out
        with contextlib.suppress(ForgedError):
            assert receiver.open(bytes(frame) + bytes(100)) == []


@pytest.mark.parametrize(
    "keys", [Keys(bytes(32), "12345_0"), Keys(SECRET, "12345_1"), Keys(SECRET, "")]
)
def test_another_secret_or_attempt_is_not_ours(keys: Keys) -> None:
    with pytest.raises(ForgedError):
        connected(keys)


def test_an_agent_does_not_believe_a_head_that_does_not_know_the_secret() -> None:
    stranger = Head(Keys(bytes(32), "12345_0"))
    claim = AgentHandshake(KEYS, 1, stranger.greeting)
    for grant in (os.urandom(32), claim.claim[-32:], stranger._keys.sign(b"grant")):
        with pytest.raises(ForgedError):
            claim.frames(grant)
    with pytest.raises(ForgedError):
        AgentHandshake(KEYS, 1, b"HTTP/1.1" + bytes(32))


def test_what_was_recorded_cannot_be_said_again() -> None:
    head = Head(KEYS)
    recorded = AgentHandshake(KEYS, 1, head.greeting)
    head.grant(recorded.claim)
    with pytest.raises(ForgedError):  # on another connection
        Head(KEYS).grant(recorded.claim)

    ours, theirs = connected()
    first, second = ours.seal(b"first"), ours.seal(b"second")
    assert theirs.open(first) == [b"first"]
    with pytest.raises(ForgedError):  # twice
        theirs.open(first)
    ours, theirs = connected()
    first, second = ours.seal(b"first"), ours.seal(b"second")
    with pytest.raises(ForgedError):  # in another order
        theirs.open(second)
    ours, theirs = connected()
    with pytest.raises(ForgedError):  # back to who said it
        ours.open(ours.seal(b"first"))
    with pytest.raises(ForgedError):  # on another connection
        connected()[1].open(connected()[0].seal(b"first"))


def test_a_node_cannot_be_another_one() -> None:
    head = Head(KEYS)
    claim = bytearray(AgentHandshake(KEYS, 1, head.greeting).claim)
    claim[len(signing.MAGIC) : len(signing.MAGIC) + 4] = (2).to_bytes(4, "big")
    with pytest.raises(ForgedError):
        head.grant(bytes(claim))


def test_a_length_beyond_any_of_ours_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(ForgedError):
        connected()[0].open(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="a message of"):
        connected()[0].seal(bytes(signing.FRAME_BYTES + 1))


def test_the_secret_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_taken", signing._Taken())
    environ = {"FSDPKIT_SECRET": SECRET.hex(), "HOME": "/"}
    signing.take_secret(environ)
    assert environ == {"HOME": "/"}
    assert signing.keys_of("12345_0") == KEYS


@pytest.mark.parametrize("text", [None, "", "ab", "zz" * 32, "ab" * 33])
def test_without_a_secret_no_agent_talks_to_others(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "_taken", signing._Taken(text))
    with pytest.raises(NodeError, match="FSDPKIT_SECRET is not"):
        signing.keys_of("12345_0")
