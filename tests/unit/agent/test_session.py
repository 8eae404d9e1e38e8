"""The agent's session without a socket, on the memory store: what it stores, confirms, believes and sends again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.agent import contact as contacts
from posthouse.agent import desk
from posthouse.agent.book import Book
from posthouse.agent.contact import Contact, Standing
from posthouse.agent.courier import FULL_FIRST_S, RESEND_MS, SETTLED_MS, Courier
from posthouse.agent.happening import Connected, Delivered, Denied, HandedOver, Ignored, Pending, QueueFull, RateLimited
from posthouse.agent.identity import Identity
from posthouse.agent.session import PING_S, PONG_S, RESEND_AFTER_S, Session, Stage, open_message
from posthouse.mailbox.command import Command, Lease
from posthouse.mailbox.message import Ref, State
from posthouse.mailbox.outcome import Leased
from posthouse.stores.memory import MemoryStore
from posthouse.wire import envelope as wire
from posthouse.wire.address import address_of
from posthouse.wire.auth import challenge_bytes, confirm_bytes, is_signed

HOST = "relay.example"
START_US = 1_800_000_000_000_000
ME = Identity(bytes(31) + b"\1")
PEER = Identity(bytes(31) + b"\2")
MINE = address_of(ME.public_key, HOST)
THEIRS = address_of(PEER.public_key, HOST)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"


class Scene:
    """An agent whose store, clock and line are in the test's hand. Commits happen when it says so."""

    def __init__(self) -> None:
        self.store = MemoryStore(desk.POLICIES)
        self.book = Book(ME, self.store)
        self.courier = Courier("token")
        self.at_us = START_US
        self.mono_s = 100.0
        self.sent: list[wire.Envelope] = []
        self.pings: list[bytes] = []
        self.pongs: list[bytes] = []
        self.closed: list[tuple[int, str]] = []
        self.told: list[Any] = []
        self.uncommitted: list[tuple[tuple[Command, ...], Any]] = []
        self.holds_commits = False
        self._ids = 0
        self.session = self.connect()

    def connect(self, host: str | None = HOST) -> Session:
        self.session = Session(ME, self.courier, self, _Line(self), host)
        return self.session

    def admit(self) -> Session:
        self.session.frame(wire.auth_challenge(HOST, bytes(32), 0, 10_000))
        self.sent.clear()
        self.pings.clear()
        self.session.frame(wire.auth_result(True, assigned_address=MINE))
        assert self.session.stage is Stage.OPEN
        return self.session

    def again(self) -> None:
        """The connection is lost and made again."""
        self.session.lost()
        self.connect()
        self.admit()

    def lease(self) -> None:
        """What the client does all the time: take from the outbox."""
        while True:
            lease = Lease(desk.OUTBOX.name, None, "token", limit=10, at=self.at_us)
            leased = self.store.apply([lease])[0]
            assert isinstance(leased, Leased)
            if not leased.deliveries:
                return
            self.session.taken(leased.deliveries)

    def post(self, text: str) -> str:
        """Put a message for the peer into the outbox, and lease."""
        self._ids += 1
        draft = self.book.message(
            THEIRS, text.encode(), "text/plain", self.at_us // 1_000, self._ids.to_bytes(10, "big") + bytes(24)
        )
        self.apply(draft.command)
        self.lease()
        return draft.id

    def apply(self, *commands: Command) -> list[Any]:
        return self.store.apply([_at(command, self.at_us) for command in commands])

    def pong(self) -> None:
        """Answer the ping that is under way."""
        self.session.pong(self.pings.pop())

    def later(self, seconds: float) -> None:
        self.at_us += int(seconds * 1e6)
        self.mono_s += seconds

    def texts(self) -> list[str]:
        """The messages that were written, as their recipient reads them."""
        return [
            open_message(PEER, e, ME.public_key).content.decode()
            for e in self.sent
            if e.type == wire.MessageType.MESSAGE
        ]

    def confirmations(self) -> list[bytes]:
        return [e.delivery_confirm.message_id for e in self.sent if e.HasField("delivery_confirm")]

    def state(self, id: str) -> str:
        found = self.book.sent(THEIRS, id)
        assert found is not None
        return str(found["state"])

    # What the session asks for.

    def send(self, data: bytes) -> None:
        self.sent.append(wire.parse(data))

    def ping(self, payload: bytes) -> None:
        self.pings.append(payload)

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))

    def now_us(self) -> int:
        return self.at_us

    def monotonic_s(self) -> float:
        return self.mono_s

    def random(self) -> float:
        return 0.5

    def new_id(self) -> str:
        self._ids += 1
        return f"new-{self._ids}"

    def submit(self, commands: tuple[Command, ...], then: Any) -> None:
        self.uncommitted.append((commands, then))
        if not self.holds_commits:
            self.commit()

    def commit(self) -> None:
        while self.uncommitted:
            commands, then = self.uncommitted.pop(0)
            then(self.apply(*commands))

    def contact(self, address: str) -> Contact | None:
        return self.book.contact(address)

    def is_known(self, ref: Ref) -> bool:
        return self.store.message(ref) is not None

    def bodies(self, refs: Sequence[Ref]) -> list[bytes | None]:
        return self.store.bodies(refs)

    def tell(self, happening: Any) -> None:
        self.told.append(happening)


