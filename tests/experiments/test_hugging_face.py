"""Tests of commands on Hugging Face folders: fine-tuning, generation and text-to-text."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow as tf

from experiments import registry
from experiments.commands import main
from experiments.few_shot import commands as few_shot
from macaron_tf.data.translation import TranslationData
from macaron_tf.decoding import GenerationConfig, SamplingConfig, translate_ids
from macaron_tf.hub import read_hugging_face
from macaron_tf.model import load
from macaron_tf.models import CausalClassifier
from macaron_tf.objectives import TranslationObjective
from macaron_tf.runs.embedding import read_encoder
from macaron_tf.runs.finetuning import load_labelled_task
from macaron_tf.runs.run import Run
from macaron_tf.runs.starts import read_start
from macaron_tf.runs.text_to_text import recipe_of_model
from macaron_tf.tasks import labelled
from macaron_tf.tasks.generation import frame_lines
from macaron_tf.training.progress import read_lines
from tests.harness import numpy_of, refuses
from tests.toys import tasks as toys
from tests.toys.pretraining import flags, write_documents

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from tests.toys import peer_language_models as language_models
from tests.toys.peer_encoder_decoders import bart_directory, t5_directory
from tests.toys.peer_encoders import batch, make, ours_of
from tests.toys.vocabularies import XLNET, train_sentencepiece

# One update that changes almost nothing.
BARELY = ["max_steps=1", "validate_every=1", "learning_rate=1e-9", "warmup_steps=0"]
BARELY = [f"training.{setting}" for setting in BARELY]


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "albert", "electra"])
def test_a_recipe_and_its_weights_are_the_imports(family, tmp_path):
    theirs = make(family, "Model", tmp_path)
    read = read_hugging_face(tmp_path)
    init, recipe, network = toys.not_yet_trained(f"hugging-face:{tmp_path}")
    assert recipe.model_config(init.vocabulary.size) == read.network.config
    assert init.vocabulary.hash == read.vocabulary.hash
    inputs = ours_of(batch(theirs, family))
    np.testing.assert_array_equal(
        numpy_of(network.encoder(inputs, training=False)),
        numpy_of(read.network.hidden_states(inputs, training=False)),
    )
    if read.network.pooler:
        np.testing.assert_array_equal(
            numpy_of(network.pooler.dense.kernel), numpy_of(read.network.pooler.dense.kernel)
        )


def test_pre_training_goes_on_with_it_and_asks_it(tmp_path, ran):
    (tmp_path / "bert").mkdir()
    make("bert", "ForMaskedLM", tmp_path / "bert")
    given, run = f"hugging-face:{tmp_path}/bert", tmp_path / "run"
    length = min(16, read_hugging_face(tmp_path / "bert").network.config.max_length)
    changes = [f"corpus.sources={write_documents(tmp_path)}", f"corpus.sequence_length={length}"]
    changes += [*BARELY, "training.save_every_steps=1", "batch_size=8", "validation_batches=1"]
    changes.append("model.dropout=0")
    ran(main, "train", "bert_tiny", run, "--init", given, *flags(changes))
    asked = [ran(main, "predict", place, "a [MASK] a").out for place in (given, run)]
    assert asked[0] == asked[1] and asked[0].count("%") == 5


def test_a_language_models_scores_come_along(tmp_path):
    language_models.make("gpt2", tmp_path)
    read = read_hugging_face(tmp_path)
    init, recipe, network = toys.not_yet_trained(f"hugging-face:{tmp_path}", "finetune_gpt:mrpc")
    assert recipe.model_config(init.vocabulary.size) == read.network.config
    assert recipe.limits.causal
    assert isinstance(network, CausalClassifier) and network.symmetric
    inputs = {"token_ids": np.array([[2, 5, 40, 7, 9]], "int32")}
    np.testing.assert_array_equal(network.language_model(inputs), read.network(inputs))


@pytest.fixture(scope="module")
def xlnet_place(tmp_path_factory):
    """Returns a Hugging Face XLNet classifier, its tokenizer, and their location."""
    directory = tmp_path_factory.mktemp("xlnet")
    (directory / "spiece.model").write_bytes(train_sentencepiece(**XLNET))
    tokenizer = transformers.XLNetTokenizer.from_pretrained(directory)
    options = {"vocab_size": len(tokenizer), "num_labels": 2}
    model = language_models.make("xlnet", directory, "ForSequenceClassification", **options)
    return model, tokenizer, f"hugging-face:{directory}"


def test_xlnet_classifies_as_theirs(xlnet_place):
    theirs, tokenizer, given = xlnet_place
    init, recipe, network = toys.not_yet_trained(given, "finetune_bert:mrpc", "max_length=48")
    output = theirs.logits_proj
    network.head.dense.set_weights([output.weight.detach().numpy().T, output.bias.detach().numpy()])
    first, second = ["the quick brown fox", "the dog"], ["Der schnelle braune", "1,234.56 texts."]
    # Hugging Face pads on the left; we pad on the right.
    options = {"padding": True, "return_token_type_ids": True, "return_tensors": "pt"}
    with torch.no_grad():
        expected = theirs(**tokenizer(first, second, **options)).logits
    task = labelled(recipe.task_definition, recipe.limits, network, init.vocabulary)
    found = toys.outputs_of(task, first, second)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    probabilities = task.serve(tf.constant(first), tf.constant(second))["probabilities"]
    np.testing.assert_allclose(probabilities, expected.softmax(-1).numpy(), atol=1e-5)
    refuses("an XLNet with .CLS. at the end", read_encoder, given)


@pytest.mark.parametrize("system", ["gpt", "xlnet"])
def test_a_run_from_it_is_trained_and_opened_again(system, xlnet_place, tmp_path):
    run, given = tmp_path / "run", xlnet_place[-1]
    if system == "gpt":
        size = language_models.write_gpt_vocabulary(tmp_path)
        language_models.make("gpt", tmp_path, vocab_size=size)
        given = f"hugging-face:{tmp_path}"
    for split in ("train", "validation"):
        rows = [("the wheel", "he", "1"), ("well, hell", "1,234 we", "0")] * 4
        toys.write_table(tmp_path / f"{split}.tsv", rows, toys.PAIR_HEADER)
    settings = ["max_length=16", "batch_size=4", "training.max_steps=2", "epochs=None"]
    settings += ["warmup_fraction=None", "validate_epochs=None", "training.validate_every=2"]
    settings.append(f"source=tsv:{tmp_path}/{{split}}.tsv")
    words = ["train", "finetune:mrpc", str(run), "--init", given, *flags(settings)]
    assert main(words) == 0
    losses = [line["loss"] for line in read_lines(run / "metrics.jsonl") if "loss" in line]
    # No row contains a token of probability 0.
    assert losses and max(losses) < 50
    task = load_labelled_task(Run.open(run))
    assert np.isfinite(toys.outputs_of(task, ["the wheel"], ["he"])).all()


TEXT, TOKENS = "hello well, the wheel", 12


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns a dict mapping "gpt2" and "gpt" to (Hugging Face model, our model, location)."""
    found = {}
    for system in ("gpt2", "gpt"):
        folder, options = tmp_path_factory.mktemp(system), {}
        if system == "gpt":
            options = {"vocab_size": language_models.write_gpt_vocabulary(folder)}
        theirs = language_models.make(system, folder, n_positions=64, **options)
        if system == "gpt":
            with torch.no_grad():  # scaled so that the text varies
                theirs.transformer.positions_embed.weight.mul_(10)
            theirs.save_pretrained(folder)
        found[system] = theirs, read_hugging_face(folder), f"hugging-face:{folder}"
    return found


