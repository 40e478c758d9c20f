"""Tests of KerasHub's tasks, tokenizers and presets, used with this project's networks."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from macaron_tf.decoding.scoring import padded
from macaron_tf.model import Model
from macaron_tf.models import (
    EncoderClassifier,
    EncoderConfig,
    EncoderTokenClassifier,
    LanguageModel,
    PretrainingEncoder,
)
from macaron_tf.models.elmo import WordEncoderConfig
from macaron_tf.models.model_parts import Card
from macaron_tf.tasks import Limits
from macaron_tf.text import BytePairVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import BYTE_ALPHABET
from tests.harness import built, ids, numpy_of, refuses
from tests.toys.marks import slow
from tests.toys.pretrained import with_scores
from tests.toys.processes import in_new_process

keras_hub = pytest.importorskip("keras_hub")

from macaron_tf.hub.keras_hub import (  # noqa: E402
    EncoderBackbone,
    EncoderMaskedLMPreprocessor,
    EncoderTextClassifierPreprocessor,
    EncoderTokenizer,
    task_of,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef", *(f"##{c}" for c in "abcdef")]
WORD_PIECES = WordPieceVocabulary([*WORDS, "good", "bad"])
BYTES = BytePairVocabulary([*BYTE_ALPHABET, "oo"], ["o o"], pair_separators=2)
TEXTS, LABELS = ["good a", "bad b", "a good", "b bad c"], np.array([1, 0, 1, 0])


def config(vocabulary=WORD_PIECES, **changes) -> EncoderConfig:
    options = {"block": "swish_rnn", "max_length": 12, "dropout": 0.0, **changes}
    return EncoderConfig(vocabulary.size, 16, 32, 2, 2, **options)


def pairs() -> dict[str, np.ndarray]:
    """Returns the features of three rows with two segments each.

    The last two positions of rows 1 and 2 are padding.
    """
    padding = np.ones((3, 9), "int32")
    padding[1:, 7:] = 0
    rows = ids(3, 9, vocab_size=WORD_PIECES.pieces) * padding
    segments = (np.arange(9) > 4).astype("int32") * padding
    return {"token_ids": rows, "segment_ids": segments, "padding_mask": padding}


def classifier(**changes) -> EncoderClassifier:
    return built(EncoderClassifier, config(**changes), 2, head_dropout=0.0, noise=0.2)


def language_model(**changes) -> LanguageModel:
    changes = {"causal": True, "norm": "pre", "num_segments": 0, **changes}
    return built(LanguageModel, config(**{"rnn_step_sizes": (1, 2), **changes}), noise=0.3)


def test_a_classifier_s_pooler_and_scores_are_ours(tmp_path):
    """A regression model's own scores are standardized."""
    network = built(EncoderClassifier, config(), 1, noise=0.2)
    made = with_scores(Model(network, WORD_PIECES), 2.5, 1.5)
    task = task_of(made)
    expected = 1.5 * numpy_of(network(pairs())) + 2.5
    np.testing.assert_allclose(task(pairs()), expected, atol=1e-5)
    task.save_to_preset(str(tmp_path / "task"))
    again = keras_hub.models.TextClassifier.from_preset(str(tmp_path / "task"))
    np.testing.assert_allclose(again(pairs()), expected, atol=1e-5)
    found = macaron_tf.load(f"keras-hub:{tmp_path / 'task'}").network
    np.testing.assert_allclose(found(pairs()), expected, atol=1e-5)
    task_of(network, activation="sigmoid").save_to_preset(str(tmp_path / "sigmoid"))
    refuses("activation='sigmoid'", macaron_tf.load, f"keras-hub:{tmp_path / 'sigmoid'}")
    for language in ("en", "de"):
        limits = Limits(16, language=language, languages=("en", "de"))
        settings = dataclasses.replace(made.settings, limits=limits)
        other = dataclasses.replace(made, settings=settings)
        if language == "en":
            assert task_of(other)
    refuses("language is 'de', but", task_of, other)


@pytest.mark.parametrize("changes", [{"block": "macaron"}, {}, {"summary": "last"}])
def test_a_classifier_has_our_logits(changes):
    network = classifier(**changes)
    task = task_of(Model(network, vocabulary=WORD_PIECES))
    found = task(pairs())
    np.testing.assert_allclose(found, network(pairs()), atol=1e-5)
    plain = keras_hub.models.BertTextClassifier(task.backbone, num_classes=2)
    plain.output_dense.set_weights(network.head.get_weights())
    np.testing.assert_allclose(plain(pairs()), found, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({"block": "macaron"}, None),
        ({"embedding_dim": 8}, {"activation": "gelu_tanh", "epsilon": 1e-5}),
    ],
)
def test_a_masked_language_model_has_our_logits(changes, head, tmp_path):
    network = built(PretrainingEncoder, config(**changes), True, head, noise=0.2)
    task = task_of(Model(network, vocabulary=WORD_PIECES))
    positions = np.array([[1, 3], [2, 6], [4, 5]], "int32")
    found = task({**pairs(), "mask_positions": positions})
    expected = network({**pairs(), "masked_positions": positions})
    np.testing.assert_allclose(found, expected["masked_language"], atol=1e-5)
    pooled = task.backbone(pairs())["pooled_output"]
    hidden = network.encoder(pairs())
    np.testing.assert_allclose(pooled, network.pooler(hidden), atol=1e-5)
    task.save_to_preset(str(tmp_path))
    again = keras_hub.models.MaskedLM.from_preset(str(tmp_path))
    np.testing.assert_array_equal(again({**pairs(), "mask_positions": positions}), found)


