from __future__ import annotations

import hashlib
import traceback
from dataclasses import replace
from typing import Any, get_args

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import wire
from protocols.errors import BadSignatureError, MalformedMessageError
from protocols.fields import KIB, MAX_PARTIES, MAX_WORDS, Message, field_types
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.membership_messages import MOST_VOTES, Membership, MembershipQuery
from protocols.messages import (
    Closing,
    Dealing,
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    MaskedVector,
    Plan,
    Readiness,
    Refusal,
    Reveal,
    RunOffer,
    RunRecord,
    Settlement,
    ShareBundle,
    StreamSums,
    VectorHead,
)
from protocols.values import decode_value, digest_of_values, encode_value
from protocols.wire import MESSAGE_TYPES, PROTOCOL_VERSION
from tests.support.markers import sampled
from tests.support.message_strategies import messages
from tests.support.reference_cbor import cbor
from tests.support.vectors import read_vectors

VECTORS = read_vectors("wire_frames")
GOOD = [
    pytest.param(name, bytes.fromhex(item["frame"]), item["digest"], id=name)
    for name, item in VECTORS["good"].items()
]
SPOILED = [pytest.param(bytes.fromhex(f), id=name) for name, f in VECTORS["spoiled"].items()]
SIGNER = PublicIdentity(bytes.fromhex(VECTORS["signer"]))
ME = SigningIdentity.generate()
DIGEST = bytes(range(32))
ALL_TYPES = pytest.mark.parametrize("kind", MESSAGE_TYPES.values(), ids=lambda kind: kind.__name__)


def framed(message: Message) -> wire.Signed:
    return wire.sign(message, ME) if message.PURPOSE else wire.decode(wire.contain(message))


# Good frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "frame", "digest"), GOOD)
def test_a_known_frame_decodes_to_its_type_digest_and_signature(
    name: str, frame: bytes, digest: str
) -> None:
    signed = wire.decode(frame)
    assert type(signed.message).__name__ == name
    assert signed.digest.hex() == digest == wire.digest_of(signed.message).hex()
    assert signed.frame == frame
    if signed.message.PURPOSE:
        signed.verify(SIGNER)


def test_there_is_a_known_frame_of_every_type() -> None:
    assert list(VECTORS["good"]) == [kind.__name__ for kind in MESSAGE_TYPES.values()]


