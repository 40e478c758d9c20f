"""Processes that train together on Keras's JAX backend: they find one another, and part."""

import atexit
import os
import re
import sys

import keras

from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress

# Seconds that a process which ends waits for the others to end too.
_FAREWELL = 60

# Status codes, which begin JAX's messages, of a collective operation whose partner has died.
_GONE = re.compile("(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")


def join_hosts(addresses: list[str] | None = None, number: int | None = None) -> None:
    """Makes this process one of several, whose devices JAX then counts as one machine's.

    Call it before JAX computes anything. It returns when all processes have come; after five
    minutes without one of them JAX aborts the others.

    Args:
        addresses: `"host:port"` of each process; the first one's is where they meet. None = JAX
            asks the cluster: a TPU slice, SLURM, Open MPI or Kubernetes.
        number: of this process.

    Raises:
        UserError: JAX finds no cluster; or it has computed before.
    """
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
    given = {}
    if addresses is not None:
        given = dict(coordinator_address=addresses[0], num_processes=len(addresses))
    try:
        with Progress("waiting for the other processes"):
            jax.distributed.initialize(
                process_id=number, shutdown_timeout_seconds=_FAREWELL, **given
            )
    except (ValueError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        raise UserError(
            f"--strategy multi_worker: JAX finds no other processes ({said}): set TF_CONFIG in "
            "each, or start them on a TPU slice or by SLURM"
        ) from error
    keras.utils.set_random_seed(0)  # all processes have to draw the same numbers


def lost_on_jax(error: Exception) -> bool:
    """Whether an error is that of a collective operation whose partner has died."""
    import jax

    kinds = (ValueError, jax.errors.JaxRuntimeError)  # of XLA's the first where arrays are read
    return isinstance(error, kinds) and _GONE.match(str(error)) is not None


def leave_at_exit() -> None:
    """Has this process, which failed, end without JAX's farewell.

    There it would wait for processes that wait for it, and abort with pages of its own.
    """

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)

    atexit.register(leave)  # it runs before those of JAX, registered earlier
