"""The signatures of a SavedModel, run by a session of TensorFlow 1."""

import os
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the ops of exported tokenizers)
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from macaron_tf.io.noise import silenced

STEPS = ("prepare", "conclude")  # signatures before and after another engine's network


class SessionModel:
    """A SavedModel in memory, whose signatures take and return NumPy arrays.

    A session runs it, as in TensorFlow Serving. A call costs 0.01 ms; that of a concrete function
    costs 0.1 ms. Closing the session frees graph, functions and variables at once, which
    `tf.saved_model.load` does not promise.

    A broken SavedModel raises one of TensorFlow's errors, of any class.

    Attributes:
        signature_defs: the signatures' definitions by name.
        close: frees the model; no run may be under way.
    """

    def __init__(self, path: str | os.PathLike):
        graph, self._calls = tf.Graph(), {}
        with graph.as_default(), silenced():
            self._session = tf.compat.v1.Session(graph=graph)
            try:
                meta = tf.compat.v1.saved_model.loader.load(
                    self._session, ["serve"], os.fspath(path)
                )
                self.signature_defs = dict(meta.signature_def)
                self._calls |= {
                    name: self._call(signature)
                    for name, signature in self.signature_defs.items()
                    if signature.method_name  # the loader's own "__saved_model_init_op" has none
                }
            except BaseException:
                self._session.close()
                raise
        graph.finalize()
        # At the process's end too: TensorFlow's own modules are gone when objects are.
        self.close = weakref.finalize(self, _release, self._session, self._calls)

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of a signature by name. Thread-safe; TensorFlow releases Python's lock."""
        definition = self.signature_defs[signature]
        found = self._calls[signature](*(inputs[name] for name in sorted(definition.inputs)))
        # A scalar string comes as `bytes`; NumPy's own strings would drop its last zero bytes.
        return {
            name: np.asarray(value, object if isinstance(value, bytes) else None)
            for name, value in zip(sorted(definition.outputs), found, strict=True)
        }

    def _call(self, signature: meta_graph_pb2.SignatureDef) -> Callable[..., list]:
        """Makes the function that runs a signature's graph in the calling thread.

        By default operations go to a pool of threads, which takes 0.1 ms or more to wake.
        """
        options = config_pb2.CallableOptions()
        options.feed.extend(signature.inputs[name].name for name in sorted(signature.inputs))
        options.fetch.extend(signature.outputs[name].name for name in sorted(signature.outputs))
        options.run_options.inter_op_thread_pool = -1
        return self._session._make_callable_from_options(options)


def _release(session: tf.compat.v1.Session, calls: dict[str, Callable]) -> None:
    calls.clear()
    session.close()