def _at(command: Command, at_us: int) -> Command:
    stamped = command._replace(at=at_us)
    if hasattr(stamped, "commands"):
        return stamped._replace(commands=tuple(_at(c, at_us) for c in stamped.commands))
    return stamped


class _Line:
    """What the session does with its socket, written down in the scene."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.send = scene.send
        self.ping = scene.ping
        self.close = scene.close

    def pong(self, payload: bytes) -> None:
        self._scene.pongs.append(payload)


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.admit()
    return made


def from_peer(text: str = "hello", id: bytes = ID.encode(), peer: Identity = PEER, to: Identity = ME) -> bytes:
    plain = wire.PlaintextPayload(version=1, content=text.encode(), content_type="text/plain").SerializeToString()
    sender, recipient = address_of(peer.public_key, HOST), address_of(to.public_key, HOST)
    cipher = peer.seal(to.public_key, plain, bytes(24))
    return wire.encrypted_message(sender, recipient, id, 1, bytes(24), cipher, peer.public_key)


def confirm(id: str, signer: Identity = PEER, peer: str = THEIRS, stored: bool = False) -> bytes:
    signature = signer.sign(confirm_bytes(id.encode(), 5))
    data = wire.delivery_confirm(peer, MINE, id.encode(), 5, signature)
    return wire.with_was_stored(data) if stored else data


# Authentication.


def test_a_challenge_is_answered_with_a_signature_over_its_host_and_nonce():
    scene = Scene()
    scene.session.frame(wire.auth_challenge("Relay.Example", b"n" * 32, 0, 10_000))
    answer = scene.sent[0].auth_response
    assert answer.nonce == b"n" * 32
    assert is_signed(ME.public_key, answer.signature, challenge_bytes("Relay.Example", b"n" * 32))
    address = address_of(ME.public_key, "Relay.Example")
    scene.session.frame(wire.auth_result(True, assigned_address=address))
    assert scene.told == [Connected(address, "Relay.Example")]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"\xff"], "does not speak Pinch"),
        ([wire.queue_status(1)], "no challenge"),
        ([wire.auth_challenge(HOST, bytes(31), 0, 1)], "malformed"),
        ([wire.auth_challenge("", bytes(32), 0, 1)], "malformed"),
        ([wire.auth_challenge("evil.example", bytes(32), 0, 1)], "evil.example, not of relay.example"),
        ([wire.auth_challenge(HOST, bytes(32), 0, 1), from_peer()], "did not answer"),
        (
            [wire.auth_challenge(HOST, bytes(32), 0, 1), wire.auth_result(False, "key not registered")],
            "key not registered",
        ),
        (
            [wire.auth_challenge(HOST, bytes(32), 0, 1), wire.auth_result(True, assigned_address=THEIRS)],
            "not of this key",
        ),
    ],
)
def test_a_relay_that_is_not_ours_or_does_not_want_us_is_left_with_the_reason(frames: list[bytes], words: str):
    scene = Scene()
    for frame in frames:
        scene.session.frame(frame)
    (denied,) = scene.told
    assert isinstance(denied, Denied)
    assert words in denied.reason
    assert scene.session.stage is Stage.ENDED
    assert scene.closed
    scene.session.frame(from_peer())
    assert scene.store.mailboxes() == []


def test_a_relay_that_does_not_go_on_is_left_after_ten_seconds():
    scene = Scene()
    scene.later(10.5)
    scene.session.tick()
    assert scene.closed == [(1002, "no authentication")]


# What comes.


def test_a_message_is_stored_first_and_then_confirmed(scene: Scene):
    scene.holds_commits = True
    scene.session.frame(from_peer())
    assert scene.confirmations() == []
    scene.commit()
    (sent,) = scene.sent
    confirmed = sent.delivery_confirm
    assert (sent.to_address, confirmed.message_id, confirmed.state) == (THEIRS, ID.encode(), "delivered")
    assert is_signed(ME.public_key, confirmed.signature, confirm_bytes(ID.encode(), confirmed.timestamp))
    (item,) = scene.book.unread()
    assert (item["text"], item["state"], item["peer"]) == ("hello", "unread", THEIRS)


def test_a_message_that_comes_again_is_confirmed_again_and_there_once(scene: Scene):
    scene.session.frame(from_peer())
    scene.again()
    scene.session.frame(from_peer())
    assert scene.confirmations() == [ID.encode()]
    assert len(scene.book.unread()) == 1


def test_two_senders_may_use_the_same_id(scene: Scene):
    scene.session.frame(from_peer())
    scene.session.frame(from_peer("other", peer=Identity(bytes(32))))
    assert [item["text"] for item in scene.book.unread()] == ["hello", "other"]


def test_what_cannot_be_decrypted_is_not_confirmed(scene: Scene):
    sealed_for_another = wire.parse(from_peer(to=Identity(bytes(32))))
    sealed_for_another.to_address = MINE
    scene.session.frame(sealed_for_another.SerializeToString())
    claimed = wire.parse(from_peer(peer=Identity(bytes(32))))
    claimed.from_address = THEIRS
    scene.session.frame(claimed.SerializeToString())
    empty = wire.parse(from_peer())
    empty.ClearField("encrypted")
    scene.session.frame(empty.SerializeToString())
    assert scene.sent == []
    assert scene.book.unread() == []
    assert [type(h) for h in scene.told[1:]] == [Ignored] * 3


def test_what_is_for_another_or_from_nobody_is_ignored(scene: Scene):
    for changes in ({"to_address": THEIRS}, {"from_address": "junk"}, {"from_address": "pinch:abc@" + HOST}):
        envelope = wire.parse(from_peer())
        for field, value in changes.items():
            setattr(envelope, field, value)
        scene.session.frame(envelope.SerializeToString())
    assert scene.sent == []
    assert scene.store.mailboxes() == []


def test_a_ping_is_answered_only_when_all_before_it_is_stored(scene: Scene):
    scene.session.ping(b"idle")
    assert scene.pongs == [b"idle"]
    scene.holds_commits = True
    scene.session.frame(from_peer())
    scene.session.ping(b"behind it")
    assert scene.pongs == [b"idle"]
    scene.commit()
    assert scene.pongs == [b"idle", b"behind it"]


def test_the_relay_says_what_it_kept(scene: Scene):
    scene.session.frame(wire.queue_status(3))
    assert scene.told[-1] == Pending(3)


NOISE = st.builds(
    lambda type: wire.Envelope(version=1, type=type, from_address=THEIRS, to_address=MINE).SerializeToString(),
    st.integers(0, 20),
)


@given(st.lists(st.binary(max_size=120) | NOISE, max_size=8))
def test_no_frame_of_the_relay_makes_a_session_fail(frames: list[bytes]):
    scene = Scene()
    scene.admit()
    for frame in frames:
        scene.session.frame(frame)
    assert scene.session.stage is Stage.OPEN


# What goes.


def test_messages_go_one_by_one_and_are_with_the_relay_when_a_pong_says_so(scene: Scene):
    one, two = scene.post("one"), scene.post("two")
    assert scene.texts() == ["one"]
    assert (scene.state(one), scene.state(two)) == ("queued", "queued")
    scene.pong()
    assert scene.texts() == ["one", "two"]
    assert (scene.state(one), scene.state(two)) == ("with the relay", "queued")
    assert HandedOver() not in scene.told
    scene.pong()
    assert scene.state(two) == "with the relay"
    assert scene.told[-1] == HandedOver()


def test_a_confirmation_with_the_recipients_signature_delivers(scene: Scene):
    id = scene.post("one")
    scene.pong()
    scene.session.frame(confirm(id, stored=True))
    assert scene.state(id) == "delivered"
    assert scene.told[-1] == Delivered(THEIRS, id, True)
    (item,) = scene.book.unread()
    assert (item["kind"], item["confirms"], item["was_stored"]) == ("delivery_confirm", id, True)
    assert scene.book.sent(THEIRS, id)["was_stored"] is True  # type: ignore[index]
    assert scene.courier.unconfirmed == 0


def test_a_confirmation_may_come_before_the_pong(scene: Scene):
    one, two = scene.post("one"), scene.post("two")
    scene.session.frame(confirm(one))
    assert scene.state(one) == "delivered"
    assert scene.texts() == ["one", "two"]
    scene.pong()
    scene.pong()
    assert (scene.state(one), scene.state(two)) == ("delivered", "with the relay")


def test_a_forged_confirmation_delivers_nothing(scene: Scene):
    id = scene.post("one")
    scene.pong()
    other = Identity(bytes(32))
    scene.session.frame(confirm(id, signer=other))
    scene.session.frame(confirm(id, signer=other, peer=address_of(other.public_key, HOST)))
    scene.session.frame(confirm("never-sent"))
    assert scene.state(id) == "with the relay"
    assert scene.book.unread() == []
    assert not any(isinstance(h, Delivered) for h in scene.told)


def test_a_confirmation_that_comes_twice_is_told_once(scene: Scene):
    id = scene.post("one")
    scene.pong()
    scene.session.frame(confirm(id))
    scene.session.frame(confirm(id))
    assert [h for h in scene.told if isinstance(h, Delivered)] == [Delivered(THEIRS, id, False)]
    assert len(scene.book.unread()) == 1


def test_what_no_pong_proved_is_sent_again_first_on_the_next_connection(scene: Scene):
    first = scene.post("one")
    scene.post("two")
    scene.again()
    assert scene.texts() == ["one"]
    assert scene.sent[-1].message_id == first.encode()
    scene.pong()
    assert scene.texts() == ["one", "two"]


def test_what_the_relay_has_is_not_sent_again_at_each_connection(scene: Scene):
    id = scene.post("one")
    scene.pong()
    for _ in range(3):
        scene.again()
        scene.later(60)
        scene.session.tick()
    scene.post("two")
    assert scene.texts() == ["two"]
    assert scene.state(id) == "with the relay"


def test_nor_after_a_restart(scene: Scene):
    id = scene.post("one")
    scene.pong()
    # As a new process finds it: the lease is over, the courier knows nothing.
    from posthouse.mailbox.command import Start

    scene.apply(Start(desk.POLICIES))
    assert scene.store.message(desk.outbound_ref(THEIRS, id)).state is State.READY  # type: ignore[union-attr]
    scene.courier = Courier("token")
    scene.connect()
    scene.admit()
    scene.lease()
    two = scene.post("two")
    assert scene.texts() == ["two"]
    assert scene.state(id) == "with the relay"
    scene.session.frame(confirm(id))
    assert scene.state(id) == "delivered"
    assert scene.state(two) == "queued"


def test_what_is_not_confirmed_for_an_hour_is_sent_again_with_the_same_id(scene: Scene):
    id = scene.post("one")
    scene.pong()
    # Each wait is as long as all before it: one hour, then one more, then two.
    for hours, times in ((0.99, 1), (0.02, 2), (0.98, 2), (0.04, 3), (1.9, 3), (0.2, 4)):
        scene.later(hours * RESEND_MS / 1_000)
        scene.session.pong(b"")
        scene.session.tick()
        while scene.pings:
            scene.pong()
        assert len(scene.texts()) == times
    assert {e.message_id for e in scene.sent} == {id.encode()}


def test_old_ones_wait_until_what_the_relay_kept_could_come(scene: Scene):
    id = scene.post("one")
    scene.pong()
    scene.later(RESEND_MS / 1_000 + 1)
    scene.again()
    scene.session.tick()
    assert scene.texts() == []
    scene.session.frame(confirm(id, stored=True))
    scene.later(RESEND_AFTER_S + 1)
    scene.session.tick()
    assert scene.texts() == []


def test_a_full_queue_puts_a_message_back_to_its_place_and_those_behind_it_wait(scene: Scene):
    one = scene.post("one")
    scene.pong()
    two, three = scene.post("two"), scene.post("three")
    scene.session.frame(wire.queue_full(THEIRS, "the queue is full (1000)", one.encode()))
    assert scene.told[-1] == QueueFull(THEIRS, one, "the queue is full (1000)")
    found = scene.book.sent(THEIRS, one)
    assert found is not None
    assert (found["state"], found["reason"]) == ("queued", "the queue is full (1000)")
    scene.sent.clear()
    scene.lease()
    assert scene.texts() == []
    scene.later(FULL_FIRST_S + 1)
    scene.again()
    scene.lease()
    for _ in range(3):
        scene.pong()
    assert scene.texts() == ["one", "two", "three"]
    assert [scene.state(id) for id in (one, two, three)] == ["with the relay"] * 3


def test_a_full_queue_that_names_no_message_means_the_last(scene: Scene):
    one = scene.post("one")
    scene.pong()
    scene.later(1)
    two = scene.post("two")
    scene.pong()
    scene.session.frame(wire.queue_full(THEIRS, "queue full", b""))
    assert (scene.state(one), scene.state(two)) == ("with the relay", "queued")


def test_a_full_queue_of_somebody_else_changes_nothing(scene: Scene):
    one = scene.post("one")
    scene.pong()
    scene.session.frame(wire.queue_full(address_of(bytes(32), HOST), "queue full", one.encode()))
    assert scene.state(one) == "with the relay"


def test_a_rate_limit_is_waited_for_and_nothing_is_lost_or_reordered(scene: Scene):
    scene.post("one")
    scene.post("two")
    scene.session.frame(wire.rate_limited(1_500, "slow down"))
    assert scene.told[-1] == RateLimited(1.5, "slow down")
    scene.pong()
    scene.later(1)
    scene.session.tick()
    assert scene.texts() == ["one"]
    scene.later(1)
    scene.session.tick()
    scene.pong()
    assert scene.texts() == ["one", "one", "two"]


def test_a_confirmation_that_a_rate_limit_may_have_eaten_is_sent_again(scene: Scene):
    scene.session.frame(from_peer())
    scene.session.frame(wire.rate_limited(100, "slow down"))
    scene.later(1)
    scene.session.tick()
    assert scene.confirmations() == [ID.encode(), ID.encode()]
    scene.pong()
    scene.session.frame(wire.rate_limited(100, "slow down"))
    scene.later(1)
    scene.session.tick()
    assert scene.confirmations() == [ID.encode(), ID.encode()]


def test_only_the_relay_itself_can_say_that_a_queue_is_full(scene: Scene):
    id = scene.post("one")
    scene.pong()
    forged = wire.parse(wire.queue_full(THEIRS, "full", id.encode()))
    forged.from_address, forged.to_address = THEIRS, MINE
    scene.session.frame(forged.SerializeToString())
    assert scene.state(id) == "with the relay"


def test_a_message_that_nobody_confirms_dies_after_a_week(scene: Scene):
    from posthouse.mailbox.command import Sweep

    id = scene.post("one")
    scene.pong()
    scene.later(7 * 86_400 + 1)
    scene.apply(Sweep())
    found = scene.book.sent(THEIRS, id)
    assert found is not None
    assert (found["state"], found["reason"]) == ("undelivered", "nobody confirmed it in time")


# Life.


def test_an_idle_connection_is_pinged_and_left_when_nothing_answers(scene: Scene):
    scene.later(PING_S - 1)
    scene.session.tick()
    assert scene.pings == []
    scene.later(1)
    scene.session.tick()
    assert len(scene.pings) == 1
    scene.pong()
    scene.later(PONG_S - 1)
    scene.session.tick()
    assert scene.closed == []
    scene.later(2)
    scene.session.tick()
    assert scene.closed == [(1002, "heartbeat timeout")]


def test_a_relay_is_not_pinged_too_often(scene: Scene):
    for number in range(200):
        scene.post(str(number))
    pongs = 0
    while scene.pings:
        scene.pong()
        pongs += 1
    assert pongs <= 41
    assert len(scene.texts()) == pongs + 1
    scene.later(1)
    scene.session.tick()
    while scene.pings:
        scene.pong()
        pongs += 1
    assert 42 <= pongs <= 46
    # Whoever is there confirms, and that needs no ping.
    while len(scene.texts()) < 200:
        scene.session.frame(confirm(scene.sent[-1].message_id.decode()))
    assert scene.texts() == [str(number) for number in range(200)]


# Contacts.


def request(greeting: str = "hi", expires_s: int = START_US // 1_000_000 + 60, id: bytes = b"") -> bytes:
    return wire.connection_request(THEIRS, MINE, id, 1, greeting, PEER.public_key, expires_s)


def standing(scene: Scene) -> Standing | None:
    found = scene.book.contact(THEIRS)
    return None if found is None else found.standing


def test_a_request_is_kept_until_somebody_decides(scene: Scene):
    scene.session.frame(request("x" * 300))
    assert standing(scene) is Standing.ASKS
    assert len(scene.book.contact(THEIRS).greeting) == contacts.GREETING_CHARACTERS_MAX  # type: ignore[union-attr]
    assert scene.sent == []
    scene.apply(scene.book.accept(THEIRS, "them", 1, bytes(10)).command)
    scene.lease()
    assert scene.sent[0].connection_response.accepted
    assert standing(scene) is Standing.ACCEPTED
    # It came again from the relay: nothing is undone.
    scene.session.frame(request("x" * 300))
    assert standing(scene) is Standing.ACCEPTED


def test_a_rejected_request_that_comes_again_stays_rejected_and_nobody_is_told(scene: Scene):
    scene.session.frame(request())
    scene.apply(scene.book.reject(THEIRS, 1))
    scene.session.frame(request())
    scene.lease()
    assert standing(scene) is Standing.REJECTED
    assert scene.sent == []
    scene.session.frame(request("please"))
    assert standing(scene) is Standing.ASKS


def test_a_request_that_is_over_or_names_another_is_ignored(scene: Scene):
    scene.session.frame(request(expires_s=1))
    other = wire.parse(request())
    other.connection_request.from_address = MINE
    scene.session.frame(other.SerializeToString())
    other = wire.parse(request())
    other.connection_request.sender_public_key = ME.public_key
    scene.session.frame(other.SerializeToString())
    assert standing(scene) is None


def test_an_answer_counts_only_where_we_asked(scene: Scene):
    answer = wire.connection_response(THEIRS, MINE, b"", 1, True, PEER.public_key)
    scene.session.frame(answer)
    assert standing(scene) is None
    scene.apply(scene.book.request(THEIRS, "hi", "them", 1, bytes(10)).command)
    assert standing(scene) is Standing.ASKED
    scene.session.frame(answer)
    assert standing(scene) is Standing.ACCEPTED
    assert scene.book.resolve("them") == THEIRS


def test_who_asks_whom_we_asked_is_accepted_and_told(scene: Scene):
    scene.apply(scene.book.request(THEIRS, "hi", "", 1, bytes(10)).command)
    scene.lease()
    scene.pong()
    scene.session.frame(request())
    scene.lease()
    assert standing(scene) is Standing.ACCEPTED
    assert scene.sent[-1].connection_response.accepted


def test_what_nobody_confirms_is_done_when_the_relay_had_time_to_refuse_it(scene: Scene):
    draft = scene.book.request(THEIRS, "hi", "", 1, bytes(10))
    scene.apply(draft.command)
    scene.lease()
    scene.pong()
    scene.session.tick()
    assert scene.state(draft.id) == "with the relay"
    scene.later(SETTLED_MS / 1_000)
    scene.session.tick()
    assert scene.state(draft.id) == "delivered"


def test_what_comes_from_somebody_blocked_is_neither_kept_nor_confirmed(scene: Scene):
    scene.session.frame(request())
    scene.apply(scene.book.block(THEIRS, 1, bytes(10)).command)
    scene.lease()
    assert scene.sent[0].block_notification.blocked_address == THEIRS
    scene.sent.clear()
    scene.session.frame(from_peer())
    scene.session.frame(request("again"))
    assert scene.sent == []
    assert [i["kind"] for i in scene.book.unread()] == ["connection_request"]
    scene.apply(scene.book.unblock(THEIRS, 1, bytes(9) + b"1").command)
    assert standing(scene) is Standing.ASKS


def test_who_ends_a_connection_is_believed(scene: Scene):
    scene.session.frame(request())
    scene.apply(scene.book.accept(THEIRS, "", 1, bytes(10)).command)
    revoke = wire.Envelope(version=1, from_address=THEIRS, to_address=MINE, type=10)  # type: ignore[arg-type]
    revoke.connection_revoke.from_address = THEIRS
    scene.session.frame(revoke.SerializeToString())
    assert standing(scene) is Standing.ENDED
