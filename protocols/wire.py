"""Bytes of messages: deterministic CBOR (RFC 8949, section 4.2), version first, signature last.

A frame is the CBOR array ``[version, type, [fields...], signature]``. The digest of a message
covers the first three items: adding the signature leaves it unchanged. That of a y is its head's,
so that its signature proves its length to whoever has the head alone. Decoding is strict: it
refuses every frame that differs from the bytes of `encode`, and tags, trailing bytes, indefinite
lengths and items above the type's bound.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from io import BytesIO
from typing import TypeVar

from protocols import membership_messages, messages, vote_messages
from protocols.errors import MalformedMessageError
from protocols.fields import DIGEST_BYTES, Message, field_types
from protocols.identity import SIGNATURE_BYTES, PublicIdentity, SigningIdentity
from protocols.messages import MaskedVector, VectorHead
from protocols.values import Piece, digest, encode_value, loads

PROTOCOL_VERSION = 2
MESSAGE_TYPES: dict[int, type[Message]] = dict(
    sorted(
        (kind.TYPE, kind)
        for module in (messages, membership_messages, vote_messages)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    )
)

PACKET_FORM = "pate-fed/1/packet"
"""The form that a framework's container of bytes names where it carries a packet."""

MOST_SMALL_BYTES = 2**16
"""A framework may carry a packet up to this size in one piece, as plain bytes."""

_DIGESTED = b"\x83"  # an array of three: version, type, fields
_FRAMED = b"\x84"  # the same with a signature
_DIGEST_HEAD = b"\x58\x20"  # bytes of length 32
_SIGNATURE_HEAD = b"\x58\x40"  # bytes of length 64
_VECTOR_HEAD = _FRAMED + bytes((PROTOCOL_VERSION, MaskedVector.TYPE)) + b"\x83"
_LARGE = 4096
MAX_PACKET_FRAMES = 16

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Signed:
    """A decoded frame, with `digest_of` its message; the signature of a container is empty."""

    message: Message
    signature: bytes = field(repr=False)
    digest: bytes
    frame: bytes = field(repr=False)

    def verify(self, signer: PublicIdentity) -> None:
        """Raise `BadSignatureError` unless `signer` signed this message."""
        signer.verify(purpose=self.message.PURPOSE, digest=self.digest, signature=self.signature)


def digest_of(message: Message) -> bytes:
    """Return SHA-256 over version, type and fields, 32 bytes; of a y those of its head."""
    return _digest_of(message, _encoded(message))


def sign(message: Message, identity: SigningIdentity) -> Signed:
    """Sign a message and return it with its frame."""
    pieces = _encoded(message)
    digest = _digest_of(message, pieces)
    signature = identity.sign(purpose=message.PURPOSE, digest=digest)
    return Signed(message, signature, digest, _frame_of(pieces, signature))


def head_frame(signed: Signed) -> bytes:
    """Return the frame of a y's head, under the signature of the y."""
    return _frame_of(_encoded(expect(signed, MaskedVector).head), signed.signature)


class VectorFrame:
    """The frame of a `MaskedVector` in the making, in one buffer, for a y of `size` bytes.

    y may have many megabytes: it is written where it is sent from, and copied nowhere.
    """

    def __init__(self, *, plan_digest: bytes, sender: bytes, size: int) -> None:
        VectorHead(plan_digest, sender, size, bytes(DIGEST_BYTES))  # refuses a size out of bounds
        self._fields = plan_digest, sender
        # With one byte for y: the bytes before y do not depend on it.
        *head, _ = _encoded(MaskedVector(plan_digest, sender, b"\0"))
        start = b"".join((_FRAMED, *head, _bytes_head(size)))
        self._body = slice(len(start), len(start) + size)
        self._buffer = BytesIO()
        # The whole length at once; a signature's place is kept by its own length.
        self._buffer.seek(self._body.stop + len(_SIGNATURE_HEAD) + SIGNATURE_BYTES - 1)
        self._buffer.write(b"\0")
        self._buffer.seek(0)
        self._buffer.write(start)

    @property
    def body(self) -> memoryview:
        """Where y goes: writeable. To be let go of before `sign`."""
        return self._buffer.getbuffer()[self._body]

    def sign(self, identity: SigningIdentity) -> tuple[bytes, bytes]:
        """Sign `body`, which nobody may hold any more, once; return frame and message digest."""
        with self._buffer.getbuffer() as frame:
            body_digest = hashlib.sha256(frame[self._body]).digest()
        size = self._body.stop - self._body.start
        digest = digest_of(VectorHead(*self._fields, size, body_digest))
        signature = identity.sign(purpose=MaskedVector.PURPOSE, digest=digest)
        self._buffer.seek(self._body.stop)
        self._buffer.write(_SIGNATURE_HEAD + signature)
        frame_bytes = self._buffer.getvalue()  # CPython's own bytes, not a copy of them
        self._buffer.close()
        return frame_bytes, digest