def their_ids(read, text):
    """Encodes a text as Hugging Face ids, which begin with an end-of-text token for GPT-2."""
    [row] = read.vocabulary.encode_lines([text])
    row = [read.special.begin, *row] if read.card.starts else row
    return torch.tensor([row])


@pytest.mark.parametrize("system", ["gpt2", "gpt"])
def test_it_goes_on_as_theirs(system, models, ran):
    """The command and the library continue a text as Hugging Face does, greedily without [UNK]."""
    theirs, read, given = models[system]
    asked = their_ids(read, TEXT)
    length, barred = asked.shape[1], [] if read.card.starts else [0]
    options = {"max_new_tokens": TOKENS, "pad_token_id": 0, "suppress_tokens": barred}
    new = theirs.generate(asked, do_sample=False, **options)[0, length:].tolist()
    assert len(set(new)) > 3 and read.special.end not in new
    expected = read.vocabulary.detokenizer(new)
    assert expected.startswith(" ") or system == "gpt2"
    settings = flags(["temperature=0", f"max_tokens={TOKENS}"])
    assert ran(main, "predict", given, TEXT, *settings).out == f"{TEXT}{expected}\n"
    config = GenerationConfig(temperature=0.0, max_tokens=TOKENS)
    [[whole]] = load(given).task.generator.complete([TEXT], config)
    assert (whole.text, whole.length) == (expected, TOKENS)


