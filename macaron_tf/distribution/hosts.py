"""Several processes on Keras's JAX backend: connecting them, and ending after a failure."""

import atexit
import os
import re
import sys

import keras

from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress

# Seconds that a process waits at its end for the others to end as well.
_FAREWELL = 60

# Status codes at the start of JAX's message when the partner of a collective has died.
_GONE = re.compile("(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")


def join_hosts(addresses: list[str] | None = None, number: int | None = None) -> None:
    """Connects this process to the others, so that JAX sees the devices of all.

    Call it before JAX computes anything. It returns when all processes have connected; if one is
    missing for five minutes, JAX aborts the others.

    Args:
        addresses: `"host:port"` of each process; all connect to the first. None: JAX asks the
            cluster, which may be a TPU slice, SLURM, Open MPI or Kubernetes.
        number: number of this process.

    Raises:
        UserError: JAX finds no cluster, or has computed something before.
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
    keras.utils.set_random_seed(0)  # all processes must draw the same numbers


def lost_on_jax(error: Exception) -> bool:
    """Whether an error says that the partner of a collective operation has died."""
    import jax

    kinds = (ValueError, jax.errors.JaxRuntimeError)  # XLA raises a ValueError on reading arrays
    return isinstance(error, kinds) and _GONE.match(str(error)) is not None


def leave_at_exit() -> None:
    """Makes this process, which has failed, skip JAX's shutdown at its end.

    The shutdown would wait for processes that wait for this one, then abort with a long trace.
    """

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)

    atexit.register(leave)  # it runs before those of JAX, registered earlier
