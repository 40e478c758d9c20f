"""Tests of training that starts from Hugging Face folders."""

import numpy as np
import pytest
import tensorflow as tf

from experiments import registry
from macaron_tf.data.translation import TranslationData
from macaron_tf.hub import read_hugging_face
from macaron_tf.objectives import TranslationObjective
from macaron_tf.runs.embedding import read_encoder
from macaron_tf.runs.starts import read_start
from macaron_tf.runs.text_to_text import recipe_of_model
from macaron_tf.tasks import labelled
from tests.harness import refuses
from tests.toys import tasks as toys

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from tests.toys import peer_language_models as language_models
from tests.toys.peer_encoder_decoders import bart_directory
from tests.toys.vocabularies import XLNET, train_sentencepiece


def test_xlnet_classifies_as_theirs(tmp_path):
    (tmp_path / "spiece.model").write_bytes(train_sentencepiece(**XLNET))
    tokenizer = transformers.XLNetTokenizer.from_pretrained(tmp_path)
    options = {"vocab_size": len(tokenizer), "num_labels": 2}
    theirs = language_models.make("xlnet", tmp_path, "ForSequenceClassification", **options)
    given = f"hugging-face:{tmp_path}"
    init, recipe, network = toys.not_yet_trained(given, "finetune_bert:mrpc", "data.max_length=48")
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


LINES = ["the quick brown fox", "naïve €, and 1,234.56", "a dog"]
TARGETS = ["positive dog", "the", "Numbers in many texts"]


def test_a_batch_of_a_bart_has_their_rows_and_their_loss(tmp_path):
    theirs, tokenizer = bart_directory(tmp_path)
    start = read_start(f"hugging-face:{tmp_path}", ["writer"])
    recipe = recipe_of_model(registry.load("text_to_text:summarization"), start.source)
    recipe = recipe.changed(data=dict(max_source=40, max_target=40))
    texts = recipe.text_vocabulary(start.vocabulary)
    data = TranslationData.from_pairs(list(zip(LINES, TARGETS, strict=True)), texts)
    [batch] = [
        {name: batch[name].numpy() for name in ("source", "target")}
        for batch in data.evaluation_dataset()
    ]
    found = read_hugging_face(tmp_path)
    asked = tokenizer(LINES, text_target=TARGETS)
    for name, expected in (("source", asked["input_ids"]), ("target", asked["labels"])):
        pad = found.special.pad
        rows = [row[row != pad].tolist() for row in batch[name] if (row != pad).any()]
        assert sorted(rows) == sorted(expected)
    objective = TranslationObjective(0.0, starts=recipe.task.starts)
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
