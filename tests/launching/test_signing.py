"""What two nodes say to each other is believed only if it was signed, there and then, for them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdpkit.errors import NodeError
from fsdpkit.launching import signing
from fsdpkit.staging import wire
from fsdpkit.staging.manifest import StageError
from fsdpkit.staging.wire import AGENTS, LENGTH_BYTES, AttemptKeys, SignedFrames, StrangeError

SECRET = bytes(range(32))
KEYS = AttemptKeys(SECRET, "12345_0")


def connected(keys: AttemptKeys = KEYS, kind: bytes = AGENTS) -> tuple[SignedFrames, SignedFrames]:
    """The head's frames and the agent's."""
    greeting = wire.greeting()
    claim, agent = wire.claimed(keys, kind, 7, greeting)
    grant, node, head = wire.granted(KEYS, AGENTS, greeting, claim)
    assert (node, agent.take(grant)) == (7, [b""])
    return head, agent


@given(bodies=st.lists(st.binary(max_size=300), max_size=8), cut=st.integers(1, 100))
def test_what_is_sealed_comes_out_in_whatever_pieces_it_arrives(
    bodies: list[bytes], cut: int
) -> None:
    head, agent = connected()
    for sender, receiver in ((head, agent), (agent, head)):
        stream = b"".join(sender.seal(body) for body in bodies)
        found = [b for i in range(0, len(stream), cut) for b in receiver.take(stream[i : i + cut])]
        assert found == bodies


@given(st.data())
def test_one_changed_bit_is_noticed_wherever_it_is(data: st.DataObject) -> None:
    greeting = wire.greeting()
    claim = bytearray(wire.claimed(KEYS, AGENTS, 1, greeting)[0])
    claim[data.draw(st.integers(0, len(claim) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(StrangeError):
        wire.granted(KEYS, AGENTS, greeting, bytes(claim))

    sender, receiver = connected()
    frame = bytearray(sender.seal(b"body"))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= 1 << data.draw(st.integers(0, 7))
    if place >= LENGTH_BYTES:
        with pytest.raises(StrangeError):
            receiver.take(bytes(frame))
    else:  # of the length: more is waited for, or it is not believed; nothing comes out
        with contextlib.suppress(StrangeError):
            assert receiver.take(bytes(frame) + bytes(100)) == []


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (AttemptKeys(bytes(32), "12345_0"), AGENTS),
        (AttemptKeys(SECRET, "12345_1"), AGENTS),
        (AttemptKeys(SECRET, ""), AGENTS),
        (KEYS, wire.HUB),
    ],
)
def test_another_secret_attempt_or_port_is_not_ours(keys: AttemptKeys, kind: bytes) -> None:
    with pytest.raises(StrangeError):
        connected(keys, kind)


def test_an_agent_does_not_believe_a_head_that_does_not_know_the_secret() -> None:
    claim, agent = wire.claimed(KEYS, AGENTS, 1, wire.greeting())
    zeros = bytes(wire.GRANT_BYTES)
    for grant in (zeros, claim[-wire.GRANT_BYTES :], SignedFrames(b"", b"").seal(b"")):
        with pytest.raises(StrangeError):
            agent.open(grant[LENGTH_BYTES:])
    with pytest.raises(StrangeError):
        wire.claimed(KEYS, AGENTS, 1, b"HTTP/1.1" + bytes(32))


def test_what_was_recorded_cannot_be_said_again() -> None:
    recorded, _ = wire.claimed(KEYS, AGENTS, 1, wire.greeting())
    with pytest.raises(StrangeError):  # on another connection
        wire.granted(KEYS, AGENTS, wire.greeting(), recorded)

    ours, theirs = connected()
    first, second = ours.seal(b"first"), ours.seal(b"second")
    assert theirs.take(first) == [b"first"]
    for wrong in (first, ours.seal(b"third"), second[:LENGTH_BYTES] + b"x" + second[5:]):
        with pytest.raises(StrangeError):  # twice, in another order, changed
            theirs.open(wrong[LENGTH_BYTES:])
    with pytest.raises(StrangeError):  # back to who said it
        ours.take(ours.seal(b"first"))
    with pytest.raises(StrangeError):  # on another connection
        connected()[1].take(connected()[0].seal(b"first"))


def test_a_node_cannot_be_another_one() -> None:
    greeting = wire.greeting()
    claim = wire.claimed(KEYS, AGENTS, 1, greeting)[0]
    renumbered = claim.replace((1).to_bytes(4, "big"), (2).to_bytes(4, "big"), 1)
    with pytest.raises(StrangeError):
        wire.granted(KEYS, AGENTS, greeting, renumbered)


def test_a_length_beyond_any_of_ours_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(StrangeError):
        connected()[0].take(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="a message of"):
        connected()[0].seal(bytes(wire.FRAME_BYTES + 1))
    with pytest.raises(StrangeError):
        wire.headed(wire.header(0, (4 << 20) + 1, bytes(32)))
    with pytest.raises(StageError):
        AttemptKeys(b"short", "job")


def test_the_secret_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_taken", signing._Taken())
    environ = {"FSDPKIT_SECRET": SECRET.hex(), "HOME": "/"}
    signing.take_secret(environ)
    assert environ == {"HOME": "/"}
    assert vars(signing.keys_of("12345_0")) == vars(KEYS)


@pytest.mark.parametrize("text", [None, "", "ab", "zz" * 32, "ab" * 33])
def test_without_a_secret_no_agent_talks_to_others(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "_taken", signing._Taken(text))
    with pytest.raises(NodeError, match="FSDPKIT_SECRET is not"):
        signing.keys_of("12345_0")