@sampled()
@ALL_TYPES
@settings(max_examples=20)
@given(data=st.data())
def test_decoding_gives_back_what_was_encoded(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    signed = framed(message)
    again = wire.decode(signed.frame)
    assert again.message == message
    assert again == signed
    if message.PURPOSE:
        again.verify(ME.public)


@given(messages())
def test_frames_are_what_a_second_encoder_writes(message: Message) -> None:
    values = [getattr(message, field) for field in field_types(type(message))]
    signed = framed(message)
    expected = b"\x84" + cbor(PROTOCOL_VERSION) + cbor(message.TYPE) + cbor(values)
    assert signed.frame == expected + cbor(signed.signature)
    body = b"\x83" + (head_bytes(message) or expected[1:])
    assert signed.digest == hashlib.sha256(b"pate-fed/1/message\0" + body).digest()


def head_bytes(message: Message) -> bytes:
    """What the digest of a y covers in place of its fields; empty for other messages."""
    if not isinstance(message, MaskedVector):
        return b""
    body = bytes(message.body)
    fields = [message.plan_digest, message.sender, len(body), hashlib.sha256(body).digest()]
    return cbor(PROTOCOL_VERSION) + cbor(VectorHead.TYPE) + cbor(fields)


@pytest.mark.parametrize("size", [4092, 4095, 4096, 4097, 2**16 - 1, 2**16, 2**16 + 1, 10**6])
def test_large_vectors_are_framed_as_a_second_encoder_does(size: int) -> None:
    signed = wire.sign(MaskedVector(DIGEST, DIGEST, bytes(size)), ME)
    body = cbor(PROTOCOL_VERSION) + cbor(MaskedVector.TYPE) + cbor([DIGEST, DIGEST, bytes(size)])
    assert signed.frame == b"\x84" + body + cbor(signed.signature)
    digested = b"\x83" + head_bytes(signed.message)
    assert signed.digest == hashlib.sha256(b"pate-fed/1/message\0" + digested).digest()
    assert wire.decode(signed.frame) == signed


@pytest.mark.parametrize(
    "view",
    [memoryview(bytearray(8)), memoryview(bytes(8)).cast("I")],
    ids=["that can be written", "of machine words"],
)
def test_a_vector_is_no_other_view_than_of_fixed_bytes(view: memoryview) -> None:
    with pytest.raises(MalformedMessageError, match="bytes"):
        MaskedVector(DIGEST, DIGEST, view)


@pytest.mark.parametrize("size", [4096, 2**16])
def test_a_large_vector_with_a_longer_head_is_malformed(size: int) -> None:
    frame = wire.sign(MaskedVector(DIGEST, DIGEST, bytes(size)), ME).frame
    head = cbor(bytes(size))[:-size]
    longer = {4096: b"\x5a" + size.to_bytes(4, "big"), 2**16: b"\x5b" + size.to_bytes(8, "big")}
    assert frame.count(head) == 1
    with pytest.raises(MalformedMessageError):
        wire.decode(frame.replace(head, longer[size]))


@given(messages(), messages())
def test_different_messages_have_different_digests(one: Message, other: Message) -> None:
    assert (wire.digest_of(one) == wire.digest_of(other)) == (one == other)


def test_numbers_of_types_have_one_encoding() -> None:
    assert PROTOCOL_VERSION < 24
    assert all(0 < number < 256 and number == kind.TYPE for number, kind in MESSAGE_TYPES.items())


@pytest.mark.parametrize("name", ["Refusal", "Membership"])
def test_a_number_written_longer_than_it_needs_is_refused(name: str) -> None:
    frame = bytes.fromhex(VECTORS["good"][name]["frame"])
    number = next(kind.TYPE for kind in MESSAGE_TYPES.values() if kind.__name__ == name)
    short = bytes([number]) if number < 24 else bytes([0x18, number])
    longer = bytes([0x18, number]) if number < 24 else bytes([0x19, 0, number])
    assert frame[2:].startswith(short)
    with pytest.raises(MalformedMessageError):
        wire.decode(frame[:2] + longer + frame[2 + len(short) :])


def test_purposes_of_signatures_differ() -> None:
    purposes = [
        kind.PURPOSE for kind in MESSAGE_TYPES.values() if kind.PURPOSE and kind is not VectorHead
    ]
    assert len(set(purposes)) == len(purposes)


def test_a_y_is_signed_by_its_head_and_by_no_other() -> None:
    signed = wire.sign(MaskedVector(DIGEST, DIGEST, bytes(12)), ME)
    head = wire.decode(wire.head_frame(signed))
    assert head.message == VectorHead(DIGEST, DIGEST, 12, hashlib.sha256(bytes(12)).digest())
    assert (head.digest, head.signature) == (signed.digest, signed.signature)
    head.verify(ME.public)
    for changed in (
        replace(head.message, size=8),
        replace(head.message, body_digest=hashlib.sha256(bytes(8)).digest()),
    ):
        with pytest.raises(BadSignatureError):
            replace(head, message=changed, digest=wire.digest_of(changed)).verify(ME.public)
    with pytest.raises(MalformedMessageError):
        wire.head_frame(wire.sign(Closing(DIGEST, DIGEST), ME))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_words_of_a_vector_come_through_unchanged(bits: int) -> None:
    words = np.arange(300).astype(f"<u{bits // 8}")
    frame = wire.sign(MaskedVector(DIGEST, DIGEST, words.tobytes()), ME).frame
    body = wire.expect(wire.decode(frame), MaskedVector).body
    assert np.array_equal(np.frombuffer(body, dtype=words.dtype), words)


# Spoiled frames --------------------------------------------------------------------------------


def test_the_kinds_in_a_packet_are_those_that_decoding_finds() -> None:
    frames = [frame.values[1] for frame in GOOD]
    for taken in ([], frames[:1], frames[-5:], frames[: wire.MAX_PACKET_FRAMES]):
        packet = wire.pack(taken)
        names = tuple(type(wire.decode(frame).message).__name__ for frame in taken)
        assert wire.kinds_in(packet) == names
    large = wire.sign(MaskedVector(DIGEST, ME.fingerprint, bytes(2**17)), ME).frame
    assert wire.kinds_in(wire.pack([large, frames[0]]))[0] == "MaskedVector"


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x80", id="a receipt"),
        pytest.param(b"\x81\x45hello", id="a frame of another kind"),
        pytest.param(b"\x81\x84\x02\x01", id="no byte string"),
        pytest.param(b"\x81\x5b" + b"\xff" * 9, id="a length of eight bytes"),
        pytest.param(b"\x81\x5a\xff", id="a length cut off"),
        pytest.param(b"\x97" + b"\x40" * 10**6, id="a million empty frames"),
    ],
)
def test_a_packet_that_nobody_can_read_has_no_kinds(packet: bytes) -> None:
    assert wire.kinds_in(packet) == ()


