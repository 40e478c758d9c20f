"""Our BERT against Hugging Face's (PyTorch), read from its directory."""

import numpy as np
import pytest

from macaron_tf.interop import read_encoder
from tests.harness import numpy_of
from tests.interop.bert_parity import (
    HEADS,
    INNER,
    LAYERS,
    LENGTH,
    SEGMENTS,
    VOCAB,
    WIDTH,
    WORDS,
    check_equal,
    check_hidden,
    check_masked_logits,
    inputs,
    noise,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")


def bert(kind, **options):
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        type_vocab_size=SEGMENTS,
        **options,
    )
    torch.manual_seed(0)  # the same weights each time
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for seed, weight in enumerate(model.parameters()):
            weight.add_(torch.tensor(noise(seed, weight.shape)))
    return model


def save(model, directory):
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def call(model, **options):
    batch = inputs()
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(batch["token_ids"]).long(),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
            attention_mask=torch.tensor(batch["token_ids"] != 0).long(),
            output_hidden_states=True,
            **options,
        )


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_all_heads_agree(activation, tmp_path):
    theirs = bert("BertForPreTraining", hidden_act=activation)
    save(theirs, tmp_path)
    read = read_encoder(tmp_path)
    expected = call(theirs)
    hidden = check_hidden(read.network, expected.hidden_states[-1])
    check_masked_logits(read.network, hidden, expected.prediction_logits)
    check_equal(read.network.pair_logits(hidden), expected.seq_relationship_logits)
    assert read.has_masked_language
    assert read.unread == ()


@pytest.mark.parametrize("layout", ["pickle", "early names"])
def test_older_files_are_read_too(layout, tmp_path):
    theirs = bert("BertForMaskedLM")
    save(theirs, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = theirs.state_dict()
    if layout == "early names":
        for new, old in ((".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".beta")):
            old = old if "gamma" in old else ".LayerNorm.beta"
            state = {name.replace(new, old): value for name, value in state.items()}
        state["bert.embeddings.position_ids"] = torch.arange(LENGTH)[None]
    torch.save(state, tmp_path / "pytorch_model.bin")
    read = read_encoder(tmp_path)
    expected = call(theirs)
    hidden = check_hidden(read.network, expected.hidden_states[-1])
    check_masked_logits(read.network, hidden, expected.logits)
    assert read.network.sentence_pair is None
    assert read.pooler is None


def test_a_pooler_alone_reaches_a_classifier(tmp_path):
    theirs = bert("BertModel")
    save(theirs, tmp_path)
    read = read_encoder(tmp_path)
    assert not read.has_masked_language
    assert read.network.sentence_pair is None
    expected = call(theirs)
    network = read.classifier(3, head_dropout=0.0, dropout=0.0)
    hidden = check_hidden(network, expected.last_hidden_state)
    check_equal(network.pooler(hidden), expected.pooler_output)


def test_another_head_is_named_and_left_behind(tmp_path):
    theirs = bert("BertForSequenceClassification", num_labels=4)
    save(theirs, tmp_path)
    read = read_encoder(tmp_path)
    assert read.unread == ("classifier.bias", "classifier.weight")
    network = read.classifier(4)
    weight, bias = (theirs.classifier.state_dict()[name].numpy() for name in ("weight", "bias"))
    network.head.dense.set_weights([weight.T, bias])
    check_equal(network(inputs(), training=False), call(theirs).logits)


def test_half_precision_files_become_float32(tmp_path):
    theirs = bert("BertModel").bfloat16()
    save(theirs, tmp_path)
    read = read_encoder(tmp_path)
    expected = theirs.state_dict()["embeddings.word_embeddings.weight"].float().numpy()
    table = numpy_of(read.network.encoder.embeddings.tokens.table)
    np.testing.assert_array_equal(table[:VOCAB], expected)
    np.testing.assert_array_equal(table[VOCAB:], 0)


def test_the_tokenizer_that_is_saved_today_is_read(tmp_path):
    save(bert("BertModel"), tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    for lower_case in (True, False):
        tokenizer = transformers.BertTokenizer(
            vocab={word: i for i, word in enumerate(WORDS)}, do_lower_case=lower_case
        )
        tokenizer.save_pretrained(tmp_path)
        text = "AB word3, Ébc h abd"
        vocabulary = read_encoder(tmp_path).vocabulary
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert vocabulary.encode_lines([text]) == [expected]
        assert vocabulary.lower_case == lower_case
