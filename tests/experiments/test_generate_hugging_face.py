"""The commands of generation on Hugging Face directories write the same text as theirs."""

import json
import math

import pytest
import tensorflow as tf

from experiments.few_shot import __main__ as few_shot
from experiments.generate.__main__ import main
from experiments.generate.run import open_model
from export.generator import GeneratorModule
from macaron_tf.decoding import GenerationConfig
from macaron_tf.interop import read_language_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.interop.test_encoder_decoders import bart_directory, t5_directory
from tests.interop.test_parity_language_models import make, write_gpt_vocabulary

TEXT, TOKENS = "hello well, the wheel", 12


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """GPT-2 and GPT: theirs, ours read from its directory, and its name on a command line."""
    found = {}
    for system in ("gpt2", "gpt"):
        folder, options = tmp_path_factory.mktemp(system), {}
        if system == "gpt":
            options = {"vocab_size": write_gpt_vocabulary(folder)}
        theirs = make(system, folder, n_positions=64, **options)
        if system == "gpt":
            with torch.no_grad():  # one that does not say the same word for ever
                theirs.transformer.positions_embed.weight.mul_(10)
            theirs.save_pretrained(folder)
        found[system] = theirs, read_language_model(folder), f"hugging-face:{folder}"
    return found


def their_ids(read, text):
    """Behind the end of another text, as ours begins one; GPT knows no such end."""
    [row] = read.vocabulary.encode_lines([text])
    row = [3, *row] if read.starts else row
    return torch.tensor([[int(read.ids[number]) for number in row]])


def their_continuation(theirs, read):
    """Our ids of their likeliest continuation of TEXT, none an unknown character."""
    asked = their_ids(read, TEXT)
    found = theirs.generate(
        asked,
        do_sample=False,
        max_new_tokens=TOKENS,
        pad_token_id=0,
        suppress_tokens=[] if read.starts else [0],
    )
    ours = {int(theirs): own for own, theirs in enumerate(read.ids) if own > 2}
    return [ours[number] for number in found[0, asked.shape[1] :].tolist()]


@pytest.mark.parametrize("system", ["gpt2", "gpt"])
def test_it_goes_on_as_theirs(system, models, capsys):
    theirs, read, given = models[system]
    new = their_continuation(theirs, read)
    assert len(set(new)) > 3 and 3 not in new
    command = ["complete", given, TEXT, "--temperature", "0", "--max-tokens", str(TOKENS)]
    assert main(command) == 0
    expected = read.vocabulary.detokenizer(new)
    assert expected.startswith(" ") or system == "gpt2"
    assert capsys.readouterr().out == f"{TEXT}{expected}\n"
    config = GenerationConfig(temperature=0.0, max_tokens=TOKENS)
    [[whole]] = open_model(given).generator().complete([TEXT], config)
    assert (whole.text, whole.length) == (expected, TOKENS)


def test_only_gpt2_begins_a_text(models, refused):
    (*_, gpt2), (*_, gpt) = models.values()
    assert main(["sample", gpt2, "--max-tokens", "5"]) == 0
    refused(main, ["sample", gpt, "--max-tokens", "5"], "goes on with texts and begins none")


def test_what_is_exported_of_gpt_goes_on_as_well(models):
    theirs, read, given = models["gpt"]
    module = GeneratorModule(open_model(given))
    [complete] = module.signatures().values()
    settings = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": TOKENS}
    inputs = {name: tf.constant([value]) for name, value in settings.items()}
    found = complete(text=tf.constant([TEXT]), **inputs)
    expected = read.vocabulary.detokenizer(their_continuation(theirs, read))
    assert found["completion"].numpy()[0].decode() == expected
    with pytest.raises(tf.errors.InvalidArgumentError, match="begins none"):
        complete(text=tf.constant([""]), **inputs)


@pytest.mark.parametrize("system", ["gpt2", "gpt"])
def test_it_scores_texts_as_theirs(system, models, tmp_path, capsys):
    theirs, read, given = models[system]
    (tmp_path / "text").write_text(TEXT)
    output = tmp_path / "scores.json"
    assert main(["score", given, str(tmp_path / "text"), "--output", str(output)]) == 0
    asked = their_ids(read, TEXT)
    with torch.no_grad():
        loss = float(theirs(asked, labels=asked).loss)
    [record] = json.loads(output.read_text())["files"]
    assert record["token_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert record["tokens"] == asked.shape[1] - 1


@pytest.mark.parametrize("system", ["gpt2", "gpt"])
def test_few_shot_asks_it(system, models, tmp_path, capsys):
    _, _, given = models[system]
    lines = "".join(f"he well the {word}\n" for word in ("he", "we", "hell", "well") * 3)
    (tmp_path / "lines").write_text(lines)
    task = ["--task", f"lambada:{tmp_path}/lines", "--shots", "0", "--out", str(tmp_path / "out")]
    assert few_shot.main([given, *task]) == 0
    assert f"| {given.rpartition('/')[2]} | 0 |" in capsys.readouterr().out


@pytest.mark.parametrize("directory", [t5_directory, bart_directory])
def test_t5_and_bart_answer(directory, tmp_path, capsys, refused):
    directory(tmp_path)
    given, options = f"hugging-face:{tmp_path}", ["--temperature", "0", "--max-tokens", "6"]
    assert main(["complete", given, "the quick [MASK] fox", "the lazy dog", *options]) == 0
    answers = capsys.readouterr().out
    assert len(answers) > 10
    refused(main, ["score", given, "x"], "answers texts and does not say how likely one is")


def test_a_place_that_cannot_be_opened_is_refused(models, tmp_path, refused):
    bare = tmp_path / "gpt"
    bare.mkdir()
    make("gpt", bare)
    for given, more, words in (
        (models["gpt2"][2], ["--checkpoint", "best"], "has no checkpoints"),
        (f"hugging-face:{tmp_path}/none", [], "there is no folder"),
        (f"hugging-face:{tmp_path}", [], "it has no config.json"),
        (f"hugging-face:{bare}", [], "is a GPT without a tokenizer"),
    ):
        refused(main, ["complete", given, "a", *more], words, tmp_path)
