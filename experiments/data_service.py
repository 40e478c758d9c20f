"""Makes the batches of a training run in another process, which may run on another machine.

    python -m experiments.data_service --port 5050
    python -m experiments.pretrain train bert_base runs/bert --corpus gs://bucket/corpus \\
        --data-service HOST:5050

Use the service if an accelerator waits for the CPU. The service then reads, shuffles and masks the
corpus. With `translate train --data-service HOST:5050` the service makes the batches of sentence
pairs.

The service changes neither the batches nor their order, even if training is interrupted and
resumed. The corpus must have the same path on the machine that trains and on the machine of the
service. For sentence pairs, the cache folder MACARON_TF_CACHE must have the same path on these
machines. If the service stops, training ends with an error. Start the service again and give the
training command again: training resumes from the last checkpoint.

One service can serve several training runs, or all processes of a training run, each with its own
batches. If one service is too slow, start a service for each process and give all addresses to
`--data-service`, separated by commas.

The service listens on PORT and PORT + 1 without passwords: anyone who reaches these ports can run
TensorFlow programs on this machine. Keep the ports inside your own network. SIGTERM or Ctrl-C stops
the service.
"""

import argparse
import os
import signal
import socket
import threading

from experiments import command_line as cli
from macaron_tf.errors import UserError


def _check_port(port: int) -> None:
    """Raises a `UserError` if this process cannot listen on the port.

    Without this check, TensorFlow's server would share the port with another process that listens
    on it, and would receive only part of the requests.
    """
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        raise UserError(
            f"cannot listen on port {port} ({error.strerror}): give another --port from 1024 to "
            "65534 such that PORT and PORT + 1 are free"
        ) from error


def serve(options: argparse.Namespace) -> None:
    """Makes batches for training runs until SIGTERM or Ctrl-C."""
    for port in (options.port, options.port + 1):
        _check_port(port)
    stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stop.set())
    # Hides the GPUs, which training runs on this machine may need. Batches are made on the CPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Imported late, because `--help` and the check of the ports do not need TensorFlow.
    from tensorflow.data.experimental import service

    from macaron_tf.data.service import register_function
    from macaron_tf.data.translation import served_batch

    with register_function(served_batch):
        dispatcher = service.DispatchServer(service.DispatcherConfig(port=options.port))
        worker = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=f"localhost:{options.port}",
                worker_address=f"{options.host}:{options.port + 1}",
                port=options.port + 1,
            )
        )
        print(
            (
                "data service started: give training commands --data-service "
                f"{options.host}:{options.port}"
            ),
            flush=True,
        )
        stop.wait()
        worker.stop()
        dispatcher.stop()
    print("data service stopped", flush=True)


main = cli.single_program(
    "experiments.data_service",
    __doc__,
    "experiments.data_service:serve",
    cli.count(
        "--port PORT",
        "port for requests, from 1 to 65534; the service sends the batches from port PORT + 1 "
        "(default: %(default)s)",
        5050,
        below=65535,
    ),
    cli.argument(
        "--host NAME",
        "host name or IP address at which the training processes reach this machine (default: "
        "%(default)s, the name of this machine)",
        default=socket.gethostname(),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
