"""What is searched for in files, logs, databases and streams of a deployment would be found there.

The searches are those of `test_deployed_marker` and `test_federation_demo`.
"""

from __future__ import annotations

import base64
import json
import pickle
import socket
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from protocols.values import encode_value
from tests.support.marker import (
    MARKERS,
    Y_HEAD,
    files_with_secrets,
    findings_within,
    found_in_files,
    holds_row,
    private_forms,
    rows_within,
    secrets_kept_in,
    secrets_within,
)
from tests.support.recording_proxy import recording_proxy
from tests.support.rounds import NOW, ready_run

SUMS = tuple(count + 1 for count in MARKERS)
SMALL = (613, 251, 136)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda secret: b"node " + secret + b" up", id="raw"),
        pytest.param(lambda secret: b"key=" + secret.hex().encode(), id="hexadecimal"),
        pytest.param(lambda secret: b"Bearer " + base64.b64encode(secret), id="base64"),
        pytest.param(lambda secret: zlib.compress(secret.hex().encode()), id="compressed"),
    ],
)
def test_a_secret_in_a_log_would_be_found(form: Callable[[bytes], bytes]) -> None:
    secret = bytes(range(100, 132))
    secrets = {"secret": private_forms(secret), "another": private_forms(bytes(32))}
    assert secrets_within(b"line\n" + form(secret) + b"\n", secrets) == ["secret"]


def put_secrets(folder: Path) -> bytes:
    """Write a node's key and secret as a hospital keeps them; return the key's file."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "node.key").write_bytes(private)
    (folder / "node.secret").write_bytes(bytes(range(32)))
    return private


def test_a_private_key_in_a_log_would_be_found(tmp_path: Path) -> None:
    private = put_secrets(tmp_path)
    secrets = secrets_kept_in(tmp_path)
    assert files_with_secrets(tmp_path, secrets) == {name: [name] for name in secrets}
    for printed in (private, repr(private).encode(), base64.b64encode(private)):
        (tmp_path / "node.log").write_bytes(b"INFO " + printed)
        assert files_with_secrets(tmp_path, secrets)["node.log"] == ["node.key"]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(bytes(range(32)), id="bytes"),
        pytest.param(bytes(range(32)).hex(), id="hexadecimal"),
        pytest.param(base64.b64encode(bytes(range(32))).decode(), id="Base64"),
    ],
)
def test_a_secret_in_a_cell_or_in_the_log_beside_a_database_would_be_found(
    tmp_path: Path, value: bytes | str
) -> None:
    put_secrets(tmp_path)
    with closing(sqlite3.connect(tmp_path / "party.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE leak (value)")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("INSERT INTO leak VALUES (?)", [value])
        found = files_with_secrets(tmp_path, secrets_kept_in(tmp_path))
    assert {"party.db", "party.db-wal"} & set(found)
    assert found["party.db"] == ["node.secret"]


def test_the_frame_of_every_y_begins_as_it_is_searched_for() -> None:
    run = ready_run(3)
    plan = run.open_plan(4)
    for seat in run.coordinator.seats:
        run.parties[seat].receive(plan, now=NOW)
        [frame] = run.parties[seat].contribute(np.zeros(4, dtype=np.int64))
        assert frame.startswith(Y_HEAD)


LEAKS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text(f"votes: {list(MARKERS)}"),
    "array": lambda path: path.write_bytes(np.array(MARKERS).tobytes()),
    "big-endian": lambda path: path.write_bytes(np.array(MARKERS, dtype=">u4").tobytes()),
    "hexadecimal": lambda path: path.write_text(np.array(MARKERS).tobytes().hex()),
    "base64": lambda path: path.write_bytes(base64.b64encode(np.array(MARKERS).tobytes())),
    "compressed": lambda path: path.write_bytes(b"head" + zlib.compress(repr(MARKERS).encode())),
    "exact sum": lambda path: path.write_bytes(np.array(SUMS).tobytes()),
    "cells": lambda path: _fill_table(path, *MARKERS),
    "cell of bytes": lambda path: _fill_table(path, np.array(MARKERS).tobytes()),
}


def _fill_table(path: Path, *values: object) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE leak (value)")
        database.executemany("INSERT INTO leak VALUES (?)", [(value,) for value in values])
        database.commit()


@pytest.mark.parametrize("leak", LEAKS)
def test_a_vote_in_a_file_would_be_found(tmp_path: Path, leak: str) -> None:
    LEAKS[leak](tmp_path / "canary")
    assert found_in_files(tmp_path, lambda data: findings_within(data, (*MARKERS, *SUMS)))


@pytest.mark.parametrize(
    "leak",
    [
        pytest.param(np.array(SMALL, dtype="<u2").tobytes(), id="array of 2 bytes"),
        pytest.param(np.array([SMALL, SMALL], dtype=">f8").tobytes(), id="big-endian floats"),
        pytest.param(encode_value({"votes": list(SMALL)}), id="CBOR"),
        pytest.param(pickle.dumps([*SMALL, 7]), id="pickle"),
        pytest.param(str(np.array([SMALL])).encode(), id="printed array"),
        pytest.param(json.dumps(SMALL).encode().hex().encode(), id="hexadecimal"),
    ],
)
def test_a_row_of_small_counts_would_be_found(leak: bytes) -> None:
    assert rows_within(b"log: " + leak + b" end", [SMALL, SMALL[::-1]])
    assert rows_within(leak, [SMALL[::-1]]) == []


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(np.array(MARKERS).tobytes(), id="array"),
        pytest.param(repr(MARKERS).encode(), id="text"),
        pytest.param(zlib.compress(np.array(MARKERS).tobytes()), id="compressed"),
    ],
)
def test_a_vote_on_the_wire_would_be_found(form: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as far,
        recording_proxy(far.getsockname()[1]) as wire,
        socket.create_connection(("127.0.0.1", wire.port)) as near,
    ):
        near.sendall(b"POST / HTTP/1.1\r\n\r\n" + form)
        taken, _ = far.accept()
        with taken:
            assert taken.recv(1000)
    assert any(holds_row(bytes(stream)) for stream in wire.streams)
