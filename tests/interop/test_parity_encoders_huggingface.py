"""RoBERTa, XLM-R, ALBERT, ELECTRA and XLM against Hugging Face (PyTorch), read from directories."""

import json

import keras
import numpy as np
import pytest

from macaron_tf.interop import read_encoder
from macaron_tf.text.byte_pairs import byte_alphabet
from tests.harness import numpy_of
from tests.interop.bert_parity import check_equal, noise

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *"ijklmno"]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
SHAPES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
# Name of their classes, further settings, vocabulary, padding's id.
FAMILIES = {
    "roberta": ("Roberta", {"type_vocab_size": 1, "hidden_act": "relu"}, "bytes", 1),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 2}, "fairseq", 1),
    "albert": ("Albert", {"embedding_size": 16, "type_vocab_size": 2}, "albert", 0),
    "electra": ("Electra", {"embedding_size": 16, "hidden_act": "relu"}, "words", 0),
    "electra of one width": ("Electra", {"embedding_size": 32}, "words", 0),
    "xlm": ("XLM", {"n_langs": 3}, None, 2),
    "xlm of one language": ("XLM", {"n_langs": 1, "gelu_activation": False}, None, 2),
}
LENGTH = 16


def write_vocabulary(kind, directory) -> int:
    """Writes a tokenizer's files; returns the number of their ids."""
    if kind == "words":
        (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
        return len(WORDS)
    if kind == "bytes":
        names = [*FAIRSEQ, *byte_alphabet(), "<mask>"]
        numbers = {name: number for number, name in enumerate(names)}
        (directory / "vocab.json").write_text(json.dumps(numbers))
        (directory / "merges.txt").write_text("#version: 0.2\n")
        return len(names)
    if kind is None:
        return 37
    names = [*FAIRSEQ, *"▁abcdefgh", "<mask>"]
    if kind == "albert":
        names = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *"▁abcdefgh"]
    model = {"type": "Unigram", "vocab": [[name, -1.0] for name in names]}
    (directory / "tokenizer.json").write_text(json.dumps({"model": model}))
    return len(names)


def make(family, kind, directory, **options):
    """Their model with random weights, saved; `kind` is a class's name without the family's."""
    name, settings, vocabulary, _ = FAMILIES[family]
    shapes = {"emb_dim": 32, "n_heads": 4, "n_layers": 3} if name == "XLM" else SHAPES
    config = getattr(transformers, f"{name}Config")(
        vocab_size=write_vocabulary(vocabulary, directory),
        max_position_embeddings=LENGTH + 2,
        **{**shapes, **settings, **options},
    )
    torch.manual_seed(0)
    model = getattr(transformers, name + kind)(config).eval()
    with torch.no_grad():
        for seed, weight in enumerate(model.parameters()):
            weight.add_(torch.tensor(noise(seed, weight.shape)))
    model.save_pretrained(directory)
    return model


