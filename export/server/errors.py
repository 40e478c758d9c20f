"""Errors of requests, with the same gRPC codes and HTTP statuses as in TensorFlow Serving."""

from grpc import StatusCode as Code

from macaron_tf.io.serving import cause_of

# Maximum message length in characters. TensorFlow's errors may quote a line of 100,000 characters.
MAX_MESSAGE = 1000
# Maps HTTP statuses to gRPC codes. All other codes have status 500.
_HTTP_STATUSES = {
    400: (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.OUT_OF_RANGE),
    401: (Code.UNAUTHENTICATED,),
    403: (Code.PERMISSION_DENIED,),
    404: (Code.NOT_FOUND,),
    409: (Code.ALREADY_EXISTS, Code.ABORTED),
    429: (Code.RESOURCE_EXHAUSTED,),
    499: (Code.CANCELLED,),
    501: (Code.UNIMPLEMENTED,),
    503: (Code.UNAVAILABLE,),
    504: (Code.DEADLINE_EXCEEDED,),
}
_STATUS_OF = {code: status for status, codes in _HTTP_STATUSES.items() for code in codes}
# Maps gRPC's numeric codes, which are also in `tf.errors.OpError.error_code`, to codes.
_CODE_OF = {code.value[0]: code for code in Code}


class ServingError(Exception):
    """Error that the server sends as the response to a request.

    Args:
        code: the gRPC code.
        message: a sentence for the client, truncated to `MAX_MESSAGE` characters.
        http_status: the HTTP status; `None` means the status that corresponds to `code`.
    """

    def __init__(self, code: Code, message: str, http_status: int | None = None):
        message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status or _STATUS_OF.get(code, 500)


def invalid(message: str) -> ServingError:
    """Returns the error INVALID_ARGUMENT (HTTP status 400)."""
    return ServingError(Code.INVALID_ARGUMENT, message)


def not_found(name: str, version: int | None) -> ServingError:
    """Returns the error NOT_FOUND for a request to a model or version that is not served.

    Args:
        name: name of the model.
        version: the requested version; `None` means the newest version.
    """
    # The message is TensorFlow Serving's.
    request = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return ServingError(Code.NOT_FOUND, f"Servable not found for request: {request}")


def no_status(name: str, version: int | None) -> ServingError:
    """Returns the error NOT_FOUND for a status request about an unknown model or version.

    Args:
        name: name of the model.
        version: the requested version; `None` means all versions.
    """
    # The message is TensorFlow Serving's.
    versions = "any versions" if version is None else f"version {version}"
    return ServingError(Code.NOT_FOUND, f"Could not find {versions} of model {name}")


def not_loaded(name: str) -> ServingError:
    """Returns the error UNAVAILABLE for a request to a model that is still loading."""
    return ServingError(Code.UNAVAILABLE, f"model {name!r} is not loaded yet: try again later")


def too_late(seconds: float) -> ServingError:
    """Returns the error DEADLINE_EXCEEDED for a request that took longer than `seconds`."""
    return ServingError(
        Code.DEADLINE_EXCEEDED,
        f"the request took longer than {seconds:g} s: send fewer rows, or try again later",
    )


def from_exception(error: BaseException) -> ServingError:
    """Converts an exception to a `ServingError`.

    A `ServingError` is returned unchanged. TensorFlow's exceptions keep their code, and only the
    cause of the error remains of their message (see `cause_of`). All other exceptions become
    INTERNAL.
    """
    if isinstance(error, ServingError):
        return error
    code = getattr(error, "error_code", None)
    if isinstance(code, int):
        return ServingError(_CODE_OF.get(code, Code.UNKNOWN), cause_of(error))
    return ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}")
