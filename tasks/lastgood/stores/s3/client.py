"""Requests to one bucket: sent, repeated where that is safe, and their answers classified.

Decides which answers are answers (`Refused`: absent, there already, changed) and which failures may be repeated.
botocore repeats what did not get through; a caller learns by `Refused.is_resent` that an earlier sending of the same
request may have been carried out. Credentials that were refused are read anew once, and the request is repeated if
they changed: whoever rotates keys in the middle of a long reading must not make it fail. Credentials in use are held to
be secret, wherever boto3 found them (`redaction`).
Source: the AWS S3 API reference; botocore's `standard` retry mode.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError

from lastgood.errors import StoreError, StorePermanentError, StoreTransientError, UsageError
from lastgood.redaction import hide
from lastgood.stores.s3.pacing import pace
from lastgood.stores.settings import StoreSettings
from lastgood.text import printable

__all__ = ["Refused", "S3Client", "read_failure", "told"]

CONNECT_SECONDS = 10.0
SPARE_CONNECTIONS = 4
_ANSWERS = frozenset({404, 409, 412})
_THROTTLED = frozenset({"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"})
_DAMAGED = frozenset({"BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})
"""The service got other bytes than were sent, and refused them."""
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_REFUSED_KEYS = frozenset({"InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId", "SignatureDoesNotMatch"})
_SKEWED = "RequestTimeTooSkewed"
_NO_BUCKET = "NoSuchBucket"
_WORDLESS = "400"
_LATER = (408, 429)
_NO_ANSWERS = frozenset({*_EXPIRED, *_REFUSED_KEYS, *_THROTTLED, _SKEWED, _NO_BUCKET})
"""What says nothing of the request itself."""
_BROKEN_OFF = (
    BotoConnectionError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    OSError,
)


class Refused(Exception):
    """The service understood and said no: 404 absent, 409 in conflict, 412 the condition did not hold.

    Args:
        status: Of HTTP.
        code: S3's own.
        is_resent: The request was sent more than once, so an earlier sending may have been carried out.
    """

    def __init__(self, status: int, code: str, *, is_resent: bool) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.is_resent = is_resent


class S3Client:
    """One bucket behind one set of options; may be shared between threads.

    Args:
        bucket: Its name.
        settings: See there.
    """

    def __init__(self, bucket: str, settings: StoreSettings) -> None:
        self.bucket = bucket
        self.settings = settings
        self._renewing = threading.Lock()
        self._session = self._open_session()
        self._client = self._connect(self._session, {})
        self._hashing: Any = None

    @property
    def declares_checksums(self) -> bool:
        """Whether uploads carry a checksum, as they do unless settings or boto3's configuration say otherwise."""
        return bool(self._client.meta.config.request_checksum_calculation != "when_required")

    def call(self, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
        """Send one request to the bucket.

        Args:
            operation: A method of boto3's client.
            doing: What a failure could not do, e.g. `read a/b`.
            parameters: Of the operation.

        Raises:
            Refused: 404, 409 or 412.
            StoreTransientError: It did not get through, or the service is in trouble; it may have been carried out.
            StorePermanentError: Denied, no such bucket, no credentials.
        """
        return self._call(lambda: self._client, operation, doing, parameters)

    def get_to_hash(self, doing: str, **parameters: Any) -> dict[str, Any]:
        """`get_object` for a caller who compares a digest of what comes: without botocore's own checksum over it, which
        takes a third of the time; raises as `call`.
        """
        return self._call(self._hashing_client, "get_object", doing, parameters)

    def _call(
        self, client: Callable[[], Any], operation: str, doing: str, parameters: dict[str, Any]
    ) -> dict[str, Any]:
        used = self._client
        try:
            return self._send(client(), operation, doing, parameters)
        except _Denied as denied:
            if not self._renew(used):
                raise denied.error from None
        try:
            return self._send(client(), operation, doing, parameters)
        except _Denied as denied:
            raise denied.error from None

    def _hashing_client(self) -> Any:
        with self._renewing:
            if self._hashing is None:
                self._hashing = self._connect(self._session, {"response_checksum_validation": "when_required"})
            return self._hashing

    def ask(self, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
        """Send one request whose refusal is worth knowing whatever it says: for probing.

        Raises:
            Refused: Any answer about the request itself: 4xx, or 501 for what the service never learned.
            StoreError: As `call`: no answer, a service in trouble, no such bucket, wrong credentials or clock.
        """
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=self.bucket, **parameters)
        except ClientError as error:
            told = error.response.get("ResponseMetadata", {})
            status, code = told.get("HTTPStatusCode", 0), str(error.response.get("Error", {}).get("Code", ""))
            if (400 <= status < 500 and status not in _LATER and code not in _NO_ANSWERS) or status == 501:
                raise Refused(status, printable(code), is_resent=told.get("RetryAttempts", 0) > 0) from error
            classified = self._classified(error, doing)
            raise (classified.error if isinstance(classified, _Denied) else classified) from error
        except (BotoCoreError, OSError) as error:
            raise read_failure(error, doing) from error
        return answer

    def _send(self, client: Any, operation: str, doing: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(client, operation)(Bucket=self.bucket, **parameters)
        except ClientError as error:
            raise self._classified(error, doing) from error
        except (BotoCoreError, OSError) as error:
            raise read_failure(error, doing) from error
        return answer

    def _classified(self, error: ClientError, doing: str) -> Exception:
        """What an answer that is an error means."""
        told = error.response.get("ResponseMetadata", {})
        status = told.get("HTTPStatusCode", 0)
        code = str(error.response.get("Error", {}).get("Code", "")) or str(status)
        message = f"cannot {doing} in s3://{self.bucket}: {printable(code)} ({status})"
        if code == _NO_BUCKET:
            return StorePermanentError(f"bucket not found: s3://{self.bucket}", hint="is its name spelled right?")
        if status in _ANSWERS:
            return Refused(status, code, is_resent=told.get("RetryAttempts", 0) > 0)
        if code == _SKEWED:
            return StorePermanentError(message, hint="the clock of this machine is wrong")
        if code in _EXPIRED:
            return _Denied(StoreTransientError(message, hint="credentials have expired; renew them"))
        # An expired session, asked by HEAD, is a 400 without a word: its answer has no body.
        if code in _REFUSED_KEYS or status in (401, 403) or code == _WORDLESS:
            hint = "do the credentials of boto3's chain (environment, profile, role) grant this?"
            return _Denied(StorePermanentError(message, hint=hint))
        if status >= 500 or status in _LATER or code in _THROTTLED | _DAMAGED:
            return StoreTransientError(message)
        return StorePermanentError(message)

    def _open_session(self) -> boto3.session.Session:
        try:
            return boto3.session.Session()
        except BotoCoreError as error:  # a profile that is not there
            raise UsageError(f"cannot speak to s3://{self.bucket}: {printable(str(error))}") from None

    def _connect(self, session: boto3.session.Session, instead: Mapping[str, str]) -> Any:
        told = self.settings
        options: dict[str, Any] = {
            "connect_timeout": min(CONNECT_SECONDS, told.timeout_seconds),
            "read_timeout": told.timeout_seconds,
            "retries": {"mode": "standard", "total_max_attempts": told.attempts},
            "max_pool_connections": told.concurrency + SPARE_CONNECTIONS,
            "user_agent_extra": "lastgood",
        }
        if told.checksum_calculation is not None:
            options["request_checksum_calculation"] = told.checksum_calculation
        if told.checksum_validation is not None:
            options["response_checksum_validation"] = told.checksum_validation
        if told.addressing is not None:
            options["s3"] = {"addressing_style": told.addressing}
        options |= instead
        try:
            client = session.client("s3", endpoint_url=told.endpoint, region_name=told.region, config=Config(**options))
        except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
            raise UsageError(f"cannot speak to s3://{self.bucket}: {printable(str(error))}") from None
        # Requests are signed by now, so reading the credentials asks nobody.
        client.meta.events.register("before-send.s3", lambda **_: _hide_credentials(session))
        pace(client, told)
        return client

    def _renew(self, used: Any) -> bool:
        """Read the credentials anew; True if others are in use now than the client that was refused used."""
        with self._renewing:
            if self._client is not used:
                return True  # another thread was refused, too, and has seen to it
            session = self._open_session()
            if _identity(session) == _identity(self._session):
                return False
            self._session, self._client, self._hashing = session, self._connect(session, {}), None
            return True


class _Denied(Exception):  # never leaves this module
    """Refused for the sake of the credentials, which may have been rotated."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(error.message)
        self.error = error


def _hide_credentials(session: boto3.session.Session) -> None:
    with contextlib.suppress(BotoCoreError):  # expired in between: the next request says so
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        for name, value in zip(names, _identity(session), strict=True):
            hide(name, value)


def _identity(session: boto3.session.Session) -> tuple[str | None, str | None, str | None]:
    credentials = session.get_credentials()
    if credentials is None:
        return (None, None, None)
    frozen = credentials.get_frozen_credentials()
    return (frozen.access_key, frozen.secret_key, frozen.token)


def told(answer: Mapping[str, Any], name: str, doing: str) -> Any:
    """What an answer says under a name that every lawful one has.

    Raises:
        StoreTransientError: It does not, like one whose head was cut or rewritten on the way.
    """
    if name not in answer:
        raise StoreTransientError(f"cannot {doing}: the answer names no {name}")
    return answer[name]


def read_failure(error: Exception, doing: str) -> StoreError:
    """What a request means that got no answer, or whose body broke off."""
    reason = printable(str(error)).rstrip(".")
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        return StorePermanentError(f"cannot {doing}: no credentials: {reason}", hint=hint)
    if isinstance(error, SSLError):
        return StorePermanentError(f"cannot {doing}: {reason}", hint="is the certificate of the endpoint trusted here?")
    return (StoreTransientError if isinstance(error, _BROKEN_OFF) else StorePermanentError)(f"cannot {doing}: {reason}")