def batch(model, family):
    """Padded rows in their ids, `(4, 13)`, with segments or languages where there are any."""
    padding = FAMILIES[family][3]
    rng = np.random.default_rng(0)
    config = model.config
    ids = rng.integers(4, config.vocab_size, (4, 13))
    lengths = np.array([13, 9, 2, 12])[:, None]
    real = np.arange(13) < lengths
    inputs = {"input_ids": np.where(real, ids, padding), "attention_mask": real.astype(int)}
    if getattr(config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = (np.arange(13) >= lengths // 2).astype(int) * real
    if getattr(config, "n_langs", 1) > 1:
        inputs["langs"] = rng.integers(0, config.n_langs, (4, 13))
    return inputs


def ours_of(read, theirs):
    """The same rows in our ids."""
    names = {"token_type_ids": "segment_ids", "langs": "language_ids"}
    found = {names[name]: rows.astype("int32") for name, rows in theirs.items() if name in names}
    ids = theirs["input_ids"]
    if read.ids is not None:
        assert sorted(read.ids) == list(range(len(read.ids)))
        ids = np.argsort(read.ids)[ids]
    return {**found, "token_ids": ids.astype("int32")}


def call(model, inputs):
    with torch.no_grad():
        return model(
            **{name: torch.tensor(rows).long() for name, rows in inputs.items()},
            output_hidden_states=True,
        )


def compare(read, inputs, expected):
    """Hidden states of real positions; returns all of ours, and which are real."""
    ours = ours_of(read, inputs)
    real = inputs["attention_mask"].astype(bool)
    np.testing.assert_array_equal(ours["token_ids"] == 0, ~real)
    hidden = numpy_of(read.network.hidden_states(ours, training=False))
    check_equal(hidden[real], expected.numpy()[real])
    return hidden, real


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_language_agrees(family, tmp_path):
    kind = "WithLMHeadModel" if family.startswith("xlm") and "-" not in family else "ForMaskedLM"
    theirs = make(family, kind, tmp_path)
    read = read_encoder(tmp_path)
    inputs = batch(theirs, family)
    expected = call(theirs, inputs)
    hidden, real = compare(read, inputs, expected.hidden_states[-1])
    assert read.has_masked_language and read.unread == ()
    logits = numpy_of(read.network.masked_logits(hidden))
    count = theirs.config.vocab_size
    order = np.arange(count) if read.ids is None else read.ids
    check_equal(logits[real][:, :count], expected.logits.numpy()[real][:, order])
    assert (logits[..., count:] < -9_000).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_body_alone_agrees_and_its_pooler_reaches_a_classifier(family, tmp_path):
    theirs = make(family, "Model", tmp_path)
    read = read_encoder(tmp_path)
    inputs = batch(theirs, family)
    expected = call(theirs, inputs)
    hidden, _ = compare(read, inputs, expected.last_hidden_state)
    assert not read.has_masked_language
    network = read.classifier(3, head_dropout=0.0)
    np.testing.assert_array_equal(
        numpy_of(network.encoder(ours_of(read, inputs), training=False)), hidden
    )
    if read.pooler:
        check_equal(network.pooler(hidden), expected.pooler_output)
    assert (read.pooler is None) == (getattr(expected, "pooler_output", None) is None)


def test_alberts_sentence_order_agrees(tmp_path):
    theirs = make("albert", "ForPreTraining", tmp_path)
    read = read_encoder(tmp_path)
    inputs = batch(theirs, "albert")
    expected = call(theirs, inputs)
    hidden, _ = compare(read, inputs, expected.hidden_states[-1])
    check_equal(read.network.pair_logits(hidden), expected.sop_logits)
    config = read.network.config
    assert (config.sharing, config.embedding_dim, config.activation) == ("all", 16, "gelu_tanh")
    layer = 4 * 32 * 33 + 2 * 32 * 64 + 64 + 32 + 4 * 32  # once, not three times
    assert read.network.encoder.stack.count_params() == layer


def test_electras_discriminator_agrees(tmp_path):
    theirs = make("electra", "ForPreTraining", tmp_path)
    read = read_encoder(tmp_path)
    inputs = batch(theirs, "electra")
    expected = call(theirs, inputs)
    hidden, real = compare(read, inputs, expected.hidden_states[-1])
    assert not read.has_masked_language and read.unread == ()
    check_equal(numpy_of(read.replaced_token(hidden))[real], expected.logits.numpy()[real])


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("albert", {"num_hidden_groups": 3}, "num_hidden_groups=3: only 1"),
        ("albert", {"inner_group_num": 2}, "inner_group_num=2: only 1"),
        ("albert", {"embedding_size": 32}, "embedding_hidden_mapping_in.* no place"),
        ("xlm", {"causal": True}, "causal=True: only False"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id=0 and its vocabulary pads with 1"),
    ],
)
def test_what_has_no_place_in_our_model_is_refused(family, options, reason, tmp_path):
    from macaron_tf.errors import UserError

    make(family, "Model", tmp_path, **options)
    with pytest.raises(UserError, match=reason):
        read_encoder(tmp_path)


def test_an_import_is_saved_and_loaded(tmp_path):
    (tmp_path / "theirs").mkdir()
    theirs = make("xlm", "WithLMHeadModel", tmp_path / "theirs")
    read = read_encoder(tmp_path / "theirs")
    inputs = ours_of(read, batch(theirs, "xlm"))
    read.network.save(tmp_path / "ours.keras")
    again = keras.saving.load_model(tmp_path / "ours.keras")
    expected = numpy_of(read.network(inputs, training=False)["masked_language"])
    np.testing.assert_array_equal(
        numpy_of(again(inputs, training=False)["masked_language"]), expected
    )
