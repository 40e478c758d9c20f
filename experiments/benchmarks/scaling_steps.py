"""The steps that the scaling benchmark measures, and how much memory each needs at its peak.

Memory is measured on Linux, beyond what is there before a step. A process's resident set says what
lives only where freed memory is given back: here in a child process without oneDNN's pool
(TF_ONEDNN_USE_SYSTEM_ALLOCATOR) in which malloc maps every tensor of 16 KiB or more by itself and
unmaps it when it dies (MALLOC_MMAP_THRESHOLD_). The peak, which importing TensorFlow may have made,
is reset (/proc/self/clear_refs) once a step was run for its traces and thread pools. Weights and
inputs are there before; activations, gradients and scratch are counted, to a quarter of a MiB or
so. TensorFlow's own statistics of oneDNN's pool leave out tensors below 256 KiB, which at L = 64
are all there are.
"""

import dataclasses
import gc
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from experiments.benchmarks.harness import set_threads
from macaron_tf.errors import UserError
from macaron_tf.layers.block import Block
from macaron_tf.layers.blocks import SwishRNNBlock
from macaron_tf.layers.scheme import Mix
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.stack import Stack

# Whole blocks, with T5's bias as in the paper's comparison, then their mixers alone.
BERT_RAB, SWISH_RNN = "BERT-rab", "SwishRNN"
ATTENTION, RECURRENCE = "attention alone", "recurrence alone"
MIXERS = (BERT_RAB, SWISH_RNN, ATTENTION, RECURRENCE)
HEAD_DIM = 64


@dataclass(frozen=True)
class Point:
    """The size of one step.

    Attributes:
        length: L. batch: B. width: D, a multiple of 64: the heads have 64 each.
        layers: depth.
    """

    length: int
    batch: int
    width: int
    layers: int

    @property
    def tokens(self) -> int:
        """Of one step, B L."""
        return self.batch * self.length


@dataclass(frozen=True)
class StepConfig:
    """How a step is run.

    Attributes:
        dropout: on sub-layer outputs and attention weights, 0 to 1.
        dtype_policy: `"float32"` or `"mixed_bfloat16"`.
        jit: compile with XLA.
        seed: of weights and inputs.
    """

    dropout: float = 0.1
    dtype_policy: str = "float32"
    jit: bool = False
    seed: int = 1


class _AttentionBlock(Block):
    scheme = (Mix("tokens"),)


class _RecurrenceBlock(SwishRNNBlock):
    scheme = (Mix("channels"),)


def make_stack(mixer: str, point: Point, config: StepConfig) -> keras.layers.Layer:
    """The layers, built: `(B, L, D) -> (B, L, D)`.

    Args:
        mixer: one of `MIXERS`. The feed-forward has 3 D inner units and the recurrence 2 D: equal
            parameters.
        point: its width and layers count.
        config: dropout, policy and seed.
    """
    keras.utils.set_random_seed(config.seed)
    drops = {"dropout": config.dropout, "attention_dropout": config.dropout}
    sizes = {"num_heads": point.width // HEAD_DIM, "feed_forward_dim": 3 * point.width}
    if mixer in (BERT_RAB, SWISH_RNN):
        encoder = EncoderConfig(
            vocab_size=1,
            hidden_dim=point.width,
            num_layers=point.layers,
            block="transformer" if mixer == BERT_RAB else "swish_rnn",
            relative_bias="per_layer",
            epsilon=1e-5,
            **sizes,
            **drops,
        )
        stack = Stack(encoder, point.layers, dtype=config.dtype_policy)
    else:
        block = _AttentionBlock if mixer == ATTENTION else _RecurrenceBlock
        stack = keras.Sequential(
            [
                block(**sizes, **drops, activation="gelu", norm="post", dtype=config.dtype_policy)
                for _ in range(point.layers)
            ]
        )
    stack.build((point.batch, point.length, point.width))
    return stack


def make_step(mixer: str, point: Point, config: StepConfig) -> Callable[[], tuple]:
    """A function that goes forward and backward through the layers, whole rows, no padding.

    Args:
        mixer, point, config: as of `make_stack`.

    Returns:
        A function that returns the output's mean and the gradients of the input and the weights,
        when all are there.
    """
    stack = make_stack(mixer, point, config)
    rng = np.random.default_rng(config.seed)
    shape = (point.batch, point.length, point.width)
    dtype = keras.DTypePolicy(config.dtype_policy).compute_dtype
    x, output_gradient = (tf.constant(rng.normal(size=shape), dtype) for _ in range(2))

    @tf.function(jit_compile=config.jit, autograph=False)
    def step(x, output_gradient):
        weights = [weight.value for weight in stack.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = stack(x, training=True)
        gradients = tape.gradient(y, [x, *weights], output_gradients=output_gradient)
        # Returned, so that none is left out of the graph.
        return tf.reduce_mean(tf.cast(y, tf.float32)), gradients

    def run() -> tuple:
        mean, gradients = step(x, output_gradient)
        return mean.numpy(), gradients

    return run


_CLEAR = pathlib.Path("/proc/self/clear_refs")
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 14), "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}


def peak_of(run: Callable[[], object]) -> int:
    """Bytes by which a call raises the resident set at most, above what it was before the call.

    Args:
        run: the work, done once before.
    """
    gc.collect()
    # proc(5), of clear_refs: 5 sets the peak resident set to the present one.
    _CLEAR.write_text("5")
    before = _resident("VmRSS")
    run()
    return max(_resident("VmHWM") - before, 0)


def _resident(field: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes[field].split()[0]) * 1024


def peaks(works: Sequence[tuple], config, threads: int) -> Iterator[int]:
    """The peak bytes of each work, measured in a child process.

    Args:
        works: (mixer, `Point`), as `make_step` takes them.
        config: `StepConfig`.
        threads: of TensorFlow.

    Yields:
        Bytes, in the order of the works.

    Raises:
        UserError: this system's peaks cannot be set back, or the child ended early, such as for
            want of memory.
    """
    if not os.access(_CLEAR, os.W_OK):
        raise UserError(f"memory is measured by {_CLEAR}, not to be had here: give --no-memory.")
    order = {
        "works": [(mixer, dataclasses.asdict(point)) for mixer, point in works],
        "config": dataclasses.asdict(config),
        "threads": threads,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "experiments.benchmarks.scaling_steps"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_ENVIRONMENT},
        text=True,
    ) as child:
        try:
            child.stdin.write(json.dumps(order))
            child.stdin.close()
            for mixer, point in works:
                line = child.stdout.readline()
                if not line:
                    raise UserError(
                        f"measuring memory ended with status {child.wait()} at {mixer}, {point}: "
                        "give smaller sizes, or --no-memory."
                    )
                yield int(line)
        finally:
            child.kill()


def main() -> None:
    """The child: an order on stdin, a line of bytes for each work on stdout."""
    order = json.load(sys.stdin)
    set_threads(order["threads"])
    for mixer, point in order["works"]:
        step = make_step(mixer, Point(**point), StepConfig(**order["config"]))
        step()
        step()
        print(peak_of(step), flush=True)


if __name__ == "__main__":
    main()
