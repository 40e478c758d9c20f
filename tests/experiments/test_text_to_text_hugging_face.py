"""A BART of Hugging Face as a start of text-to-text: its rows, its loss and its answers."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from experiments.generate.run import open_model
from experiments.text_to_text.__main__ import main
from experiments.text_to_text.run import TextRun, framed, recipe_for
from experiments.text_to_text.train import read_start
from export.generator import GeneratorModule
from macaron_tf.data.translation import TranslationData
from macaron_tf.decoding import GenerationConfig, SamplingConfig, translate_ids
from macaron_tf.interop import read_encoder_decoder
from macaron_tf.objectives import TranslationObjective
from macaron_tf.special_ids import BOS, EOS
from tests.experiments.pretraining_toy import flags

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from tests.interop.test_encoder_decoders import bart_directory

LINES = ["the quick brown fox", "naïve €, and 1,234.56", "a dog"]
TARGETS = ["positive dog", "the", "Numbers in many texts"]
LONGEST = 14  # ids of a target


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """Their BART and tokenizer, and a folder of them and of a run that did not change them."""
    folder = tmp_path_factory.mktemp("bart")
    theirs, tokenizer = bart_directory(folder)
    for split in ("train", "validation"):
        rows = [f"{line}\t{number % 2}" for number, line in enumerate(LINES * 2)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    quick = ["max_steps=1", "validate_every=1", "learning_rate=1e-9", "warmup_steps=0"]
    settings = [f"training.{one}" for one in quick]
    settings += [f"max_target={LONGEST}", "max_source=40", "decoding.beam_size=1"]
    run = folder / "run"
    command = ["train", "sst2", str(run), "--init", f"hugging-face:{folder}", *flags(settings)]
    assert main([*command, "--source", f"tsv:{folder}/{{split}}.tsv"]) == 0
    return theirs, tokenizer, folder


def test_a_batch_has_their_rows_and_their_loss(bart):
    theirs, tokenizer, folder = bart
    start = read_start(f"hugging-face:{folder}")
    recipe = recipe_for("summarization", start, "", "tsv:none")
    recipe = dataclasses.replace(recipe, label_smoothing=0.0, max_source=40, max_target=40)
    texts = TextRun(None, recipe, start.vocabulary).texts
    data = TranslationData.from_pairs(list(zip(LINES, TARGETS, strict=True)), texts)
    [batch] = [
        {name: batch[name].numpy() for name in ("source", "target")}
        for batch in data.evaluation_dataset()
    ]
    found = read_encoder_decoder(folder)
    asked = tokenizer(LINES, text_target=TARGETS)
    for name, expected in (("source", asked["input_ids"]), ("target", asked["labels"])):
        rows = [found.ids[row[row != 0]].tolist() for row in batch[name] if row.any()]
        assert sorted(rows) == sorted(expected)
    objective = TranslationObjective(0.0, first=recipe.answer_start[0])
    sums = objective(found.network, {n: tf.constant(v) for n, v in batch.items()}, training=False)
    padded = tokenizer(LINES, text_target=TARGETS, padding=True, return_tensors="pt")
    labels = padded["labels"].masked_fill(padded["labels"] == tokenizer.pad_token_id, -100)
    with torch.no_grad():
        answer = theirs(**{**padded, "labels": labels})
    real = labels != -100
    assert float(sums["weight"]) == int(real.sum())
    loss = float(sums["loss_sum"] / sums["weight"])
    # Rows that fill our table up to a multiple of 8 are scored as padding is.
    total = answer.logits[..., found.ids].logsumexp(-1)[real]
    chosen = answer.logits[real].gather(-1, labels[real][:, None])[:, 0]
    assert loss == pytest.approx(float((total - chosen).mean()), rel=1e-5)
    assert loss == pytest.approx(float(answer.loss), rel=1e-3)


def their_answers(bart):
    """The likeliest tokens after </s> <s>, as text: none that ours never writes."""
    theirs, tokenizer, _ = bart
    answers = []
    for line in LINES:
        found = theirs.generate(
            **tokenizer(framed("sst2", line), return_tensors="pt"),
            decoder_input_ids=torch.tensor([[2, 0]]),
            forced_bos_token_id=None,
            suppress_tokens=[0, 1, 3, tokenizer.mask_token_id],
            do_sample=False,
            num_beams=1,
            max_new_tokens=LONGEST - 2,
        )
        answers.append(tokenizer.decode(found[0], skip_special_tokens=True))
    return answers


def test_what_a_run_answers_is_theirs_everywhere(bart, tmp_path):
    _, _, folder = bart
    expected = their_answers(bart)
    assert len(set(expected)) == len(LINES)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    command = ["predict", str(folder / "run"), "--input", str(tmp_path / "in")]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    found = (tmp_path / "out").read_text().splitlines()
    assert [text.strip() for text in found] == [text.strip() for text in expected]
    writes = open_model(folder / "run")
    config = GenerationConfig(temperature=0.0, max_tokens=LONGEST)
    generated = [one.text for [one] in writes.generator().complete(LINES, config)]
    assert [text.strip() for text in generated] == [text.strip() for text in expected]
    [complete] = GeneratorModule(writes).signatures().values()
    settings = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, "max_tokens": LONGEST}
    inputs = {name: tf.constant([value] * len(LINES)) for name, value in settings.items()}
    exported = complete(text=tf.constant(LINES), **inputs)["completion"].numpy()
    assert [text.decode() for text in exported] == generated


@pytest.mark.parametrize("static", [False, True])
def test_a_search_s_scores_are_the_model_s_own(static, bart):
    _, _, folder = bart
    opened = TextRun.open(folder / "run")
    network, read = opened.load_network("last"), read_encoder_decoder(folder)
    assert opened.vocabulary.hash == read.vocabulary.hash and network.config == read.network.config
    for weight, theirs in zip(network.get_weights(), read.network.get_weights(), strict=True):
        np.testing.assert_allclose(weight, theirs, atol=1e-6)
    rows = [[*row, EOS] for row in opened.texts.encode_lines(LINES)]
    source = tf.ragged.constant(rows, tf.int32).to_tensor()
    spec = tf.TensorSpec(source.shape if static else (None, None), tf.int32)
    search = dataclasses.replace(
        opened.writer(network).config, beam_size=3, n_best=2, length_penalty=0.0
    )
    greedy = SamplingConfig(temperature=0.0, max_length=6)

    def both(source):
        found = translate_ids(network, source, search, opened.vocabulary.pieces, (EOS,))
        drawn = translate_ids(network, source, greedy, opened.vocabulary.pieces, (EOS,), seed=1)
        return found["ids"][:, 0], found["log_probs"][:, 0], drawn["ids"][:, 0], drawn["log_probs"]

    ids, log_probs, drawn, drawn_log_probs = tf.function(both, input_signature=[spec])(source)
    for target, expected in ((ids, log_probs), (drawn, drawn_log_probs[:, 0])):
        before = tf.repeat([[EOS, BOS]], len(LINES), axis=0)
        decoder = tf.concat([before, target[:, :-1]], axis=1)
        logits = network({"source": source, "target": decoder})[:, 1:]
        chosen = tf.gather(tf.nn.log_softmax(logits), target, batch_dims=2)
        total = tf.reduce_sum(tf.where(target != 0, chosen, 0.0), axis=1)
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4)
