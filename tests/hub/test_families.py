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
transformers = pytest.importorskip("transformers")

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


PAIRS = ("t5", "bart")


def make(family, place, head="", **options):
    """Saves a transformers model with random weights in a new folder; returns the model."""
    place.mkdir()
    if family in PAIRS:
        return getattr(peer_encoder_decoders, f"{family}_directory")(place, **options)[0]
    if family in peer_encoders.FAMILIES:
        head = head or peer_encoders.masked_head(family)
        return peer_encoders.make(family, head, place, **options)
    return peer_language_models.make(family, place, head, **options)


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
    theirs = make(family, tmp_path / "in")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    special, rows = ENCODERS[family], theirs.config.vocab_size
    assert read.special.roles == special.roles and read.config.pad_id == special.pad
    assert read.special.rows == rows and read.config.vocab_size == -(-rows // 8) * 8
    check_written(read, tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("family", ["gpt2", "llama of one table", "llama", "gpt"])
def test_a_language_model_without_padding_gets_an_id_after_its_tokens(family, tmp_path):
    has_tokenizer = family in ("gpt2", "llama of one table")
    ends = {"bos_token_id": 260, "eos_token_id": 260} if has_tokenizer else {}
    theirs = make(family, tmp_path / "in", **ends)
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
    make("xlnet", tmp_path / "in")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    assert read.config.pad_id == 5
    check_written(read, tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize("family", PAIRS)
def test_an_encoder_decoder_keeps_its_ids(family, tmp_path):
    make(family, tmp_path / "in", **({} if family == "t5" else {"forced_bos_token_id": 0}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "in")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'in'}")
    special = read.special
    assert (special.pad, special.end) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert special.begin == (special.pad if family == "t5" else tokenizer.bos_token_id)
    if family == "t5":
        names = [f"<extra_id_{index}>" for index in range(100)]
        assert list(special.sentinels) == tokenizer.convert_tokens_to_ids(names)
    check_written(read, tmp_path / "in", tmp_path / "out")


def test_the_loss_of_a_t5_is_theirs(tmp_path):
    """Its answers begin with the padding id."""
    theirs, tokenizer = peer_encoder_decoders.t5_directory(tmp_path)
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    texts, answers = ["a cat sat on", "the mat"], ["the", "a dog ran far"]
    given = tokenizer(texts, text_target=answers, padding=True, return_tensors="pt")
    source, target = (given[name].numpy().astype("int32") for name in ("input_ids", "labels"))
    real = target != read.special.pad
    assert not real.all() and (source == read.special.pad).any()
    given["labels"] = torch.tensor(np.where(real, target, -100)).long()
    with torch.no_grad():
        loss = float(theirs(**given).loss)
    objective = TranslationObjective(0.0, starts=False)
    sums = objective(read.network, {"source": source, "target": target}, False)
    assert float(sums["weight"]) == real.sum()
    np.testing.assert_allclose(sums["loss_sum"] / sums["weight"], loss, rtol=1e-5)


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


def other_values(name: str, value) -> list:
    """Returns other values of a field of `config.json`, right ones and wrong ones."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value / 2 + 0.1, value * 3 + 0.01]
    if isinstance(value, int):
        return [value + 1, value * 2 + 2]
    if isinstance(value, str):
        names = ("tanh", "relu", "gelu_new", "silu", "mean", "cls", "last")
        return [other for other in names if other != value]
    return ([1] if name.endswith("_id") else [1, True, "mean"]) if value is None else []


def changed(name: str, value):
    """Returns the first other value of a field, which transformers takes, or the value itself."""
    is_absent = value is None and not name.endswith("_id")
    return value if is_absent else next(iter(other_values(name, value)), value)


KINDS = (*ENCODERS, "gpt2", "gpt", "llama", "qwen 3", "olmo 2", "xlnet", *PAIRS)


@pytest.mark.parametrize("family", KINDS)
def test_every_field_is_read_or_without_effect(family, tmp_path):
    """All fields of transformers' class; those that are not read change no logit of theirs."""
    place = tmp_path / "in"
    theirs = make(family, place, "ForTokenClassification" if family in ENCODERS else "")
    file = place / "config.json"
    written = json.loads(file.read_text())
    fields = {**json.loads(theirs.config.to_json_string(use_diff=False)), **written}
    file.write_text(json.dumps(fields))
    config = ForeignConfig(fields, str(file))
    read = FAMILIES[config.get("model_type")]
    assert read.read(ModelFolder(place, config))
    config.refuse_unknown()

    kept = {"architectures", "vocab_size", "is_encoder_decoder", "id2label", "label2id"}
    kept |= {"num_labels", "d_head", "transformers_version", "dtype", "return_dict", "problem_type"}
    unread = fields.keys() - config.names_read - kept
    file.write_text(json.dumps({n: changed(n, v) if n in unread else v for n, v in fields.items()}))
    again = type(theirs).from_pretrained(place).eval()
    ids = np.random.default_rng(0).integers(5, 13, (2, 9))
    # `chunk_size_feed_forward` adds the 64 terms of a float32 sum in another order.
    logits, before = their_logits(again, ids), their_logits(theirs, ids)
    np.testing.assert_allclose(logits, before, rtol=0, atol=2e-6 * np.abs(before).max())


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in KINDS if name != "xlnet"])
def test_a_flipped_field_changes_our_logits_as_theirs_or_is_refused(family, tmp_path):
    """Each field of `config.json` in turn. Where transformers refuses the folder, we may answer."""
    ids = np.random.default_rng(0).integers(5, 13, (2, 9)).astype("int32")
    place = tmp_path / "in"
    theirs = make(family, place)
    if family in ENCODERS:
        batch = peer_encoders.batch(theirs, family)
        real = batch["attention_mask"] == 1

    def expected() -> np.ndarray:
        options = {"output_loading_info": True}
        model, info = type(theirs).from_pretrained(place, **options)
        if info["missing_keys"] or info["mismatched_keys"]:
            raise ValueError("the weights do not fit")
        if family in ENCODERS:
            return peer_encoders.call(model.eval(), batch).logits.numpy()[real]
        return their_logits(model.eval(), ids)

    def found() -> np.ndarray:
        network = macaron_tf.load(f"hugging-face:{place}").network
        if family in ENCODERS:
            hidden = network.hidden_states(peer_encoders.ours_of(batch))
            return numpy_of(network.masked_logits(tf.boolean_mask(hidden, real)))
        pair = family in PAIRS
        return numpy_of(network({"source": ids, "target": ids} if pair else {"token_ids": ids}))

    file = place / "config.json"
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


def test_an_unknown_field_is_refused(tmp_path):
    peer_encoders.make("bert", "ForMaskedLM", tmp_path)
    file = tmp_path / "config.json"
    fields = {**json.loads(file.read_text()), "off": None}
    file.write_text(json.dumps({**fields, "new": 3}))
    refuses(
        f"{file} has fields .* not know: new: remove", macaron_tf.load, f"hugging-face:{tmp_path}"
    )


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("modernbert", {"norm_bias": True}, "norm_bias=True, but only False"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "has different RoPE scaling for sliding_attention and full_attention",
        ),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
            "rope_type='yarn', but only default, linear, llama3 can be used",
        ),
        ("albert", {"embedding_size": 32}, "embedding_hidden_mapping_in.* has no counterpart"),
        ("xlm", {"lang2id": {"en": 0}}, "n_langs=3 and lang2id={'en': 0}, but lang2id must number"),
        ("xlm", {"lang2id": {"en": 1, "fr": 2, "de": 3}}, "lang2id must number all languages from"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id=0, but only the tokenizer's 1"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "layer_idx=True, but only False"),
    ],
)
def test_what_has_no_place_in_our_model_is_refused(family, options, reason, tmp_path):
    make(family, tmp_path / "in", **options)
    refuses(reason, macaron_tf.load, f"hugging-face:{tmp_path / 'in'}")


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
