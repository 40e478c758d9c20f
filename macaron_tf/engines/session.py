"""Execution of SavedModel signatures in a TensorFlow 1 session, as in TensorFlow Serving."""

import os
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the ops of exported tokenizers)
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2

from macaron_tf.io.serving import CONTROLS, EXAMPLE, EXAMPLE_TEXTS

STEPS = ("prepare", "conclude")  # signatures to run before and after another engine's network


class SessionModel:
    """SavedModel in memory, whose signatures take and return NumPy arrays.

    A session call has an overhead of about 0.01 ms, but a call of a concrete function of 0.1 ms.
    Closing the session frees the graph, functions and variables at once, which
    `tf.saved_model.load` does not guarantee.

    If the SavedModel is damaged, the constructor raises an exception, whose class depends on the
    damage.

    Attributes:
        close: function that frees the model. No thread may be running `run` at that time.
    """

    def __init__(self, path: str | os.PathLike):
        graph, self._calls = tf.Graph(), {}
        with graph.as_default():
            self._session = tf.compat.v1.Session(graph=graph)
            try:
                meta = tf.compat.v1.saved_model.loader.load(
                    self._session, ["serve"], os.fspath(path)
                )
                self.signature_defs = dict(meta.signature_def)
                self._calls |= {
                    name: self._call(signature)
                    for name, signature in self.signature_defs.items()
                    if signature.method_name  # the loader's "__saved_model_init_op" has no method
                }
            except BaseException:
                self._session.close()
                raise
        graph.finalize()
        # This also runs at the end of the process, before TensorFlow's modules are removed.
        self.close = weakref.finalize(self, _release, self._session, self._calls)

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature, and returns a dict mapping output name to array.

        This method is thread-safe, and TensorFlow releases Python's global interpreter lock (GIL).
        A missing signature or input is a KeyError, and a value that the model does not accept an
        InvalidArgumentError.
        """
        definition = self.signature_defs[signature]
        outputs = self._calls[signature](*(inputs[name] for name in sorted(definition.inputs)))
        return dict(zip(sorted(definition.outputs), outputs, strict=True))

    def _call(self, signature: meta_graph_pb2.SignatureDef) -> Callable[..., list]:
        """Returns a function that runs a signature's graph in the calling thread.

        The outputs are in the alphabetical order of their names. By default, TensorFlow runs
        operations in a thread pool. Waking up the pool takes 0.1 ms or more.
        """
        options = config_pb2.CallableOptions()
        options.feed.extend(signature.inputs[name].name for name in sorted(signature.inputs))
        options.fetch.extend(signature.outputs[name].name for name in sorted(signature.outputs))
        options.run_options.inter_op_thread_pool = -1
        return self._session._make_callable_from_options(options)


def _release(session: tf.compat.v1.Session, calls: dict[str, Callable]) -> None:
    calls.clear()
    session.close()


def typical_inputs(
    dtypes: Mapping[str, tf.DType], text: str = EXAMPLE, count: int = 1, **texts: str
) -> dict[str, np.ndarray]:
    """Returns a column `(count,)` that repeats a typical value for each input of a task.

    A string input is the one of `texts` or of `EXAMPLE_TEXTS` with its name, or else `text`. Any
    other input is 20 for `max_tokens`, the default in `CONTROLS`, or else 0.
    """
    texts = EXAMPLE_TEXTS | texts
    values = {**CONTROLS, "max_tokens": 20}
    for name, dtype in dtypes.items():
        if dtype == tf.string:
            values[name] = texts.get(name, text).encode()
    return {n: np.full(count, values.get(n, 0), d.as_numpy_dtype) for n, d in dtypes.items()}