@pytest.mark.parametrize("frame", SPOILED)
def test_a_spoiled_frame_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        wire.decode(frame)


@sampled("name", cases=2)
@pytest.mark.parametrize(("name", "frame", "digest"), GOOD)
def test_no_flipped_bit_goes_unnoticed(name: str, frame: bytes, digest: str) -> None:
    original = wire.decode(frame)
    for place in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[place] ^= 1 << bit
            _assert_refused_or_other(bytes(changed), original)


def _assert_refused_or_other(frame: bytes, original: wire.Signed) -> None:
    try:
        signed = wire.decode(frame)
    except MalformedMessageError:
        return
    assert (signed.digest, signed.signature) != (original.digest, original.signature)
    if signed.digest == original.digest:  # then the signature changed
        with pytest.raises(BadSignatureError):
            signed.verify(SIGNER)


@pytest.mark.parametrize(("name", "frame", "digest"), GOOD)
def test_every_truncation_and_extension_is_malformed(name: str, frame: bytes, digest: str) -> None:
    for size in range(0, len(frame), 3):
        with pytest.raises(MalformedMessageError):
            wire.decode(frame[:size])
    for extra in (b"\0", b"\xff", frame):
        with pytest.raises(MalformedMessageError):
            wire.decode(frame + extra)


_scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary()
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)


_plain = _nested(_nested(_scalars))


MAY_BE_EMPTY = {  # nobody refused; no peer; the plan is closed
    ("Settlement", 5), ("RunRecord", 13), ("MembershipQuery", 7), ("MembershipQuery", 8),
    ("Membership", 4), ("Membership", 5), ("Membership", 7),
    ("SetProposal", 2), ("Verdict", 1), ("Certificate", 1), ("Readiness", 2),
}  # fmt: skip
ODD = [None, False, True, 0, 1, -1, 2**40, 1.0, 0.5, "", "x" * 32, b"", [], [1], ["x"], [[]], {}]


@sampled()
@pytest.mark.parametrize(("name", "frame", "digest"), GOOD)
def test_a_field_of_another_type_is_malformed(name: str, frame: bytes, digest: str) -> None:
    version, number, fields, signature = cbor2.loads(frame)
    for place, old in enumerate(fields):
        for value in ODD:
            if type(value) is type(old) is not list or _has_items_like(value, old):
                continue
            if value == [] and (name, place) in MAY_BE_EMPTY:
                continue
            changed = [*fields[:place], value, *fields[place + 1 :]]
            with pytest.raises(MalformedMessageError):
                wire.decode(cbor2.dumps([version, number, changed, signature], canonical=True))


def _has_items_like(value: Any, old: Any) -> bool:
    """Whether both are lists whose items are of one type: then it may be a good field."""
    both = [value, old]
    return all(isinstance(one, list) and one for one in both) and type(value[0]) is type(old[0])


