"""Sign-in by an OpenID provider: authorization code with PKCE, and a checked ID token.

Sources: OpenID Connect Core 1.0 (2023), section 3.1; RFC 7636; RFC 9207; RFC 9700. The provider
only says who somebody is: an administrator decided beforehand which subject is which person.
"""

from __future__ import annotations

import hmac
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from coordinator.errors import HomeError, PersonError
from pate_fed.errors import MissingExtraError
from pate_fed.nodes.ports import is_loopback

ATTEMPT_S: Final = 600.0
"""Longest time between the way to the provider and the way back."""

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
"""Of signatures. Never "none", and no keyed hash: the secret is no signing key."""

_LEEWAY_S: Final = 60
_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 2**20
_MOST_SUBJECT: Final = 255
_RANDOM_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in that is under way; all of it but the address is secret.

    Attributes:
        state: Comes back with the browser: the answer is to this attempt.
        nonce: Comes back in the ID token: the token is for this attempt.
        verifier: Proves to the provider that we began the attempt.
        made_at: Of `Provider.clock`.
    """

    url: str = field(repr=False)
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    redirect_uri: str
    made_at: float


class Provider:
    """An OpenID provider, and this console as its client. Failed sign-ins are a `PersonError`.

    Raises:
        HomeError: its address would take secrets over a line that others read.
        MissingExtraError: Authlib is not installed.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        secret: str,
        *,
        random_bytes: Callable[[int], bytes],
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from authlib.oidc.core import CodeIDToken  # noqa: F401, PLC0415 - an option
        except ImportError as error:
            raise MissingExtraError("sign-in by OpenID Connect needs the extra `oidc`") from error
        if not is_safe_address(issuer):
            raise HomeError("openid.issuer must begin with https://, or be on this machine", issuer)
        self.issuer = issuer
        self._client_id = client_id
        self._secret = secret
        self._random_bytes = random_bytes
        self._clock = clock

    def begin(self, redirect_uri: str) -> Attempt:
        """Begin a sign-in."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri  # noqa: PLC0415 - an option
        from authlib.oauth2.rfc7636 import create_s256_code_challenge  # noqa: PLC0415

        state, nonce, verifier = (self._random_bytes(_RANDOM_BYTES).hex() for _ in range(3))
        url = prepare_grant_uri(
            self._endpoint("authorization_endpoint"),
            client_id=self._client_id,
            response_type="code",
            redirect_uri=redirect_uri,
            scope="openid",
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return Attempt(str(url), state, nonce, verifier, redirect_uri, self._clock())

    def finish(self, attempt: Attempt, answer: Mapping[str, str]) -> str:
        """Return the subject that the provider vouches for, by an ID token for this attempt."""
        if not 0 <= self._clock() - attempt.made_at < ATTEMPT_S:
            raise _refused("an old attempt")
        if not hmac.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise _refused("another state")
        if answer.get("iss", self.issuer) != self.issuer:
            raise _refused("another issuer")
        if "error" in answer or not answer.get("code"):
            raise _refused("a refusal of the provider")
        token = self._fetch(
            "POST",
            self._endpoint("token_endpoint"),
            data={
                "grant_type": "authorization_code",
                "code": answer["code"],
                "redirect_uri": attempt.redirect_uri,
                "client_id": self._client_id,
                "code_verifier": attempt.verifier,
            },
            auth=httpx.BasicAuth(self._client_id, self._secret),
        )
        return self._subject(token, attempt)

    def _subject(self, token: Mapping[str, Any], attempt: Attempt) -> str:
        """Check an ID token: signature, issuer, audience, time, nonce."""
        from authlib.oidc.core import CodeIDToken  # noqa: PLC0415 - an option
        from joserfc import jwt  # noqa: PLC0415
        from joserfc.errors import JoseError  # noqa: PLC0415
        from joserfc.jwk import KeySet  # noqa: PLC0415

        keys = self._fetch("GET", self._endpoint("jwks_uri"))
        try:
            known = KeySet.import_key_set(keys)  # type: ignore[arg-type]
            found = jwt.decode(token["id_token"], known, algorithms=list(ALGORITHMS))
            claims = CodeIDToken(
                found.claims,
                found.header,
                options={
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "nonce": {"essential": True, "value": attempt.nonce},
                },
                params={
                    "nonce": attempt.nonce,
                    "client_id": self._client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(now=int(self._clock()), leeway=_LEEWAY_S)
        except (JoseError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _refused(f"an ID token that fails: {type(error).__name__}") from error
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _MOST_SUBJECT:
            raise _refused("an ID token without a subject")
        return subject

    def _endpoint(self, name: str) -> str:
        """Return an address from the provider's own description, read anew each time."""
        place = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        described = self._fetch("GET", place)
        found = described.get(name)
        if described.get("issuer") != self.issuer or not is_safe_address(str(found)):
            raise _refused("a description of another provider")
        return str(found)

    def _fetch(self, method: str, url: str, **more: Any) -> dict[str, object]:
        body = bytearray()
        try:
            with (
                httpx.Client(timeout=_TIMEOUT_S, verify=_trusted()) as client,
                client.stream(method, url, **more) as answer,
            ):
                answer.raise_for_status()
                for piece in answer.iter_bytes():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise _refused("a longer answer of the provider")
            found = json.loads(body)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            # Not its text: it could hold the code.
            raise _refused(f"no answer of the provider: {type(error).__name__}") from None
        if not isinstance(found, dict):
            raise _refused("another answer of the provider")
        return found

    def __repr__(self) -> str:
        return f"Provider({self.issuer})"


@cache
def _trusted() -> ssl.SSLContext:
    """Return the certificates that this machine trusts; to read them takes a while."""
    return ssl.create_default_context()


def is_safe_address(url: str) -> bool:
    """Tell whether secrets may go to an address: by TLS, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if not host or parts.username or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def _refused(got: str) -> PersonError:
    return PersonError(
        "the sign-in must be begun here, within ten minutes, and be confirmed by the provider: "
        "begin again",
        got,
    )
