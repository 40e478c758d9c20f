"""Notes of native libraries on standard error, kept from a user's screen."""

import contextlib
import logging
import os
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Drops what TensorFlow's and LiteRT's native code writes to standard error in the `with`.

    Their errors reach Python as exceptions; their notes ("Ignored output_format", "Created
    TensorFlow Lite XNNPACK delegate") obey no setting. Python's own deprecation notes are dropped
    too, and so is the bar of `Progress` for as long. TF_CPP_MIN_LOG_LEVEL below 3 shows all.
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