@sampled("tag", cases=20)
@pytest.mark.parametrize(
    "tag", [*range(40), 52, 54, 64, 100, 256, 258, 260, 261, 1004, 43000, 55799, 10**6, 2**63]
)
@pytest.mark.parametrize(
    "content", [b"\x01", b"\x41\x01", b"\x61\x61", b"\x82\x01\x02", b"\xa0"], ids=bytes.hex
)
def test_no_tag_is_read(tag: int, content: bytes) -> None:
    head = cbor2.dumps(cbor2.CBORTag(tag, 0))[:-1]
    for data in (head + content, b"\x81" + head + content, b"\xa1" + head + content + b"\x01"):
        with pytest.raises(MalformedMessageError) as caught:
            decode_value(data)
        # Refused as a tag, not for what became of it: dates and patterns are never built.
        assert "tags" in "".join(traceback.format_exception(caught.value))


# Bounds ----------------------------------------------------------------------------------------


@ALL_TYPES
def test_a_frame_over_its_bound_is_refused_before_it_is_parsed(
    kind: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(data: bytes) -> object:
        raise AssertionError("parsed")

    monkeypatch.setattr(wire, "loads", parse)
    monkeypatch.setattr(kind, "MAX_BYTES", min(kind.MAX_BYTES, 4 * KIB))
    head = bytes((0x84, PROTOCOL_VERSION)) + cbor2.dumps(kind.TYPE)
    with pytest.raises(MalformedMessageError, match="most"):
        wire.decode(head.ljust(kind.MAX_BYTES + 1, b"\0"))
    with pytest.raises(AssertionError, match="parsed"):
        wire.decode(head.ljust(kind.MAX_BYTES, b"\0"))


CONTAINERS = (RunRecord, EnvelopeBundle, HeadBundle, ShareBundle, Dealing, Reveal)
"""What holds frames and other long items: never all of them as long as one may be."""


@sampled()
@ALL_TYPES
def test_the_largest_message_fits_its_bound(kind: type[Message]) -> None:
    if kind is MaskedVector:  # a quarter of a gigabyte: reckoned
        assert 4 * MAX_WORDS + 200 < MaskedVector.MAX_BYTES
        return
    most = {bytes: bytes, str: lambda n: "x" * n, int: lambda n: n}
    values: list[Any] = []
    for hint in field_types(kind).values():
        base, bound = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", (None,))[0]
        if base is bool:
            values.append(True)
        elif base in most:
            values.append(most[base](bound.most))
        else:
            values.append((_largest_item(kind, hint),) * bound.most)
    signed = framed(kind(*values))
    assert wire.decode(signed.frame) == signed


def _largest_item(kind: type[Message], hint: Any) -> int | str | bytes:
    """One item of a tuple: a number, a name, a digest, or a real frame inside a container."""
    if kind in (StreamSums, Readiness):
        return 2**32 - 1
    if kind is MembershipQuery:
        return "x" * 64 if "str" in str(hint) else MOST_VOTES
    if kind is Membership:
        letter = "\U00020000" if "Letters" in str(hint) else "x"
        return letter * 64 if "str" in str(hint) else bytes(32)
    if kind not in CONTAINERS:
        item, *_ = get_args(get_args(hint)[0])
        return bytes(item.__metadata__[0].most)
    if "most=32" in str(hint):
        return bytes(32)
    return bytes(250 if kind.__name__ == "RunRecord" else 2500)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Closing(DIGEST[1:], DIGEST), "short digest"),
        (lambda: Closing(DIGEST + b"\0", DIGEST), "long digest"),
        (lambda: Closing(bytearray(DIGEST), DIGEST), "bytearray"),  # type: ignore[arg-type]
        (lambda: Refusal(DIGEST, DIGEST, ""), "empty name"),
        (lambda: Refusal(DIGEST, DIGEST, "x" * 65), "long name"),
        (lambda: Refusal(DIGEST, DIGEST, "PF\n301"), "a line break"),
        (lambda: Refusal(DIGEST, DIGEST, "\x1b[2J"), "a terminal's control sequence"),
        (lambda: Refusal(DIGEST, DIGEST, "P\u0415"), "a letter that looks like another"),
        (lambda: HeadStatement(DIGEST, DIGEST, DIGEST, -1, 0), "negative count"),
        (lambda: HeadStatement(DIGEST, DIGEST, DIGEST, 2**32, 0), "count of 2^32"),
        (lambda: HeadStatement(DIGEST, DIGEST, DIGEST, True, 0), "bool for a count"),
        (lambda: HeadStatement(DIGEST, DIGEST, DIGEST, 1.0, 0), "float for a count"),  # type: ignore[arg-type]
        (lambda: HeadStatement(DIGEST, DIGEST, DIGEST, np.int64(1), 0), "numpy count"),  # type: ignore[arg-type]
        (lambda: Plan(DIGEST, 1, 0, DIGEST, 0, 1, b""), "no words"),
        (lambda: Plan(DIGEST, 1, 0, DIGEST, MAX_WORDS + 1, 1, b""), "too many words"),
        (lambda: Plan(DIGEST, 1, 0, DIGEST, 1, 1, bytes(512 * KIB + 1)), "long terms"),
        (lambda: EnvelopeBundle(DIGEST, ()), "no envelopes"),
        (lambda: EnvelopeBundle(DIGEST, (b"x",) * (MAX_PARTIES + 1)), "too many"),
        (lambda: EnvelopeBundle(DIGEST, (bytes(4 * KIB + 1),)), "a long frame"),
        (lambda: EnvelopeBundle(DIGEST, [b"x"]), "a list"),  # type: ignore[arg-type]
        (lambda: EnvelopeBundle(DIGEST, ("x",)), "text in a tuple"),  # type: ignore[arg-type]
        (lambda: Settlement(DIGEST, DIGEST, "void", 1, (bytes(33),), (), b"", b""), "long item"),
        (lambda: RunOffer(DIGEST, DIGEST, "f", 33, "s", 1, True), "ring of 33 bits"),
        (lambda: RunOffer(DIGEST, DIGEST, "f", 32, "s", 1, 1), "int for a bool"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_out_of_its_bound_makes_no_message(make: Any, why: str) -> None:
    with pytest.raises(MalformedMessageError):
        make()


# Signatures ------------------------------------------------------------------------------------


def test_a_signature_for_one_type_is_worth_nothing_for_another() -> None:
    closing = Closing(DIGEST, DIGEST)
    signature = wire.sign(closing, ME).signature
    for kind in MESSAGE_TYPES.values():
        if kind.PURPOSE and kind is not Closing:
            with pytest.raises(BadSignatureError):
                ME.public.verify(
                    purpose=kind.PURPOSE, digest=wire.digest_of(closing), signature=signature
                )


def test_expect_refuses_another_type() -> None:
    signed = wire.sign(Closing(DIGEST, DIGEST), ME)
    assert wire.expect(signed, Closing) == signed.message
    with pytest.raises(MalformedMessageError):
        wire.expect(signed, Plan)


# Packets and plain data ------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30), max_size=wire.MAX_PACKET_FRAMES))
def test_unpacking_gives_back_what_was_packed(frames: list[bytes]) -> None:
    assert wire.unpack(wire.pack(frames), max_bytes=10_000) == frames


def test_a_packet_that_nobody_would_take_is_not_packed() -> None:
    with pytest.raises(ValueError, match=r"\b16\b"):
        wire.pack([b"x"] * (wire.MAX_PACKET_FRAMES + 1))


@pytest.mark.parametrize("size", [0, 1, 23, 24, 255, 256, 2**16 - 1, 2**16, 10**5])
def test_a_packet_is_what_a_second_encoder_writes(size: int) -> None:
    for frames in ([], [bytes(size)], [b"x", bytes(size)] * 8):
        assert wire.pack(frames) == cbor(frames)


def test_a_packet_too_long_is_malformed() -> None:
    with pytest.raises(MalformedMessageError):
        wire.unpack(cbor([bytes(2000)]), max_bytes=1000)


@given(_plain)
def test_plain_data_comes_through_unchanged(value: Any) -> None:
    data = encode_value(value)
    again = decode_value(data)
    assert encode_value(again) == data  # NaN is not equal to itself
    assert repr(again) == repr(value) or isinstance(value, dict | list)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xa1\x80\x02", id="list as key"),
        pytest.param(b"\x81\xa1\xf7\x02", id="undefined as key, inside a list"),
        pytest.param(b"\x63\xed\xa0\x80", id="a surrogate"),
        pytest.param(b"\xbb" + b"\x7f" + b"\xff" * 7, id="claims 2^63 pairs"),
    ],
)
def test_data_that_is_not_plain_and_canonical_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_value(data)


