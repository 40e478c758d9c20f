"""Errors that the server sends as answers."""

import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io.serving import cause_of, failed_rows

_MAX_MESSAGE = 1000  # characters


class ServingError(Exception):
    """Error that the server sends as the answer to a request, with an HTTP status.

    The message for the client is cut to 1,000 characters.
    """

    def __init__(self, status: int, message: str):
        message = message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + "..."
        super().__init__(message)
        self.status = status


def from_exception(error: BaseException) -> ServingError:
    """Converts an exception of a model to the error for the client."""
    if isinstance(error, ServingError):
        return error
    if isinstance(error, UserError | tf.errors.InvalidArgumentError | tf.errors.OutOfRangeError):
        rows = ", ".join(map(str, sorted(failed_rows(str(error)))))
        return ServingError(400, f"{cause_of(error)}{f' (row {rows})' if rows else ''}")
    return ServingError(500, f"{type(error).__name__}: {cause_of(error)}")
