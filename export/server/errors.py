"""Serving errors: a code with its gRPC and HTTP status, as TensorFlow Serving maps them."""

import enum

MAX_MESSAGE = 1000  # characters: an error that quotes a 100,000-character line must not repeat it
# TensorFlow appends where a node was built; a client has no use for the server's stack.
_TRACE_MARKERS = ("\n\nOriginal stack trace", "\n\nErrors may have originated", "\n\nStack trace")


class Code(enum.Enum):
    """Canonical codes as (number, HTTP status); the names are those of `grpc.StatusCode`."""

    OK = (0, 200)
    CANCELLED = (1, 499)
    UNKNOWN = (2, 500)
    INVALID_ARGUMENT = (3, 400)
    DEADLINE_EXCEEDED = (4, 504)
    NOT_FOUND = (5, 404)
    ALREADY_EXISTS = (6, 409)
    PERMISSION_DENIED = (7, 403)
    RESOURCE_EXHAUSTED = (8, 429)
    FAILED_PRECONDITION = (9, 400)
    ABORTED = (10, 409)
    OUT_OF_RANGE = (11, 400)
    UNIMPLEMENTED = (12, 501)
    INTERNAL = (13, 500)
    UNAVAILABLE = (14, 503)
    DATA_LOSS = (15, 500)
    UNAUTHENTICATED = (16, 401)

    @classmethod
    def from_number(cls, number: int) -> "Code":
        """The code of a canonical number (`tf.errors.OpError.error_code`); UNKNOWN for others."""
        return next((code for code in cls if code.value[0] == number), cls.UNKNOWN)


class ServingError(Exception):
    """A request that cannot be answered.

    Args:
        code: the kind of failure.
        message: one sentence for the client; cut to `MAX_MESSAGE` characters.
        http_status: overrides the code's HTTP status.
    """

    def __init__(self, code: Code, message: str, http_status: int | None = None):
        message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status or code.value[1]


def invalid(message: str) -> ServingError:
    """A bad request: INVALID_ARGUMENT, HTTP 400."""
    return ServingError(Code.INVALID_ARGUMENT, message)


def not_found(name: str, version: int | None) -> ServingError:
    """TensorFlow Serving's sentence for a model or version that is not served."""
    asked = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return ServingError(Code.NOT_FOUND, f"Servable not found for request: {asked}")


def no_status(name: str, version: int | None) -> ServingError:
    """TensorFlow Serving's sentence for the status of an unknown model or version."""
    asked = "any versions" if version is None else f"version {version}"
    return ServingError(Code.NOT_FOUND, f"Could not find {asked} of model {name}")


def too_late(seconds: float) -> ServingError:
    """A request that did not finish in time."""
    return ServingError(Code.DEADLINE_EXCEEDED, f"the request took longer than {seconds:g} s")


def from_exception(error: BaseException) -> ServingError:
    """Any exception as a `ServingError`: TensorFlow's keep their code, the rest are INTERNAL."""
    if isinstance(error, ServingError):
        return error
    number = getattr(error, "error_code", None)
    if isinstance(number, int):
        message = str(getattr(error, "message", error))
        message = message.removeprefix("Graph execution error:\n\n")
        for marker in _TRACE_MARKERS:
            message = message.split(marker, 1)[0]
        return ServingError(Code.from_number(number), message.strip())
    return ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}")
