"""The tally's port: gRPC over TLS, where both ends pin each other's certificate."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

import grpc

from coordinator.certificates import KeyedCertificate
from coordinator.errors import CoordinatorError, DatabaseError, InternalError, ServiceError
from coordinator.tally.book import TallyBook
from coordinator.tally.calls import CHANNEL_OPTIONS, CHECK, STATE, TALLY_SERVICE
from coordinator.tally.heads import HEAD_KEY
from pate_fed.errors import PateFedError
from pate_fed.nodes import facts, place_of
from pate_fed.nodes.ports import in_brackets, listen
from protocols.errors import ProtocolError

_THREADS: Final = 4
_GRACE_S: Final = 20.0

_log = logging.getLogger(__name__)


class TallyServer:
    """Serves a book to the one client whose certificate is pinned.

    A refusal is a status with its public code as the only text.

    Args:
        key: The tally's.
        client: The coordinator's certificate, PEM.
        port: 0 for any.

    Raises:
        ServiceError: the port cannot be had.
    """

    def __init__(
        self, book: TallyBook, *, key: KeyedCertificate, client: bytes, host: str, port: int
    ) -> None:
        self._client = client
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(book, name, call))
            for name, call in ((STATE, book.state), (CHECK, book.check))
        }
        self._grpc = grpc.server(
            ThreadPoolExecutor(_THREADS), options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]
        )
        generic = grpc.method_handlers_generic_handler(TALLY_SERVICE, handlers)
        self._grpc.add_generic_rpc_handlers((generic,))
        credentials = grpc.ssl_server_credentials(
            [(key.private_key, key.certificate)], client, require_client_auth=True
        )
        listen(host, port, fault=ServiceError).close()  # says why, where it cannot be had
        try:
            self.port = self._grpc.add_secure_port(f"{in_brackets(host)}:{port}", credentials)
        except RuntimeError as error:
            raise ServiceError(f"port {port} of {host} must be ours to have") from error

    def start(self) -> None:
        """Begin to answer; returns at once."""
        self._grpc.start()

    def stop(self) -> None:
        """Answer the calls that are there, and end."""
        self._grpc.stop(_GRACE_S).wait()

    def _handler(
        self, book: TallyBook, name: str, call: Callable[[bytes], bytes]
    ) -> Callable[[bytes, Any], bytes]:
        def answer(request: bytes, context: Any) -> bytes:
            shown = context.auth_context().get("x509_pem_cert", [b""])[0]
            if shown.strip() != self._client.strip():  # the handshake let nobody else in
                _refuse(context, grpc.StatusCode.PERMISSION_DENIED, "")
            try:
                told = dict(context.invocation_metadata())
                book.hear(told.get(HEAD_KEY, b""))
                said = call(request)
                context.set_trailing_metadata(((HEAD_KEY, book.head),))
            except DatabaseError as error:
                _log.warning("a call could not be stored: %s", error.code)
                _refuse(context, grpc.StatusCode.UNAVAILABLE, error.code)
            except (CoordinatorError, PateFedError, ProtocolError) as error:
                extra = facts("refused", call=name, code=error.code)
                _log.warning("%s is refused: %s, %s", name, error.code, error.must, extra=extra)
                _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, error.code)
            except Exception as error:
                _log.exception("%s failed: %s", name, place_of(error))
                _refuse(context, grpc.StatusCode.INTERNAL, InternalError.code)
            _log.info("%s is answered", name, extra=facts("answered", call=name))
            return said

        return answer


def _refuse(context: Any, status: grpc.StatusCode, code: str) -> NoReturn:
    context.abort(status, code)
    raise AssertionError("a call was aborted")
