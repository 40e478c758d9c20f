"""Makes the batches of a training in another process, on this machine or another one.

    python -m experiments.data_service --port 5050
    python -m experiments.pretrain train bert_base runs/bert --corpus gs://bucket/corpus \\
        --data-service HOST:5050

Use it if an accelerator waits for the CPU: the service then reads, shuffles and masks the corpus.
With `translate train --data-service HOST:5050` it makes the batches of sentence pairs.

The batches and their order are the same as without the service, also after a restart. The corpus,
or the cache (MACARON_TF_CACHE) with the tokenized pairs, must have the same path on both machines.
If the service dies, the training stops with an error: start both again, and the training resumes
from its checkpoint.

One service can serve several trainings, or all processes of one training, each with its own
batches. If one is too slow, start a service for each process and give their addresses, separated by
commas.

The service listens on PORT and PORT + 1, without passwords: anyone who reaches these ports can run
TensorFlow programs here. Keep them inside your own network. SIGTERM or Ctrl-C stops the service.
"""

import argparse
import os
import signal
import socket
import threading

from experiments import command_line as cli
from macaron_tf.errors import UserError


def _check_port(port: int) -> None:
    """Raises if a port is taken: TensorFlow's servers would share it and get half of its calls."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        raise UserError(
            f"cannot listen on port {port} ({error.strerror}): give another --port from 1024 to "
            "65534, such that it and the next one are free"
        ) from error


def serve(options: argparse.Namespace) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    for port in (options.port, options.port + 1):
        _check_port(port)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # A training on the same machine needs the accelerator; batches are made on the CPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Imported late: `--help` and the check of the ports need no TensorFlow.
    from tensorflow.data.experimental import service

    from macaron_tf.data.service import offer
    from macaron_tf.data.translation import served_batch

    with offer(served_batch):
        dispatcher = service.DispatchServer(service.DispatcherConfig(port=options.port))
        worker = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=f"localhost:{options.port}",
                worker_address=f"{options.host}:{options.port + 1}",
                port=options.port + 1,
            )
        )
        print(f"data service: give --data-service {options.host}:{options.port}", flush=True)
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
        "port for requests; the batches come from PORT + 1 (default 5050)",
        5050,
        below=65535,
    ),
    cli.argument(
        "--host NAME",
        "name or address by which trainings reach this machine (default %(default)s)",
        default=socket.gethostname(),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
