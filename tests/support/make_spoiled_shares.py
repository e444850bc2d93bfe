"""Spoiled messages of the masked form, each named for what is spoiled, for `make_run_vectors`.

All are for the run of five without seat 1. What a party meets is addressed to seat 0, what the
coordinator meets is sent by seat 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.support import reference_frames as frames
from tests.support import reference_sharing as sharing
from tests.support.make_format_vectors import some_bytes
from tests.support.reference_frames import write_frame
from tests.support.reference_sharing import SHARE_BYTES, Dealing, write_share

if TYPE_CHECKING:
    from tests.support.make_run_vectors import Run

Row = dict[str, Any]
READER, DEALER = 0, 3
"""Seat that a spoiled message is for or from; seat whose part of a bundle is spoiled."""

NOT_CANONICAL = b"\x01" + bytes(31) + b"\x01\x00"
"""A share that says of one number both that it is 1 and that it is 65536."""


def flipped(data: bytes, place: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def spoiled_bundles_to_a_holder(run: Run) -> dict[str, Row]:
    """Bundles to seat 0: refused as a whole, or shares of which it opens none."""
    dealing, column = run.dealing(DEALER), run.columns(DEALER)[READER]
    frame = run.dealing_frames[DEALER]
    digest, key = _digest(frame), run.column_key(DEALER, READER)

    def bundle(*, dealt: bytes = frame, sealed: bytes = run.sealed[DEALER, READER]) -> bytes:
        frames_of, envelopes = {**run.dealing_frames, DEALER: dealt}, dict(run.sealed)
        envelopes[DEALER, READER] = sealed
        others = [seat for seat in run.survivors if seat != READER]
        return _bundle(run, [frames_of[s] for s in others], [envelopes[s, READER] for s in others])

    def sealed(content: bytes, *, told: bytes = digest, under: bytes = key) -> bytes:
        return bundle(sealed=sharing.seal_column(under, told, content))

    def dealt(shares: bytes, *, keys: bytes | None = None) -> bytes:
        """A dealer that cheats: its root is of what it seals, which is no column."""
        keys = sharing.column_of(dealing, shares, READER)[:32] if keys is None else keys
        own = sharing.hashes_of_shares(dealing, shares, READER)[DEALER]
        roots = list(dealing.roots)
        roots[READER] = dealing.root_of(own, keys)
        signed = _signed(run, replace(dealing, roots=roots))
        return bundle(dealt=signed, sealed=sharing.seal_column(key, _digest(signed), keys + shares))

    keys, shares = column[:32], column[32:]
    first, lost, rest = shares[:34], shares[34:68], shares[68:]
    true = run.sealed[DEALER, READER]
    opposite = run.column_key(READER, DEALER)
    nothing_opened = {
        "a share changed": sealed(keys + flipped(shares, 0)),
        "keys changed": sealed(flipped(keys, 0) + shares),
        "two shares swapped": sealed(keys + lost + first + rest),
        "shares of another holder": sealed(run.columns(DEALER)[2]),
        "shares without keys": sealed(shares),
        "a share is missing": sealed(column[:-SHARE_BYTES]),
        "a share too many": sealed(column + first),
        "cut by one byte": sealed(column[:-1]),
        "a share that is none, under its own root": dealt(first + NOT_CANONICAL + rest),
        "keys of other shares, under their own root": dealt(shares, keys=some_bytes("keys")),
        "root changed": _with_dealing(run, bundle, replace(dealing, roots=_changed(dealing))),
        "salt changed": _with_dealing(run, bundle, replace(dealing, salt=some_bytes("salt"))),
        "digest of another dealing": sealed(column, told=_digest(run.dealing_frames[2])),
        "tag changed": bundle(sealed=flipped(true, -1)),
        "ciphertext changed": bundle(sealed=flipped(true, 0)),
        "key of the epoch before": sealed(column, under=run.column_key(DEALER, READER, epoch=0)),
        "key of the other direction": sealed(column, under=opposite),
        "key of a stream": sealed(column, under=run.key(DEALER, READER)),
    }
    others = [seat for seat in run.survivors if seat != READER]
    dealings = [run.dealing_frames[seat] for seat in others]
    envelopes = [run.sealed[seat, READER] for seat in others]
    elsewhere = replace(dealing, plan=some_bytes("another plan"))
    by_another = write_frame(
        frames.DEALING,
        run.dealing_fields(replace(dealing, roots=_changed(dealing))),
        run.identities[2],
    )
    refused = {
        "a dealing is missing": _bundle(run, dealings[:-1], envelopes),
        "an envelope is missing": _bundle(run, dealings, envelopes[:-1]),
        "dealers in another order": _bundle(run, dealings[::-1], envelopes[::-1]),
        "a root short": bundle(dealt=_signed(run, replace(dealing, roots=dealing.roots[:-1]))),
        "a dealing of another plan": bundle(dealt=_signed(run, elsewhere)),
        "a dealing that its dealer did not sign": bundle(dealt=by_another),
        "another plan": _bundle(run, dealings, envelopes, plan=some_bytes("another plan")),
    }
    return {"refused": refused, "nothing of seat 3 opened": nothing_opened}


def spoiled_bundles_of_a_dealer(run: Run) -> Row:
    """Bundles that the coordinator refuses from seat 0."""
    dealing = run.dealing(READER)
    frame = run.dealing_frames[READER]
    envelopes = [run.sealed[READER, holder] for holder in run.peers(READER)]
    by_another = write_frame(frames.DEALING, run.dealing_fields(dealing), run.identities[2])
    unsent = [run.plan_digest, run.fingerprints[2], dealing.salt, *_lists(dealing)]
    return {
        "the dealing of another seat": _bundle(run, [run.dealing_frames[2]], envelopes),
        "two dealings": _bundle(run, [frame, frame], envelopes),
        "signed by another": _bundle(run, [by_another], envelopes),
        "sender changed": _bundle(
            run, [write_frame(frames.DEALING, unsent, run.identities[READER])], envelopes
        ),
        "signature changed": _bundle(run, [flipped(frame, -1)], envelopes),
        "a dealing of another plan": _bundle(
            run, [_signed(run, replace(dealing, plan=some_bytes("another plan")))], envelopes
        ),
        "another plan": _bundle(run, [frame], envelopes, plan=some_bytes("another plan")),
        "a hash short": _bundle(
            run,
            [_signed(run, replace(dealing, secret_hashes=dealing.secret_hashes[:-1]))],
            envelopes,
        ),
        "a root short": _bundle(
            run, [_signed(run, replace(dealing, roots=dealing.roots[:-1]))], envelopes
        ),
        "an envelope short": _bundle(run, [frame], envelopes[:-1]),
        "an envelope cut by one byte": _bundle(run, [frame], [*envelopes[:-1], envelopes[-1][:-1]]),
    }


def dealing_of_another_secret(run: Run) -> Row:
    """A bundle of seat 0 with a signed hash of a secret that it does not share, and all reveals."""
    dealing = run.dealing(READER)
    hashes = list(dealing.secret_hashes)
    hashes[READER] = dealing.hash_of_secret(READER, some_bytes("another secret"))
    frame = _signed(run, replace(dealing, secret_hashes=hashes))
    columns = run.columns(READER)
    envelopes = [
        sharing.seal_column(run.column_key(READER, holder), _digest(frame), columns[holder])
        for holder in run.peers(READER)
    ]
    opening = _opening(run, run.survivors, seat_0=frame)
    return {
        "bundle": _bundle(run, [frame], envelopes),
        "reveals": {
            str(holder): write_frame(
                frames.REVEAL,
                [opening, run.fingerprints[holder], disclosed],
                run.identities[holder],
            )
            for holder, disclosed in run.disclosures.items()
        },
    }


def spoiled_reveals(run: Run) -> dict[str, Row]:
    """Reveals of seat 0: refused as a whole, or whose shares of seat 3 are dropped."""
    true = run.disclosures[READER]
    place = run.survivors.index(DEALER)
    mine, dealing = true[place], run.dealing(DEALER)
    column = run.columns(DEALER)[READER]

    def reveal(
        disclosed: list[bytes],
        *,
        digest: bytes = run.opening_digest,
        private: bytes = run.identities[READER],
    ) -> bytes:
        return write_frame(frames.REVEAL, [digest, run.fingerprints[READER], disclosed], private)

    def of(disclosure: bytes) -> bytes:
        return reveal([*true[:place], disclosure, *true[place + 1 :]])

    def disclosed(*dropped: int) -> bytes:
        return sharing.disclosure(dealing, column, READER, dropped)

    swapped = [*true[:place], *true[place:][::-1]]
    as_read = sharing.read_share(mine[:SHARE_BYTES])
    as_read[0] = (as_read[0] + 1) % sharing.PRIME
    set_of_all = frames.digest_of_fields(frames.VERDICT, run.verdict(run.seats))
    return {
        "refused": {
            "another opening": reveal(true, digest=some_bytes("another opening")),
            "after another verdict": reveal(
                true, digest=_opening(run, run.survivors, told=set_of_all)
            ),
            "the verdict alone": reveal(true, digest=run.verdict_digest),
            "another dealing of seat 3": reveal(true, digest=_with_another_dealing(run)),
            "dealings in another order": reveal(true, digest=_opening(run, run.survivors[::-1])),
            "a disclosure short": reveal(true[:-1]),
            "a disclosure too many": reveal([*true, true[0]]),
            "signed by another": reveal(true, private=run.identities[2]),
        },
        "dropped of seat 3": {
            "none": of(b""),
            "a share changed": of(write_share(as_read) + mine[SHARE_BYTES:]),
            "a share of a key changed": of(flipped(mine, SHARE_BYTES)),
            "a share that is none": of(NOT_CANONICAL + mine[SHARE_BYTES:]),
            "a hash changed": of(flipped(mine, -1)),
            "cut by one byte": of(mine[:-1]),
            "one byte more": of(mine + b"\0"),
            "as if all survived": of(disclosed()),
            "as if another was lost": of(disclosed(2)),
            "as if one more was lost": of(disclosed(1, 2)),
            "shares of another holder": of(run.disclosures[2][place]),
        },
        "dropped of seats 3 and 4": {"two disclosures swapped": reveal(swapped)},
    }


def _opening(run: Run, dealers: list[int], *, told: bytes = b"", **others: bytes) -> bytes:
    dealt = [_digest(others.get(f"seat_{seat}", run.dealing_frames[seat])) for seat in dealers]
    return frames.digest_of_values("opening", [told or run.verdict_digest, dealt])


def _with_another_dealing(run: Run) -> bytes:
    """The opening of a holder to whom another dealing of seat 3 was shown."""
    dealing = run.dealing(DEALER)
    other = _signed(run, replace(dealing, roots=_changed(dealing)))
    return _opening(run, run.survivors, seat_3=other)


def _digest(frame: bytes) -> bytes:
    return frames.read_frame(frame, frames.DEALING).digest


def _lists(dealing: Dealing) -> list[Any]:
    return [b"".join(dealing.secret_hashes), b"".join(dealing.roots)]


def _changed(dealing: Dealing) -> list[bytes]:
    roots = list(dealing.roots)
    roots[READER] = flipped(roots[READER], 0)
    return roots


def _signed(run: Run, dealing: Dealing) -> bytes:
    return write_frame(frames.DEALING, run.dealing_fields(dealing), run.identities[dealing.seat])


def _with_dealing(run: Run, bundle: Any, dealing: Dealing) -> bytes:
    """A bundle whose dealer signed and sealed another dealing of the true shares."""
    frame = _signed(run, dealing)
    column, key = run.columns(DEALER)[READER], run.column_key(DEALER, READER)
    sealed = sharing.seal_column(key, _digest(frame), column)
    made: bytes = bundle(dealt=frame, sealed=sealed)
    return made


def _bundle(
    run: Run, dealings: list[bytes], envelopes: list[bytes], *, plan: bytes | None = None
) -> bytes:
    fields = [run.plan_digest if plan is None else plan, dealings, envelopes]
    return write_frame(frames.SHARES, fields)