@given(st.text(max_size=8), st.binary(max_size=8), st.text(max_size=8), st.binary(max_size=8))
def test_labels_separate_digests(one: str, data: bytes, other: str, more: bytes) -> None:
    same = (one, data) == (other, more)
    equal = digest_of_values(one, data) == digest_of_values(other, more)
    assert equal == same


@pytest.mark.parametrize("size", [1, 23, 24, 255, 256, 4095, 4096, 65_535, 65_536, 1_000_003])
def test_a_vector_frame_has_the_bytes_of_the_signed_message(size: int) -> None:
    identity = SigningIdentity.generate()
    body = bytes(range(256)) * (size // 256 + 1)
    expected = wire.sign(MaskedVector(b"p" * 32, b"s" * 32, body[:size]), identity)
    frame = wire.VectorFrame(plan_digest=b"p" * 32, sender=b"s" * 32, size=size)
    frame.body[:] = body[:size]
    assert frame.sign(identity) == (expected.frame, expected.digest)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"size": 0}, id="no vector"),
        pytest.param({"size": 4 * MAX_WORDS + 1}, id="a vector too long"),
        pytest.param({"plan_digest": b"p" * 31}, id="a short digest"),
        pytest.param({"sender": b"s" * 33}, id="a long sender"),
    ],
)
def test_a_vector_frame_keeps_the_bounds_of_the_message(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessageError):
        wire.VectorFrame(**{"plan_digest": b"p" * 32, "sender": b"s" * 32, "size": 8, **fields})