def contain(message: Message) -> bytes:
    """Return the frame of a container, whose parts are signed one by one."""
    return _frame_of(_encoded(message), b"")


def decode(frame: bytes) -> Signed:
    """Decode one frame, strictly: the canonical form of a message of this version.

    Raises `MalformedMessageError` where it is none.
    """
    message_type = _announced_type(frame)
    if message_type is MaskedVector and len(frame) >= _LARGE:
        vector = _vector_in(frame)
        if vector is not None:
            return vector
    parts = loads(frame)
    if type(parts) is not list or len(parts) != 4:
        raise MalformedMessageError("a frame must be a list of 4")
    body, signature = parts[2:]
    if type(body) is not list or len(body) != len(field_types(message_type)):  # type: ignore[arg-type]
        raise MalformedMessageError(f"a {message_type.__name__} must have its fields")
    message = message_type(*(tuple(x) if type(x) is list else x for x in body))
    expected = SIGNATURE_BYTES if message_type.PURPOSE else 0
    if type(signature) is not bytes or len(signature) != expected:
        raise MalformedMessageError(f"a signature must have {expected} bytes")
    pieces = _encoded(message)
    if not _consists_of(frame, (_FRAMED, *pieces, encode_value(signature))):
        raise MalformedMessageError("a frame must be in canonical form")
    return Signed(message, signature, _digest_of(message, pieces), frame)


def expect(signed: Signed, message_type: type[M]) -> M:
    """Return the message as `message_type`; `MalformedMessageError` where it is of another."""
    if not isinstance(signed.message, message_type):
        raise MalformedMessageError(
            f"the message must be a {message_type.__name__}", type(signed.message).__name__
        )
    return signed.message


def pack(frames: list[bytes]) -> bytes:
    """Join at most `MAX_PACKET_FRAMES` frames of one exchange to a packet: a CBOR list of bytes."""
    if len(frames) > MAX_PACKET_FRAMES:
        raise ValueError(f"a packet must have at most {MAX_PACKET_FRAMES} frames")
    pieces = [bytes((0x80 | len(frames),))]
    for frame in frames:
        pieces += [_bytes_head(len(frame)), frame]
    return b"".join(pieces)


def unpack(packet: bytes, *, max_bytes: int) -> list[bytes]:
    """Split a packet into its frames; the inverse of `pack`.

    Raises `MalformedMessageError` where it is no canonical list of at most `MAX_PACKET_FRAMES`
    frames, or longer than `max_bytes`.
    """
    if len(packet) > max_bytes:
        raise MalformedMessageError(f"a packet must have at most {max_bytes} bytes", len(packet))
    frames = loads(packet)
    if type(frames) is not list or len(frames) > MAX_PACKET_FRAMES:
        raise MalformedMessageError(
            f"a packet must be a list of at most {MAX_PACKET_FRAMES} frames"
        )
    if not all(type(frame) is bytes for frame in frames):
        raise MalformedMessageError("frames must be bytes")
    if pack(frames) != packet:
        raise MalformedMessageError("a packet must be in canonical form")
    return frames


_WIDTHS = {24: 1, 25: 2, 26: 4}
_HEAD_BYTES = 4


def kinds_in(packet: bytes) -> tuple[str, ...]:
    """Name the types of the messages in a packet, for a list of what was sent.

    Nothing is checked, and no frame is copied: a packet that nobody could read has no name.
    """
    kinds: list[str] = []
    place = 1
    while place < len(packet) and len(kinds) < MAX_PACKET_FRAMES:
        # RFC 8949, section 3: a byte string, and its length here or in the next 1, 2 or 4 bytes.
        size, width = packet[place] & 31, _WIDTHS.get(packet[place] & 31, 0)
        if packet[place] & 0xE0 != 0x40 or (size > 23 and not width):
            return ()
        place += 1
        size = int.from_bytes(packet[place : place + width], "big") if width else size
        place += width
        try:
            kinds.append(_announced_type(packet[place : place + _HEAD_BYTES]).__name__)
        except MalformedMessageError:
            return ()
        place += size
    return tuple(kinds)


