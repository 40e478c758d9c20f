"""Serves an exported model on this machine, with TensorFlow Serving's REST and gRPC APIs.

    macaron serve OUT
    macaron serve --model_config_file models.config

OUT is the folder that `macaron export` wrote, with a subfolder for each version
(`1/`, `2/`, ...). The server serves the newest version, and switches to newer versions without a
restart. After Ctrl-C or SIGTERM, the server finishes the requests in flight, for up to
--grace-seconds, and exits. To serve several models, several versions or version labels, give a
TensorFlow Serving model configuration file.
"""

import gc
import logging
import os
import signal
import sys
import threading

from export.server.config import ServerConfig
from macaron_tf.cli.arguments import Parser, path_argument
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import check_path
from macaron_tf.settings import describe, hints_of, parse

# Maps the last word of a setting's name to the metavar of its flag. All other flags have N.
_METAVARS = {
    "bytes": "BYTES",
    "file": "FILE",
    "host": "ADDRESS",
    "ms": "MILLISECONDS",
    "port": "PORT",
    "seconds": "SECONDS",
    "timeout": "SECONDS",
}


def parse_arguments(arguments: list[str] | None = None) -> ServerConfig:
    """Parses the command line."""
    parser = Parser(prog="macaron serve", description=__doc__)
    path_argument(
        "base_path OUT", "folder of an exported model, with a subfolder for each version", nargs="?"
    )(parser)
    parser.add_argument(
        "--name",
        help="name of the model in URLs and in gRPC requests (default: the name of the folder OUT)",
    )
    for setting in describe(ServerConfig)[2:]:
        flags = [f"--{setting.name.replace('_', '-')}"]
        default_text = "no file" if setting.default == "None" else "%(default)s"
        if setting.name.startswith("model_config"):  # TensorFlow Serving's spelling
            flags.append(f"--{setting.name}")
        parser.add_argument(
            *flags,
            metavar=_METAVARS.get(setting.name.rpartition("_")[2], "N"),
            type=check_path if setting.name == "model_config_file" else None,
            default=setting.default.strip("'"),
            help=f"{setting.text.rstrip('.')} (default: {default_text})",
        )
    values = vars(parser.parse_args(arguments))
    path, name = values.pop("base_path"), values.pop("name")
    if path is None and values["model_config_file"] == "None":
        parser.error(
            "no model is given: give OUT, the folder of an exported model, or "
            "--model_config_file FILE"
        )
    if path is not None:
        name = name or os.path.basename(os.path.abspath(path))
    hints = hints_of(ServerConfig)
    settings = {
        key: parse(f"--{key.replace('_', '-')}", text, hints[key]) for key, text in values.items()
    }
    return ServerConfig(path or "", name or "", **settings)


def run(config: ServerConfig, stop: threading.Event) -> None:
    """Serves the models until the event `stop` is set."""
    # Imported here so that `--help` works without TensorFlow and gRPC.
    from export.server.model_server import ModelServer

    # Without the freeze, each garbage collection visits TensorFlow's 500,000 objects and blocks all
    # threads for 0.3 s.
    gc.freeze()
    with ModelServer(config) as server:
        model_list = ", ".join(
            f"{name} version{'s' * (len(manager.served) > 1)} {', '.join(map(str, manager.served))}"
            for name, manager in server.models.items()
        )
        example = server.example()
        print(
            f"ready: {model_list} on {server.url} (gRPC {config.host}:{server.grpc_port})"
            f"{f'; try: {example}' if example else ''}",
            flush=True,
        )
        stop.wait()
        logging.info("stopping: finishing the requests in flight")


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    config = parse_arguments(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    # Hides TensorFlow's deprecation warning about sessions, which TensorFlow Serving also uses.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    stop = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stop.set())
    run(config, stop)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
