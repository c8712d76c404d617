"""What can go wrong, by the codes of kvtier.proto.

A daemon that is dead, slow, draining or full, and a lease that has ended, are *misses*: the call returns as
if nothing were cached and puts one of these in its result's ``failure``. Raised are ``InvalidArgument`` (a
bug of the caller) and ``Internal`` (a reply that breaks the protocol); ``Client.register_model`` raises all
of them.
"""

from __future__ import annotations

import enum
import operator
from typing import Any


class Code(enum.IntEnum):
    """gRPC's status codes, by its numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Error(Exception):
    """The base of all errors of this package. ``code`` is the status code; the message names the call, and
    the request id that the daemon logged."""

    def __init__(self, message: str, code: Code = Code.UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


class InvalidArgument(Error):
    """The caller's bug. The message names field, value and limit."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.INVALID_ARGUMENT)


class NotFound(Error):
    """The model is not registered, or the lease has ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.NOT_FOUND)


class FailedPrecondition(Error):
    """The daemon cannot do this as it is configured: a durable store without an SSD tier."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.FAILED_PRECONDITION)


class ResourceExhausted(Error):
    """Full: nothing can be evicted, or too many leases or streams are open.

    ``retry_delay``: for how many seconds the daemon asks to be left alone; None when it did not say.
    """

    def __init__(self, message: str, retry_delay: float | None = None) -> None:
        super().__init__(message, Code.RESOURCE_EXHAUSTED)
        self.retry_delay = retry_delay


class Unavailable(Error):
    """No daemon there, it is draining, or the circuit breaker is open."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.UNAVAILABLE)


class DeadlineExceeded(Error):
    """The daemon did not answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.DEADLINE_EXCEEDED)


class Internal(Error):
    """The reply breaks the protocol, or contradicts what this package computes itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.INTERNAL)


_CLASSES: dict[
    Code, type[InvalidArgument | NotFound | FailedPrecondition | Unavailable | DeadlineExceeded | Internal]
] = {
    Code.INVALID_ARGUMENT: InvalidArgument,
    Code.NOT_FOUND: NotFound,
    Code.FAILED_PRECONDITION: FailedPrecondition,
    Code.UNAVAILABLE: Unavailable,
    Code.DEADLINE_EXCEEDED: DeadlineExceeded,
    Code.INTERNAL: Internal,
}


def error_of(code: int, message: str, retry_delay: float | None = None) -> Error:
    """The error of a gRPC status."""
    known = Code(code) if code in Code._value2member_map_ else Code.UNKNOWN
    if known is Code.RESOURCE_EXHAUSTED:
        return ResourceExhausted(message, retry_delay)
    if known in _CLASSES:
        return _CLASSES[known](message)
    return Error(message, known)


def check_range(field: str, value: int, least: int, most: int) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{field} is {value!r}, it must be an integer, {least} to {most}") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{field} is {value}, the limits are {least} and {most}")


def check_seconds(field: str, seconds: float, least: float, most: float) -> None:
    if not isinstance(seconds, (int, float)):
        raise InvalidArgument(f"{field} is {seconds!r}, it must be a number of seconds")
    if not least <= seconds <= most:
        raise InvalidArgument(f"{field} is {seconds} s, the limits are {least:g} and {most:g}")


# gRPC takes a time much farther away for one that is over. The least is any that is above 0.
LONGEST_TIMEOUT = 1e6
_LEAST_TIMEOUT = 5e-324


def check_timeout(field: str, seconds: float) -> None:
    if isinstance(seconds, (int, float)) and seconds <= 0:
        raise InvalidArgument(f"{field} is {seconds} s, it must be above 0, at most {LONGEST_TIMEOUT:g}")
    check_seconds(field, seconds, _LEAST_TIMEOUT, LONGEST_TIMEOUT)


def check_type(field: str, value: Any, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise InvalidArgument(f"{field} is a {type(value).__name__}, it must be a {wanted.__name__}")


def bytes_of(field: str, value: Any) -> bytes:
    """A copy of an object of the buffer protocol."""
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise InvalidArgument(f"{field} is a {type(value).__name__}, it must be bytes") from None


def utf8_of(field: str, text: Any) -> bytes:
    check_type(field, text, str)
    try:
        return bytes(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field} is not UTF-8: {error}") from None


def check_bytes(field: str, size: int, least: int, most: int) -> None:
    if not least <= size <= most:
        raise InvalidArgument(f"{field} has {size} bytes, the limits are {least} and {most}")
