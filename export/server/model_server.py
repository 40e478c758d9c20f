"""Model server: a model, its REST API and the thread in which uvicorn runs."""

import json
import shlex
import socket
import threading
import time

import uvicorn

from export.server.api import Api
from export.server.config import ServerConfig
from export.server.versions import Versions
from macaron_tf.io.paths import clear_errors


class ModelServer:
    """Model server in this process. A `with` statement starts and stops the server.

    Example:
        with ModelServer(ServerConfig("exported/demo", "demo", port=0)) as server:
            requests.get(f"{server.url}/v1/models/demo")
    """

    def __init__(self, config: ServerConfig):
        self.config = config
        self.port = config.port
        self.versions = Versions(config.base_path, config.poll_seconds)

    @property
    def url(self) -> str:
        """Base URL of the REST API, such as http://127.0.0.1:8501."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Opens the port, whose requests get HTTP status 503 meanwhile, and loads the model."""
        config = self.config
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        failure = f"port {config.port} of {config.host[:80]!r} cannot be opened"
        mend = "choose another --port, or a --host such as 127.0.0.1, or 0.0.0.0 for all addresses"
        with clear_errors(failure, mend, (OSError, UnicodeError)):
            listener = socket.create_server((config.host, config.port), family=family, backlog=512)
        # Connections inherit it. Without it, an answer in two packets takes 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.port = listener.getsockname()[1]
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                Api(config, self.versions).app,
                http="h11",  # it limits the size of headers; httptools does not
                loop="uvloop",  # a request of one line takes 0.95 of the time
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=120,
                timeout_graceful_shutdown=config.grace_seconds,
            )
        )
        self._thread = threading.Thread(
            target=self._uvicorn.run, args=([listener],), name="http", daemon=True
        )
        self._thread.start()
        try:
            self.versions.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> bool:
        """Stops, and returns whether all requests in flight ended within `config.grace_seconds`."""
        self._uvicorn.should_exit = True
        self.versions.stop()
        end = time.monotonic() + self.config.grace_seconds
        self._thread.join(self.config.grace_seconds + 0.5)
        return time.monotonic() < end and not self._thread.is_alive()

    def __enter__(self) -> "ModelServer":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def example(self) -> str:
        """Returns an example request as a curl command."""
        body = json.dumps(self.versions.current.example)
        return shlex.join(["curl", "-d", body, f"{self.url}/v1/models/{self.config.name}:predict"])
