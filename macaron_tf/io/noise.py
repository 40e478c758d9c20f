"""Suppression of messages that native libraries write to standard error."""

import contextlib
import logging
import os
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discards everything that is written to standard error in the `with` block.

    Native code in TensorFlow and LiteRT writes notices to standard error that no setting turns off,
    such as "Created TensorFlow Lite XNNPACK delegate". Errors are not lost, because native code
    raises errors as exceptions. Warnings of Python code and the bar of `Progress` are discarded
    too. If TF_CPP_MIN_LOG_LEVEL is set below 3, nothing is discarded.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") < "3":
        yield
        return
    logger, saved_stderr = tf.get_logger(), os.dup(2)
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        logger.setLevel(level)