@pytest.mark.slow  # a classifier's test is quicker
def test_masked_tokens_are_learnt_from_text():
    network = built(PretrainingEncoder, config(block="macaron"))
    task = task_of(Model(network, vocabulary=WORD_PIECES))
    task.compile(optimizer=keras.optimizers.Adam(0.01), jit_compile=False)
    data = tf.data.Dataset.from_tensor_slices(TEXTS * 4).batch(4)
    losses = task.fit(data, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_classifier_learns_from_text_and_lives_in_a_preset(tmp_path):
    keras.utils.set_random_seed(0)
    task = keras_hub.models.TextClassifier  # the preset knows the class
    start = task_of(Model(classifier(block=("macaron", "swish_rnn")), vocabulary=WORD_PIECES))
    start.save_to_preset(str(tmp_path / "start"))
    task = task.from_preset(str(tmp_path / "start"), num_classes=2)
    assert task.preprocessor.sequence_length == 12
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
    losses = task.fit(np.array(TEXTS), LABELS, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    answers = task.predict(TEXTS, verbose=0)
    assert (answers.argmax(-1) == LABELS).all()
    folder = tmp_path / "preset"
    task.save_to_preset(str(folder))
    task.save(tmp_path / "task.keras")
    task.export(tmp_path / "export", verbose=False)
    inputs = {name: numpy_of(x).astype("int32") for name, x in task.preprocessor(TEXTS).items()}
    np.savez(tmp_path / "inputs.npz", **inputs)
    np.save(tmp_path / "answers.npy", answers)
    in_new_process(
        "import tensorflow as tf",
        """
folder, texts = sys.argv[1], sys.argv[2].split(",")
inputs = {name: tf.constant(x) for name, x in np.load(folder + "/inputs.npz").items()}
exported = tf.saved_model.load(folder + "/export")
answers = exported.serve(inputs)
np.testing.assert_allclose(answers, np.load(folder + "/answers.npy"), atol=1e-5)
assert not {"keras_hub", "macaron_tf"} & sys.modules.keys()  # TensorFlow alone

import keras, keras_hub
import macaron_tf.hub.keras_hub

for task in (
    keras_hub.models.TextClassifier.from_preset(folder + "/preset"),
    keras.saving.load_model(folder + "/task.keras"),
):
    answers = task.predict(texts, verbose=0)
    np.testing.assert_allclose(answers, np.load(folder + "/answers.npy"), atol=1e-6)
backbone = keras_hub.models.Backbone.from_preset(folder + "/preset", dropout=0.25)
assert backbone.config.dropout == 0.25
tokenizer = keras_hub.models.Tokenizer.from_preset(folder + "/preset")
assert tokenizer.detokenize(tokenizer(texts)) == texts
""",
        tmp_path,
        ",".join(TEXTS),
    )


def prompts(rows: list[list[int]], length: int) -> dict[str, np.ndarray]:
    """Returns the inputs of a generator for rows of ids, padded to `length`."""
    token_ids = padded(rows, 0, length)
    return {"token_ids": token_ids, "padding_mask": token_ids != 0}


def greedy(model: LanguageModel, rows: list[list[int]], length: int) -> list[list[int]]:
    """Continues each row greedily to `length` tokens, without a cache; returns all ids."""
    done = []
    for row in rows:
        while len(row) < length:
            row = [*row, int(numpy_of(model(np.array([row])))[0, -1].argmax())]
        done.append(row)
    return done


@pytest.mark.parametrize("compiled", [False, *slow(True)])
@pytest.mark.parametrize(
    "changes",
    [
        {"block": "macaron"},
        *slow(
            {"output_bias": True, "embedding_dim": 8},
            {"block": ("swish_rnn", "macaron"), "positions": "transformer_xl"},
        ),
    ],
)
def test_a_language_model_has_our_logits_and_continues_prompts(changes, compiled):
    network = language_model(**changes)
    task = task_of(Model(network))
    rows = [[2, 6, 8, 5], [2, 7]]
    inputs = prompts(rows, 12)
    np.testing.assert_allclose(task(inputs), network(inputs), atol=1e-5)
    task.compile(sampler="greedy", jit_compile=compiled)
    found = task.generate(inputs, stop_token_ids=None)
    assert found["token_ids"].tolist() == greedy(network, rows, 12)
    assert found["padding_mask"].all()
    stop = int(found["token_ids"][0, 6])
    found = task.generate(inputs, stop_token_ids=[stop])
    new = found["token_ids"][0, 4:].tolist()
    assert found["padding_mask"][0].sum() == 4 + new.index(stop) + 1


@pytest.mark.slow
def test_a_long_prompt_is_read_in_chunks_as_token_by_token():
    network = language_model(max_length=48)
    task = task_of(Model(network))
    task.compile(sampler="greedy", jit_compile=False)
    rows = ids(2, 41, vocab_size=WORD_PIECES.pieces).tolist()
    rows[1] = rows[1][:36]  # two chunks of 16, and 3 tokens
    found = task.generate(prompts(rows, 48), stop_token_ids=None)["token_ids"].tolist()
    assert found == greedy(network, rows, 48)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classifier", "masked", "language_model"])
def test_a_preset_is_loaded_as_the_network_that_it_was_made_of(kind, tmp_path):
    if kind == "classifier":
        network, inputs = classifier(block="macaron"), pairs()
    elif kind == "masked":
        network = built(PretrainingEncoder, config(), head_options={"epsilon": 1e-5}, noise=0.2)
        inputs = pairs()
    else:
        network = language_model(output_bias=True)
        inputs = {name: pairs()[name] for name in ("token_ids", "padding_mask")}
    task = task_of(Model(network, vocabulary=WORD_PIECES, card=Card(starts=False)))
    hidden = task.backbone(inputs)
    task.save_to_preset(str(tmp_path / "task"))
    task.backbone.save_to_preset(str(tmp_path / "backbone"))
    for name in ("task", "backbone"):
        found = macaron_tf.load(f"keras-hub:{tmp_path / name}")
        ours = found.network.hidden_states(found.network._named_inputs(inputs))
        theirs = hidden if kind == "language_model" else hidden["sequence_output"]
        np.testing.assert_array_equal(ours, theirs)
        again = keras_hub.models.Backbone.from_preset(str(tmp_path / name))
        assert {w.dtype for w in again.weights} == {w.dtype for w in task.backbone.weights}
        # Saved and loaded once more, in either format.
        found.save_pretrained(tmp_path / f"{name}-saved")
        saved = macaron_tf.load(tmp_path / f"{name}-saved")
        np.testing.assert_array_equal(
            saved.network.hidden_states(saved.network._named_inputs(inputs)), ours
        )
    found = macaron_tf.load(f"keras-hub:{tmp_path / 'task'}")
    assert found.vocabulary.hash == WORD_PIECES.hash and found.config == network.config
    assert found.model_options and found.card.starts == (kind != "language_model")
    answers, expected = found.network(inputs), network(inputs)
    for one, other in zip(keras.tree.flatten(answers), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    record = tmp_path / "task/task.json"
    text = record.read_text()
    record.write_text(json.dumps({**json.loads(text), "registered_name": "mine>Task"}))
    reason = "names an unknown class mine>Task: import its module first"
    refuses(rf"task\.json {reason}", macaron_tf.load, f"keras-hub:{tmp_path / 'task'}")
    record.write_text(text)
    (tmp_path / "task/model.weights.h5").unlink()
    refuses("task cannot be read", macaron_tf.load, f"keras-hub:{tmp_path / 'task'}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", ["top_p", keras_hub.samplers.ContrastiveSampler(k=2, alpha=0.3)]
)
def test_samplers(sampler):
    task = task_of(Model(language_model(), vocabulary=WORD_PIECES))
    task.compile(sampler=sampler, jit_compile=False)
    texts = task.generate(["a good", "b"], max_length=8)
    assert [text[:1] for text in texts] == ["a", "b"]


@pytest.mark.slow
def test_beams_find_a_row_no_less_probable_than_greedy_choice():
    network = language_model()
    task, scores = task_of(Model(network)), []
    for sampler in ("greedy", keras_hub.samplers.BeamSampler(num_beams=4)):
        task.compile(sampler=sampler, jit_compile=False)
        row = task.generate(prompts([[2, 6]], 6), stop_token_ids=None)["token_ids"]
        logs = numpy_of(keras.ops.log_softmax(network(row)))[0]
        scores.append(sum(logs[t - 1, row[0, t]] for t in range(2, 6)))
    assert scores[1] >= scores[0]


@pytest.mark.slow  # as above
def test_a_language_model_learns_from_text_and_lives_in_a_preset(tmp_path):
    task = task_of(Model(language_model(), vocabulary=WORD_PIECES, card=Card(starts=False)))
    task.compile(optimizer=keras.optimizers.Adam(0.01), sampler="greedy", jit_compile=False)
    losses = task.fit(np.array(["a b c d e f"] * 4), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert task.generate("a b", max_length=6) == "a b c d e f"
    task.save_to_preset(str(tmp_path))
    again = keras_hub.models.CausalLM.from_preset(str(tmp_path))
    again.compile(sampler="greedy", jit_compile=False)
    assert again.generate(["a b", "a b c d"], max_length=6) == ["a b c d e f"] * 2
    assert again.generate("a b", max_length=6, strip_prompt=True) == "c d e f"


def test_lora_trains_attention_alone():
    backbone = EncoderBackbone(config(block="macaron"))
    backbone.enable_lora(2)
    assert len(backbone.trainable_variables) == 2 * 2 + 2  # factors and biases of two layers


def test_a_backbone_computes_in_bfloat16():
    backbone = EncoderBackbone(config(), dtype="mixed_bfloat16")
    outputs = backbone(pairs())
    assert {x.dtype for x in outputs.values()} == {tf.bfloat16}
    assert {weight.dtype for weight in backbone.weights} == {"float32"}


@pytest.mark.parametrize("vocabulary", [WORD_PIECES, BYTES])
def test_a_tokenizer_gives_the_vocabulary_s_ids(vocabulary):
    tokenizer = EncoderTokenizer(vocabulary)
    expected = vocabulary.encode_lines(TEXTS)
    assert tokenizer(TEXTS) == expected
    assert tokenizer(TEXTS[0]).numpy().tolist() == expected[0]
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(4).map(tokenizer)
    assert next(iter(data)).to_list() == expected
    assert tokenizer.detokenize(expected) == TEXTS == tokenizer.detokenize(tokenizer(TEXTS))
    assert tokenizer.detokenize(expected[0]) == TEXTS[0]
    assert tokenizer.vocabulary_size() == vocabulary.pieces


def test_two_texts_are_put_together_with_the_vocabulary_s_separators():
    for kind in (EncoderTextClassifierPreprocessor, EncoderMaskedLMPreprocessor):
        options = {"mask_selection_rate": 1e-9} if kind is EncoderMaskedLMPreprocessor else {}
        preprocessor = kind(EncoderTokenizer(BYTES), sequence_length=9, **options)
        row = preprocessor((["a"], ["bc"]), y=None)
        row = (row[0] if options else row)["token_ids"]
        [a], [b, c] = BYTES.encode_lines(["a", "bc"])
        end = BYTES.special.end
        assert np.asarray(row).tolist() == [[BYTES.special.begin, a, end, end, b, c, end, 0, 0]]


@pytest.mark.parametrize("kind", ["task", "part"])
def test_what_is_frozen_is_so_in_a_preset(kind, tmp_path):
    task = task_of(Model(classifier(), vocabulary=WORD_PIECES))
    layer = task.backbone if kind == "task" else task.backbone.encoder.stack.blocks[0]
    layer.trainable = False
    task.save_to_preset(str(tmp_path))
    again = keras_hub.models.TextClassifier.from_preset(str(tmp_path))
    flags = [weight.trainable for weight in task.weights]
    assert [weight.trainable for weight in again.weights] == flags and not all(flags)


@pytest.mark.slow
def test_a_network_alone_becomes_a_task():
    for network in (classifier(), language_model()):
        task = task_of(network)
        inputs = {name: pairs()[name] for name in task.input}
        np.testing.assert_allclose(task(inputs), network(inputs), atol=1e-5)
        assert task.preprocessor is None
    loaded = Model(PretrainingEncoder(config()), card=Card(checkpoint="hugging-face:body"))
    refuses("hugging-face:body has no masked language head", task_of, loaded)
    words = WordEncoderConfig(lstm_dim=4, word_dim=4, filters=((2, 4),))
    refuses("no task for the network EncoderClassifier", task_of, EncoderClassifier(words, 2))


def test_other_vocabularies_and_networks_are_refused():
    last = WordPieceVocabulary(WORD_PIECES.words)
    last.cls_last = True
    refuses(r"\[CLS\] after a text", EncoderTokenizer, last)
    tagger = built(EncoderTokenClassifier, config(), 3)
    refuses("no task for the network EncoderTokenClassifier", task_of, Model(tagger))
    distilled = built(EncoderClassifier, config(), 2, pooler_activation="relu")
    refuses("a pooler with 'relu' is no pooler", task_of, Model(distilled))
    head = {"transform": False}
    xlm = built(PretrainingEncoder, config(), head_options=head)
    refuses("head without a dense layer", task_of, Model(xlm))
    modern = PretrainingEncoder(macaron_tf.models.catalog.config("modern_bert_tiny", vocab_size=8))
    refuses("needs a head without biases", task_of, modern)
