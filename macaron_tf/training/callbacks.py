"""Keras callbacks from the command line."""

from collections.abc import Iterable

import keras

from macaron_tf.io.plug_ins import clear_errors, find, parse_call


def make_callbacks(calls: Iterable[str]) -> list[keras.callbacks.Callback]:
    """Makes the user's callbacks of `--callback`, such as `mine:Logger(every=10)`."""
    callbacks: list[keras.callbacks.Callback] = []
    for call in calls:
        name, arguments = parse_call(call)
        callback_class = find(name, keras.callbacks.Callback, trust_code=True)
        with clear_errors(name):
            callbacks.append(callback_class(**arguments))
    return callbacks
