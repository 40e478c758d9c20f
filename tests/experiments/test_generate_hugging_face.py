"""Hugging Face directories where generation commands take a run: the text that theirs writes."""

import json
import math

import pytest

from experiments import few_shot
from experiments.generate import main
from macaron_tf.data.spelling import spelled
from macaron_tf.interop import read_hugging_face_language_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.interop.test_hugging_face_text_models import bart_directory, t5_directory
from tests.models.test_parity_decoders_huggingface import make

TEXT, TOKENS = "hello well, the wheel", 12


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """Their GPT-2, how its directory is read, and what names it on a command line."""
    folder = tmp_path_factory.mktemp("gpt2")
    theirs = make("gpt2", folder, n_positions=64)
    return theirs, read_hugging_face_language_model(folder), f"hugging-face:{folder}"


def their_ids(read, text):
    """Behind the end of another text, as ours begins one."""
    [row] = read.vocabulary.encode_lines([text])
    return torch.tensor([[int(read.ids[number]) for number in (3, *row)]])


def test_gpt2_goes_on_as_theirs(gpt2, capsys):
    theirs, read, given = gpt2
    asked = their_ids(read, TEXT)
    found = theirs.generate(asked, do_sample=False, max_new_tokens=TOKENS, pad_token_id=0)
    places = {int(number): place for place, number in enumerate(read.ids) if place > 2}
    new = [places[number] for number in found[0, asked.shape[1] :].tolist()]
    assert len(set(new)) > 3 and 3 not in new
    command = ["complete", given, TEXT, "--temperature", "0", "--max-tokens", str(TOKENS)]
    assert main(command) == 0
    expected = spelled(read.vocabulary.spellings(), new)
    assert capsys.readouterr().out == f"{TEXT}{expected}\n"
    assert main(["sample", given, "--max-tokens", "5"]) == 0


def test_gpt2_scores_texts_as_theirs(gpt2, tmp_path, capsys):
    theirs, read, given = gpt2
    (tmp_path / "text").write_text(TEXT)
    output = tmp_path / "scores.json"
    assert main(["score", given, str(tmp_path / "text"), "--output", str(output)]) == 0
    asked = their_ids(read, TEXT)
    with torch.no_grad():
        loss = float(theirs(asked, labels=asked).loss)
    [record] = json.loads(output.read_text())["files"]
    assert record["token_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)


def test_few_shot_asks_gpt2(gpt2, tmp_path, capsys):
    _, _, given = gpt2
    lines = "".join(f"he well the {word}\n" for word in ("he", "we", "hell", "well") * 3)
    (tmp_path / "lines").write_text(lines)
    task = ["--task", f"lambada:{tmp_path}/lines", "--shots", "0", "--out", str(tmp_path / "out")]
    assert few_shot.main([given, *task]) == 0
    assert f"| {given.rpartition('/')[2]} | 0 |" in capsys.readouterr().out


@pytest.mark.parametrize("directory", [t5_directory, bart_directory])
def test_t5_and_bart_answer(directory, tmp_path, capsys):
    directory(tmp_path)
    given, options = f"hugging-face:{tmp_path}", ["--temperature", "0", "--max-tokens", "6"]
    assert main(["complete", given, "the quick [MASK] fox", "the lazy dog", *options]) == 0
    answers = capsys.readouterr().out
    assert len(answers) > 10
    assert main(["score", given, "x"]) == 2
    assert "answers texts and does not say how likely one is" in capsys.readouterr().err


def test_what_cannot_be_opened_is_refused(gpt2, tmp_path, capsys):
    gpt = tmp_path / "gpt"
    gpt.mkdir()
    make("gpt", gpt)
    for given, more, words in (
        (gpt2[2], ["--checkpoint", "best"], "has no checkpoints"),
        (f"hugging-face:{tmp_path}/none", [], "there is no folder"),
        (f"hugging-face:{tmp_path}", [], "it has no config.json"),
        (f"hugging-face:{gpt}", [], "whose tokenizer cannot be read"),
    ):
        assert main(["complete", given, "a", *more]) == 2
        error = capsys.readouterr().err
        assert error.count("error: ") == 1 and words in error
