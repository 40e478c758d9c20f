"""Suppresses messages of native libraries on standard error."""

import contextlib
import logging
import os
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discards everything that is written to standard error within the `with`.

    TensorFlow's and LiteRT's native code writes notices there ("Ignored output_format", "Created
    TensorFlow Lite XNNPACK delegate") that no setting turns off; its errors become exceptions.
    Warnings of Python code and the bar of `Progress` are discarded as well. Nothing is discarded if
    TF_CPP_MIN_LOG_LEVEL is set below 3.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") < "3":
        yield
        return
    logger, kept = tf.get_logger(), os.dup(2)
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        logger.setLevel(level)
