"""A trained run behind the server: every answer is the run's own, whatever happens meanwhile."""

import concurrent.futures

import pytest

from experiments.translate.run import TranslationRun
from export.client import GrpcTranslationClient, TranslationClient, TranslationError
from export.saved_model import main
from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from tests.conftest import number_pairs
from tests.export.serving_toys import call

CLIENTS, LINES, ROUNDS = 32, 3, 3


@pytest.fixture(scope="module")
def served(number_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("served") / "numbers"
    assert main([str(number_run), str(out)]) == 0
    config = ServerConfig(str(out), "numbers", rest_port=0, grpc_port=0, poll_seconds=0.2)
    with ModelServer(config) as server:
        yield server, out


def test_32_clients_and_a_new_version_lose_and_mix_up_nothing(number_run, served):
    server, out = served
    sources = [source for source, _ in number_pairs(CLIENTS * LINES, seed=6)]
    expected = TranslationRun.open(number_run).translator().translate(sources).best

    def client(number: int) -> list[str]:
        mine = sources[number * LINES : (number + 1) * LINES]
        asked = TranslationClient(server.url, "numbers", retries=0)
        answers = [asked.translate(mine) for _ in range(ROUNDS)]
        asked.close()
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        waiting = [pool.submit(client, number) for number in range(CLIENTS)]
        assert main([str(number_run), str(out)]) == 0
        while server.versions.current == 1:
            waiting += [pool.submit(client, number) for number in range(0, CLIENTS, 8)]
            concurrent.futures.wait(waiting)
        answers = [future.result(timeout=60) for future in waiting]
    assert [line for answer in answers[:CLIENTS] for line in answer] == expected


def test_lines_nobody_expects_are_answered(number_run, served):
    server, _ = served
    lines = ["", " ", "\u2028one\x00two", "Ω≈ç√∫µ", "one two"]
    rest = TranslationClient(server.url, "numbers").translate(lines)
    grpc = GrpcTranslationClient(f"127.0.0.1:{server.grpc_port}", "numbers").translate(lines)
    assert rest == grpc
    assert rest[:2] == ["", ""]
    assert rest[4] == "eins zwei"


def test_what_cannot_be_translated_is_a_clear_error_and_the_server_lives_on(served):
    server, _ = served
    client = TranslationClient(server.url, "numbers")
    with pytest.raises(TranslationError, match="a line has more than 256 tokens: split it") as long:
        client.translate(["one two", "one " * 25_000])
    assert long.value.status == 400
    status, answer = call(
        server.rest_port,
        "POST",
        "/v1/models/numbers:predict",
        {"instances": [{"text": {"b64": "//4="}}]},
    )
    assert status == 400
    assert "UTF-8" in str(answer) or "Invalid" in str(answer)
    assert client.translate(["one two"]) == ["eins zwei"]
