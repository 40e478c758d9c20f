"""A model from transformers keeps its ids: masks, logits, loss and every tensor are as there."""

import json

import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from macaron_tf.errors import UserError
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.families import FAMILIES
from macaron_tf.hub.family import ModelFolder
from macaron_tf.objectives import CausalLanguageObjective, TranslationObjective
from macaron_tf.special import Special
from tests.harness import numpy_of, refuses
from tests.toys import peer_encoder_decoders, peer_encoders, peer_language_models
from tests.toys.hard_texts import hard_texts
from tests.toys.hugging_face import check_equal, written

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

# Kind of the model class, and PAD, UNK, [CLS], [SEP] and [MASK].
ENCODERS = {
    "bert": Special(0, 1, 2, 3, 4),
    "roberta": Special(1, 3, 0, 2, 260),
    "xlm-roberta": Special(1, 3, 0, 2, 13),
    "albert": Special(0, 1, 2, 3, 4),
    "electra": Special(0, 1, 2, 3, 4),
    "distilbert": Special(0, 1, 2, 3, 4),
    "modernbert": Special(259, 256, 257, 258, 260),
    "xlm with its tokenizer": Special(2, 3, 0, 1, 5),
}


def check_written(model, folder, out) -> None:
    """Asserts that a model that is read and written has the tensors and fields of `folder`."""
    import safetensors.numpy

    written(model, out)
    ours, theirs = (safetensors.numpy.load_file(f / "model.safetensors") for f in (out, folder))
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, name)
    fields, expected = (json.loads((f / "config.json").read_text()) for f in (out, folder))
    differing = {n: (fields[n], v) for n, v in expected.items() if n in fields and fields[n] != v}
    # GPT-2's None is four times the width; ModernBERT's defaults are ids of its own vocabulary;
    # MarianMT has no beginning of a text.
    for name in ("transformers_version", "n_inner", "cls_token_id", "sep_token_id", "bos_token_id"):
        differing.pop(name, None)
    assert not differing and fields["vocab_size"] == expected["vocab_size"]
    again = macaron_tf.load(f"hugging-face:{out}")
    assert again.special == model.special
    if model.vocabulary:
        texts = hard_texts()
        assert again.vocabulary.encode_lines(texts) == model.vocabulary.encode_lines(texts)


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_keeps_its_ids(family, tmp_path):
    (tmp_path / "in").mkdir()
    theirs = peer_encoders.make(family, peer_encoders.masked_head(family), tmp_path / "in")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    special, rows = ENCODERS[family], theirs.config.vocab_size
    assert read.special.roles == special.roles and read.config.pad_id == special.pad
    assert read.special.rows == rows and read.config.vocab_size == -(-rows // 8) * 8
    inputs = peer_encoders.batch(theirs, family)
    expected = peer_encoders.call(theirs, inputs)
    ids = peer_encoders.ours_of(inputs)
    found = numpy_of(read.network.encoder(ids))  # without a mask: padding is found by its id
    real = inputs["attention_mask"] == 1
    check_equal(found[real], expected.hidden_states[-1].numpy()[real])
    hidden = read.network.hidden_states(ids)
    logits = numpy_of(read.network.masked_logits(tf.boolean_mask(hidden, real)))
    check_equal(logits[:, :rows], expected.logits.numpy()[real])
    assert (logits[:, rows:] < -1000).all()
    check_written(read, tmp_path / "in", tmp_path / "out")


WITH_TOKENIZERS = ("gpt2", "llama of one table")


@pytest.mark.parametrize("family", ["gpt2", "llama of one table", "llama", "gpt"])
def test_a_language_model_without_padding_gets_an_id_after_its_tokens(family, tmp_path):
    (tmp_path / "in").mkdir()
    options = {"bos_token_id": 260, "eos_token_id": 260} if family in WITH_TOKENIZERS else {}
    theirs = peer_language_models.make(family, tmp_path / "in", **options)
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    rows = theirs.config.vocab_size
    assert read.special.pad == read.config.pad_id == rows == read.special.rows
    if read.vocabulary:
        assert read.special.begin == read.special.end == rows - 1  # <|endoftext|>
    ids = np.random.default_rng(0).integers(rows - 1, size=(3, 9)).astype("int32")
    padded = ids.copy()
    padded[1, 6:] = read.special.pad
    with torch.no_grad():
        expected = theirs(torch.tensor(ids).long()).logits.numpy()
    logits = numpy_of(read.network({"token_ids": padded}))[..., :rows]
    real = padded < rows
    check_equal(logits[real], expected[real])
    sums = CausalLanguageObjective()(read.network, {"token_ids": tf.constant(padded)}, False)
    labels = np.where(real, ids, -100)
    logits, labels = torch.tensor(expected[:, :-1]), torch.tensor(labels[:, 1:]).long()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, rows), labels.reshape(-1))
    assert float(sums["weight"]) == 8 + 5 + 8 and float(sums["input_tokens"]) == 24
    np.testing.assert_allclose(sums["loss_sum"] / sums["weight"], float(loss), rtol=1e-5)
    check_written(read, tmp_path / "in", tmp_path / "out")