def test_a_vector_that_somebody_may_still_change_is_not_signed() -> None:
    frame = wire.VectorFrame(plan_digest=b"p" * 32, sender=b"s" * 32, size=8)
    body = frame.body
    with pytest.raises(BufferError):
        frame.sign(SigningIdentity.generate())
    body.release()
    frame.sign(SigningIdentity.generate())


def _outcome(frame: bytes) -> object:
    try:
        signed = wire.decode(frame)
    except MalformedMessageError:
        return MalformedMessageError
    return signed.message, signed.signature, signed.digest


@sampled()
@pytest.mark.parametrize("size", [4000, 4096, 65_530, 65_535, 65_536, 70_000])
def test_a_vector_is_read_in_place_as_the_parser_reads_it(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = wire.sign(MaskedVector(b"p" * 32, b"s" * 32, b"\x58" * size), ME).frame
    places = [*range(90), *range(len(frame) - 70, len(frame))]
    others = [frame[:-1], frame[:-66], frame + b"\0", frame[:80] + frame[81:]]
    others += [
        frame[:at] + bytes([frame[at] ^ bit]) + frame[at + 1 :]
        for at in places
        for bit in (1, 3, 0x40)
    ]
    # A length that is written longer than it must be is another form of the same message.
    others.append(frame[:72] + b"\x5b" + size.to_bytes(8, "big") + frame[-size - 66 :])
    others.append(frame[:72] + b"\x5a" + size.to_bytes(4, "big") + frame[-size - 66 :])
    in_place = [_outcome(other) for other in [frame, *others]]
    monkeypatch.setattr(wire, "_vector_in", lambda frame: None)
    assert [_outcome(other) for other in [frame, *others]] == in_place
    assert MalformedMessageError in in_place
    assert in_place[0] != MalformedMessageError