@pytest.mark.parametrize("system", ["gpt2", "gpt"])
def test_it_scores_texts_as_theirs(system, models, tmp_path, ran):
    theirs, read, given = models[system]
    (tmp_path / "text").write_text(TEXT)
    output = tmp_path / "scores.json"
    ran(main, "score", given, tmp_path / "text", "--output", output)
    asked = their_ids(read, TEXT)
    with torch.no_grad():
        loss = float(theirs(asked, labels=asked).loss)
    [record] = json.loads(output.read_text())["files"]
    assert record["token_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert record["tokens"] == asked.shape[1] - 1


def test_few_shot_asks_it(models, tmp_path, ran):
    _, _, given = models["gpt"]
    lines = "".join(f"he well the {word}\n" for word in ("he", "we", "hell", "well") * 3)
    (tmp_path / "lines").write_text(lines)
    task = ["--task", f"lambada:{tmp_path}/lines", "--shots", 0, "--out", tmp_path / "out"]
    assert f"| {given.rpartition('/')[2]} | 0 |" in ran(few_shot.main, given, *task).out


def test_what_cannot_be_opened_or_continued_is_refused(models, tmp_path, refused):
    (*_, gpt2), (*_, gpt) = models.values()
    assert main(["predict", gpt2, "", "--set", "max_tokens=5"]) == 0  # only GPT-2 begins a text
    (tmp_path / "gpt").mkdir()
    language_models.make("gpt", tmp_path / "gpt")
    for words, message in (
        ([gpt, ""], "the prompt has no tokens"),
        ([gpt2, "a", "--checkpoint", "best"], "one set of weights: leave --checkpoint"),
        ([f"hugging-face:{tmp_path}/gpt", "a"], "has no vocabulary"),
    ):
        refused(main, ["predict", *words], message, tmp_path)


def test_a_t5_is_fine_tuned(tables, tmp_path):
    t5_directory(tmp_path)
    found, run = read_hugging_face(tmp_path), tmp_path / "run"
    settings = [*BARELY, "max_target=16", f"source={tables}", f"init=hugging-face:{tmp_path}"]
    assert main(["train", "text_to_text:sst2", str(run), *flags(settings)]) == 0
    opened = Run.open(run)
    assert opened.vocabulary.hash == found.vocabulary.hash and not opened.recipe.starts
    network = opened.load_network("last")
    assert network.config == found.network.config
    toys.assert_same_weights(network, found.network, 1e-6)


LINES = ["the quick brown fox", "naïve €, and 1,234.56", "a dog"]
TARGETS = ["positive dog", "the", "Numbers in many texts"]
LONGEST = 14  # maximum number of ids in a target


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """Returns a Hugging Face BART, its tokenizer, and a folder with a run of one tiny update."""
    folder = tmp_path_factory.mktemp("bart")
    theirs, tokenizer = bart_directory(folder)
    for split in ("train", "validation"):
        rows = [(line, number % 2) for number, line in enumerate(LINES * 2)]
        toys.write_table(folder / f"{split}.tsv", rows)
    settings = [*BARELY, f"max_target={LONGEST}", "max_source=40", "decoding.beam_size=1"]
    settings += [f"source=tsv:{folder}/{{split}}.tsv", f"init=hugging-face:{folder}"]
    assert main(["train", "text_to_text:sst2", str(folder / "run"), *flags(settings)]) == 0
    return theirs, tokenizer, folder


def test_a_batch_has_their_rows_and_their_loss(bart):
    theirs, tokenizer, folder = bart
    start = read_start(f"hugging-face:{folder}", ["writer"])
    recipe = recipe_of_model(registry.load("text_to_text:summarization"), start.source)
    recipe = dataclasses.replace(recipe, label_smoothing=0.0, max_source=40, max_target=40)
    texts = recipe.text_vocabulary(start.vocabulary)
    data = TranslationData.from_pairs(list(zip(LINES, TARGETS, strict=True)), texts)
    [batch] = [
        {name: batch[name].numpy() for name in ("source", "target")}
        for batch in data.evaluation_dataset()
    ]
    found = read_hugging_face(folder)
    asked = tokenizer(LINES, text_target=TARGETS)
    for name, expected in (("source", asked["input_ids"]), ("target", asked["labels"])):
        pad = found.special.pad
        rows = [row[row != pad].tolist() for row in batch[name] if (row != pad).any()]
        assert sorted(rows) == sorted(expected)
    objective = TranslationObjective(0.0, starts=recipe.starts)
    sums = objective(found.network, {n: tf.constant(v) for n, v in batch.items()}, training=False)
    padded = tokenizer(LINES, text_target=TARGETS, padding=True, return_tensors="pt")
    labels = padded["labels"].masked_fill(padded["labels"] == tokenizer.pad_token_id, -100)
    with torch.no_grad():
        answer = theirs(**{**padded, "labels": labels})
    assert float(sums["weight"]) == int((labels != -100).sum())
    loss = float(sums["loss_sum"] / sums["weight"])
    # Rows that pad our table to a multiple of 8 are copies of the padding.
    count = found.config.vocab_size - found.special.rows
    copies = answer.logits[..., [tokenizer.pad_token_id] * count]
    logits = torch.cat([answer.logits, copies], -1)
    exact = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert loss == pytest.approx(float(exact), rel=1e-5)
    assert loss == pytest.approx(float(answer.loss), rel=1e-3)


def test_what_a_run_answers_is_theirs(bart, answered):
    """A run answers as Hugging Face does, greedily and without tokens that our model never writes.

    Decoding begins with </s> <s>.
    """
    theirs, tokenizer, folder = bart
    expected = []
    for source in frame_lines("sst2", tf.constant(LINES)).numpy():
        found = theirs.generate(
            **tokenizer(source.decode(), return_tensors="pt"),
            decoder_input_ids=torch.tensor([[2, 0]]),
            forced_bos_token_id=None,
            suppress_tokens=[0, 1, 3, tokenizer.mask_token_id],
            do_sample=False,
            num_beams=1,
            max_new_tokens=LONGEST - 2,
        )
        expected.append(tokenizer.decode(found[0], skip_special_tokens=True).strip())
    assert len(set(expected)) == len(LINES)
    found = answered(main, "predict", folder / "run", text="\n".join(LINES)).splitlines()
    assert [text.strip() for text in found] == expected


@pytest.mark.parametrize("static", [False, True])
def test_a_search_s_scores_are_the_model_s_own(static, bart):
    _, _, folder = bart
    opened = Run.open(folder / "run")
    network, read = opened.load_network("last"), read_hugging_face(folder)
    assert opened.vocabulary.hash == read.vocabulary.hash and network.config == read.network.config
    toys.assert_same_weights(network, read.network, 1e-6)
    special = read.special
    recipe, vocabulary = opened.recipe, opened.vocabulary
    texts = recipe.text_vocabulary(vocabulary)
    rows = [[*row, special.end] for row in texts.encode_lines(LINES)]
    source = tf.ragged.constant(rows, tf.int32).to_tensor(special.pad)
    spec = tf.TensorSpec(source.shape if static else (None, None), tf.int32)
    found = recipe.task_settings().lines(network, vocabulary, recipe.decoding).config
    search = dataclasses.replace(found, beam_size=3, n_best=2, length_penalty=0.0)
    greedy = SamplingConfig(temperature=0.0, max_length=6)

    def both(source):
        options = {"vocabulary_size": opened.vocabulary.pieces, "prefix": (special.end,)}
        found = translate_ids(network, source, search, **options)
        drawn = translate_ids(network, source, greedy, **options, seed=1)
        return found["ids"][:, 0], found["log_probs"][:, 0], drawn["ids"][:, 0], drawn["log_probs"]

    ids, log_probs, drawn, drawn_log_probs = tf.function(both, input_signature=[spec])(source)
    for target, expected in ((ids, log_probs), (drawn, drawn_log_probs[:, 0])):
        before = tf.repeat([[special.end, special.begin]], len(LINES), axis=0)
        decoder = tf.concat([before, target[:, :-1]], axis=1)
        logits = network({"source": source, "target": decoder})[:, 1:]
        chosen = tf.gather(tf.nn.log_softmax(logits), target, batch_dims=2)
        total = tf.reduce_sum(tf.where(target != special.pad, chosen, 0.0), axis=1)
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4)