def test_xlnet_keeps_its_ids(tmp_path):
    (tmp_path / "in").mkdir()
    theirs = peer_language_models.make("xlnet", tmp_path / "in")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    assert read.config.pad_id == 5
    check_written(read, tmp_path / "in", tmp_path / "out")
    ids = np.random.default_rng(0).integers(7, 29, (3, 9))
    mask = np.ones(ids.shape)
    ids[1, 6:], mask[1, 6:] = 5, 0
    with torch.no_grad():
        given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        expected = theirs.transformer(**given).last_hidden_state.numpy()
    found = numpy_of(read.network.encoder({"token_ids": ids.astype("int32")}))
    check_equal(found[mask == 1], expected[mask == 1])


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_encoder_decoder_keeps_its_ids(family, tmp_path):
    (tmp_path / "in").mkdir()
    options = {} if family == "t5" else {"forced_bos_token_id": 0}
    make = getattr(peer_encoder_decoders, f"{family}_directory")
    theirs, tokenizer = make(tmp_path / "in", **options)
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    special, rows = read.special, theirs.config.vocab_size
    assert (special.pad, special.end) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert special.begin == (special.pad if family == "t5" else tokenizer.bos_token_id)
    if family == "t5":
        names = [f"<extra_id_{index}>" for index in range(100)]
        assert list(special.sentinels) == tokenizer.convert_tokens_to_ids(names)
    texts, answers = ["a cat sat on", "the mat"], ["the", "a dog ran far"]
    given = tokenizer(texts, text_target=answers, padding=True, return_tensors="pt")
    source, target = (given[name].numpy().astype("int32") for name in ("input_ids", "labels"))
    assert (target == special.pad).any() and (source == special.pad).any()
    labels = torch.tensor(np.where(target == special.pad, -100, target)).long()
    with torch.no_grad():
        answer = theirs(given["input_ids"], given["attention_mask"], labels=labels)
    objective = TranslationObjective(0.0, starts=family == "bart")
    sums = objective(read.network, {"source": source, "target": target}, False)
    start = special.end if family == "bart" else special.begin
    inputs = np.concatenate([np.full((2, 1), start), target[:, :-1]], 1).astype("int32")
    logits = numpy_of(read.network({"source": source, "target": inputs}))[..., :rows]
    real = target != special.pad
    expected = answer.logits.numpy()[real]
    # A T5's attention scores are unscaled, so float32 loses a digit.
    np.testing.assert_allclose(logits[real], expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert float(sums["weight"]) == real.sum()
    if family == "t5":  # a BART's table has rows that fill it up
        np.testing.assert_allclose(sums["loss_sum"] / sums["weight"], float(answer.loss), rtol=1e-5)
    check_written(read, tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("biased", [False, True])
def test_a_marian_is_written_back_as_it_was(biased, tmp_path):
    theirs = peer_encoder_decoders.marian()
    if biased:
        theirs.final_logits_bias.normal_()
    theirs.save_pretrained(tmp_path / "in")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    assert read.special.pad == read.special.begin == theirs.config.pad_token_id
    check_written(read, tmp_path / "in", tmp_path / "out")
    again = type(theirs).from_pretrained(tmp_path / "out").eval()
    ids = np.random.default_rng(0).integers(5, 13, (2, 9))
    np.testing.assert_array_equal(their_logits(again, ids), their_logits(theirs, ids))


def their_logits(model, ids) -> np.ndarray:
    with torch.no_grad():
        given = {"input_ids": torch.tensor(ids)}
        if model.config.is_encoder_decoder:
            given["decoder_input_ids"] = given["input_ids"]
        return model(**given).logits.numpy()


def changed(name: str, value):
    """Returns another value of a field of `config.json`, of a type that transformers takes."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2 + 0.1
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return "tanh"
    return 1 if value is None and name.endswith("_id") else value


KINDS = {
    **dict.fromkeys(ENCODERS, "ForTokenClassification"),
    **dict.fromkeys(("gpt2", "gpt", "llama", "qwen 3", "olmo 2", "xlnet"), ""),
    **dict.fromkeys(("t5", "bart"), None),
}


@pytest.mark.parametrize("family", KINDS)
def test_every_field_is_read_or_without_effect(family, tmp_path):
    """All fields of transformers' class; those that are not read change no logit of theirs."""
    place = tmp_path / "in"
    place.mkdir()
    if family in ENCODERS:
        theirs = peer_encoders.make(family, KINDS[family], place)
    elif family in ("t5", "bart"):
        theirs, _ = getattr(peer_encoder_decoders, f"{family}_directory")(place)
    else:
        theirs = peer_language_models.make(family, place)
    file = place / "config.json"
    written = json.loads(file.read_text())
    fields = {**json.loads(theirs.config.to_json_string(use_diff=False)), **written}
    file.write_text(json.dumps(fields))
    config = ForeignConfig.of_directory(place, FAMILIES)
    read = FAMILIES[config.get("model_type")]
    assert read.read(ModelFolder(place, config))
    config.refuse_unread(read.without_effect)

    kept = {"architectures", "vocab_size", "is_encoder_decoder", "id2label", "label2id"}
    kept |= {"num_labels", "d_head", "transformers_version", "dtype", "return_dict", "problem_type"}
    unread = fields.keys() - config.names_read - kept
    file.write_text(json.dumps({n: changed(n, v) if n in unread else v for n, v in fields.items()}))
    again = type(theirs).from_pretrained(place).eval()
    ids = np.random.default_rng(0).integers(5, 13, (2, 9))
    # `chunk_size_feed_forward` adds the 64 terms of a float32 sum in another order.
    logits, before = their_logits(again, ids), their_logits(theirs, ids)
    np.testing.assert_allclose(logits, before, rtol=0, atol=2e-6 * np.abs(before).max())


def other_values(name: str, value) -> list:
    """Returns other values of a field of `config.json`, right ones and wrong ones."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value / 2 + 0.1, value * 3 + 0.01]
    if isinstance(value, int):
        return [value + 1, value * 2 + 2]
    if isinstance(value, str):
        names = ("relu", "gelu_new", "silu", "tanh", "mean", "cls", "last")
        return [other for other in names if other != value]
    return ([1] if name.endswith("_id") else [1, True, "mean"]) if value is None else []


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in KINDS if name != "xlnet"])
def test_a_flipped_field_changes_our_logits_as_theirs_or_is_refused(family, tmp_path):
    """Each field of `config.json` in turn. Where transformers refuses the folder, we may answer."""
    ids = np.random.default_rng(0).integers(5, 13, (2, 9)).astype("int32")
    if family in ENCODERS:
        theirs = peer_encoders.make(family, peer_encoders.masked_head(family), tmp_path)
        batch = peer_encoders.batch(theirs, family)
        real = batch["attention_mask"] == 1
    elif family in ("t5", "bart"):
        theirs, _ = getattr(peer_encoder_decoders, f"{family}_directory")(tmp_path)
    else:
        theirs = peer_language_models.make(family, tmp_path)

    def expected() -> np.ndarray:
        options = {"output_loading_info": True}
        model, info = type(theirs).from_pretrained(tmp_path, **options)
        if info["missing_keys"] or info["mismatched_keys"]:
            raise ValueError("the weights do not fit")
        if family in ENCODERS:
            return peer_encoders.call(model.eval(), batch).logits.numpy()[real]
        return their_logits(model.eval(), ids)

    def found() -> np.ndarray:
        network = macaron_tf.load(f"hugging-face:{tmp_path}").network
        if family in ENCODERS:
            hidden = network.hidden_states(peer_encoders.ours_of(batch))
            return numpy_of(network.masked_logits(tf.boolean_mask(hidden, real)))
        pair = family in ("t5", "bart")
        return numpy_of(network({"source": ids, "target": ids} if pair else {"token_ids": ids}))

    file = tmp_path / "config.json"
    fields = json.loads(theirs.config.to_json_string(use_diff=False))
    fields |= json.loads(file.read_text())
    kept = {"architectures", "vocab_size", "dtype", "torchscript", "return_dict"}
    kept |= {"output_attentions", "output_hidden_states", "is_encoder_decoder"}
    counts = {"equal": 0, "refused": 0}
    for name in fields.keys() - kept:
        for value in other_values(name, fields[name]):
            file.write_text(json.dumps({**fields, name: value}))
            try:
                logits = found()
            except UserError:
                counts["refused"] += 1
                continue
            try:
                right = expected()
            except Exception:  # errors of every type leave transformers for a wrong value
                continue
            logits, scale = logits[..., : right.shape[-1]], max(np.abs(right).max(), 1)
            np.testing.assert_allclose(logits, right, rtol=0, atol=1e-4 * scale, err_msg=name)
            counts["equal"] += 1
    assert min(counts.values()) > 8, counts


def test_an_unknown_field_and_names_of_wrappers(tmp_path):
    theirs = peer_encoders.make("bert", "ForMaskedLM", tmp_path)
    plain = macaron_tf.load(f"hugging-face:{tmp_path}").network.get_weights()
    file = tmp_path / "config.json"
    fields = {**json.loads(file.read_text()), "off": None}
    file.write_text(json.dumps({**fields, "new": 3}))
    refuses(
        f"{file} has fields .* not know: new: remove", macaron_tf.load, f"hugging-face:{tmp_path}"
    )
    file.write_text(json.dumps(fields))
    state = {f"module.{name}": array for name, array in theirs.state_dict().items()}
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    for a, b in zip(read.network.get_weights(), plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernberts_classifier_pools_as_its_field_says(pooling, tmp_path):
    kind = "ForSequenceClassification"
    theirs = peer_encoders.make("modernbert", kind, tmp_path, classifier_pooling=pooling)
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    inputs = peer_encoders.batch(theirs, "modernbert")
    expected = peer_encoders.call(theirs, inputs).logits.numpy()
    check_equal(read.network(peer_encoders.ours_of(inputs)), expected)
    written(read, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["classifier_pooling"] == pooling