def _vector_in(frame: bytes) -> Signed | None:
    """Read a y where it must stand: its frame has one shape, in which only lengths vary.

    Parsed and compared as other messages are, four megabytes would be copied and read once more.
    None if the frame has another shape: then it is none, or was made by others.
    """
    plan = len(_VECTOR_HEAD) + len(_DIGEST_HEAD)
    sender = plan + DIGEST_BYTES + len(_DIGEST_HEAD)
    start = sender + DIGEST_BYTES
    stop = len(frame) - len(_SIGNATURE_HEAD) - SIGNATURE_BYTES
    # A head of 3 or 5 bytes says the length: which one, `_bytes_head` knows.
    room = stop - start
    sizes = (n for n in (room - 3, room - 5) if n > 0 and n + len(_bytes_head(n)) == room)
    size = next(sizes, 0)
    digests = frame[plan : plan + DIGEST_BYTES], frame[sender:start]
    heads = (_VECTOR_HEAD, _DIGEST_HEAD, digests[0], _DIGEST_HEAD, digests[1], _bytes_head(size))
    is_in_shape = frame.startswith(b"".join(heads)) and frame.startswith(_SIGNATURE_HEAD, stop)
    if not size or not is_in_shape:
        return None
    message = MaskedVector(*digests, memoryview(frame)[stop - size : stop])
    return Signed(message, frame[-SIGNATURE_BYTES:], digest_of(message.head), frame)


def _frame_of(pieces: list[Piece], signature: bytes) -> bytes:
    return b"".join((_FRAMED, *pieces, encode_value(signature)))


def _consists_of(frame: bytes, pieces: tuple[Piece, ...]) -> bool:
    place = 0
    for piece in pieces:
        if not frame.startswith(bytes(piece), place):  # which copies no bytes
            return False
        place += len(piece)
    return place == len(frame)


def _digest_of(message: Message, pieces: list[Piece]) -> bytes:
    if isinstance(message, MaskedVector):
        pieces = _encoded(message.head)
    return digest(_DIGESTED, *pieces)


def _encoded(message: Message) -> list[Piece]:
    """Version, type and fields in pieces, so that a vector of many megabytes is never copied."""
    values = [getattr(message, name) for name in field_types(type(message))]  # type: ignore[arg-type]
    # Numbers below 24 are their own encoding, and so is the head of a list of fewer than 24.
    number = (message.TYPE,) if message.TYPE < 24 else (0x18, message.TYPE)
    pieces: list[Piece] = [bytes((PROTOCOL_VERSION, *number, 0x80 | len(values)))]
    for value in values:
        if type(value) is memoryview or (type(value) is bytes and len(value) >= _LARGE):
            pieces += [_bytes_head(len(value)), value]
        elif type(value) is tuple and set(map(type, value)) == {bytes}:
            pieces += _encoded_items(value)
        else:
            pieces.append(encode_value(value))
    return pieces


def _encoded_items(items: tuple[bytes, ...]) -> list[bytes]:
    """A list of byte strings: a masked run has thousands of hashes, nearly all equally long."""
    head = _head(0x80, len(items))
    sizes = set(map(len, items))
    if len(sizes) > 1:
        return [head, *(piece for item in items for piece in (_bytes_head(len(item)), item))]
    item_head = _bytes_head(sizes.pop())
    return [head + item_head + item_head.join(items)]


def _bytes_head(size: int) -> bytes:
    return _head(0x40, size)


def _head(major: int, size: int) -> bytes:
    # RFC 8949, section 3: the major type, then the length in as few bytes as hold it.
    if size < 24:
        return bytes((major | size,))
    if size < 2**8:
        return bytes((major | 24, size))
    if size < 2**16:
        return bytes((major | 25,)) + size.to_bytes(2, "big")
    return bytes((major | 26,)) + size.to_bytes(4, "big")


def _announced_type(frame: bytes) -> type[Message]:
    """Read version and type off the first bytes: a frame's size is bounded before it is parsed."""
    if frame[:1] != _FRAMED:
        raise MalformedMessageError("a frame must be a list of 4")
    if frame[1:2] != bytes((PROTOCOL_VERSION,)):
        raise MalformedMessageError(f"the version must be {PROTOCOL_VERSION}", *frame[1:2])
    # RFC 8949, section 3: a number below 24 is its own encoding, one below 256 comes after 0x18.
    announced = frame[3:4] if frame[2:3] == b"\x18" else frame[2:3]
    message_type = MESSAGE_TYPES.get(announced[0]) if announced else None
    if message_type is None:
        raise MalformedMessageError("a message must be of a known type", *announced)
    if len(frame) > message_type.MAX_BYTES:
        raise MalformedMessageError(
            f"a {message_type.__name__} must have at most {message_type.MAX_BYTES} bytes",
            len(frame),
        )
    return message_type
