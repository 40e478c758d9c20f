"""Multi-process training on Keras's JAX backend: connection, and exit after a failure."""

import atexit
import os
import re
import sys

import keras

from macaron_tf.io.paths import clear_errors
from macaron_tf.io.progress import Progress

# Seconds that a finished process waits for the other processes to finish.
_SHUTDOWN_TIMEOUT = 60

# Status codes at the start of JAX's error message when a process in a collective has died.
_LOST_PROCESS = re.compile("(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")


def join_hosts(addresses: list[str] | None = None, process_index: int | None = None) -> None:
    """Connects this process to the other processes, so that JAX sees the devices of all processes.

    Call it before JAX computes anything. If a process is missing after five minutes, JAX aborts the
    connected processes. The function also sets the random seed of every process to 0.

    Args:
        addresses: `"host:port"` of each process; the first one coordinates. `None` means that
            JAX detects the cluster: a TPU slice, SLURM, Open MPI or Kubernetes.
        process_index: index of this process, from 0. `None` means that JAX detects the index.
    """
    import jax

    # The preemption service would replace this program's SIGTERM handler.
    jax.config.update("jax_enable_preemption_service", False)
    options = dict(process_id=process_index, shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT)
    if addresses is not None:
        options |= dict(coordinator_address=addresses[0], num_processes=len(addresses))
    failure = "JAX cannot connect to the other processes"
    mend = "set TF_CONFIG to addresses that all can reach, or start them on a TPU slice or by SLURM"
    with (
        clear_errors(failure, mend, (ValueError, RuntimeError)),
        Progress("waiting for the other processes"),
    ):
        jax.distributed.initialize(**options)
    keras.utils.set_random_seed(0)  # all processes must draw the same numbers


def lost_on_jax(error: Exception) -> bool:
    """Returns whether an error means that another process in a collective operation has died."""
    import jax

    # XLA raises ValueError when arrays are read.
    error_types = (ValueError, jax.errors.JaxRuntimeError)
    return isinstance(error, error_types) and _LOST_PROCESS.match(str(error)) is not None


def leave_at_exit() -> None:
    """Makes this failed process skip JAX's shutdown when it exits, with exit status 2.

    The shutdown would wait for the other processes, which wait for this one, and then abort.
    """

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)

    atexit.register(leave)  # runs before JAX's exit handlers, which were registered earlier
