"""T5, BART and MarianMT, read from Hugging Face files, agree with Hugging Face's PyTorch models."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

import macaron_tf
from macaron_tf.decoding import (
    BeamSearchConfig,
    GenerationConfig,
    SequenceGenerator,
    translate_ids,
)
from macaron_tf.hub import read_hugging_face
from macaron_tf.models import EncoderClassifier, EncoderQuestionAnswering
from tests.harness import refuses
from tests.toys import peer_encoder_decoders as peers
from tests.toys.decoding import check_greedy
from tests.toys.hugging_face import check_equal, copy_linear

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def t5(gated: bool):
    config = transformers.T5Config(
        vocab_size=peers.VOCAB,
        **peers.T5,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
    )
    # Attention scores are unscaled: at 0.3, Hugging Face's float32 differs by 1.3e-4 from float64.
    return peers.shaken(transformers.T5ForConditionalGeneration, config, 0.15, own_output=gated)


BART = {
    "vocab_size": peers.VOCAB,
    "max_position_embeddings": 20,
    **peers.WIDTHS,
    "encoder_layers": 2,
    "decoder_layers": 3,
}


def bart():
    model = peers.shaken(
        transformers.BartForConditionalGeneration, transformers.BartConfig(**BART), 0.3
    )
    model.final_logits_bias.normal_()
    return model


SYSTEMS = {
    "t5": lambda: t5(gated=False),
    "t5_1_1": lambda: t5(gated=True),
    "bart": bart,
    **{
        f"marian of {activation}": lambda activation=activation: peers.marian(activation)
        for activation in ("relu", "swish", "gelu", "gelu_new")
    },
    "marian without a scale": lambda: peers.marian(scaled=False),
}
# PAD, BOS (the decoder's start token) and EOS.
SPECIAL = {"t5": (0, 0, 1), "bart": (1, 2, 2), "marian": (peers.VOCAB - 1, peers.VOCAB - 1, 0)}


def read_of(model, folder):
    model.save_pretrained(folder)
    return read_hugging_face(folder)


def sources(kind, batch=5, length=15):
    """Returns rows of token ids that end with EOS and padding."""
    rng, (pad, _, end) = np.random.default_rng(0), SPECIAL[kind]
    rows = np.full((batch, length), pad, np.int32)
    for b in range(batch):
        real = length - 1 - b % 3
        rows[b, :real] = rng.integers(4, peers.VOCAB - 1, real)
        rows[b, real] = end
    return rows


def their_logits(model, source, target):
    """Returns the logits of a Hugging Face model."""
    with torch.no_grad():
        found = model(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != model.config.pad_token_id).long(),
            decoder_input_ids=torch.tensor(target),
            use_cache=False,
        )
    return found.logits.numpy()


@pytest.mark.parametrize(
    ("system", "is_pickled"), [*((system, False) for system in SYSTEMS), ("marian of swish", True)]
)
def test_logits_and_greedy_decoding_agree(system, is_pickled, tmp_path):
    theirs = SYSTEMS[system]()
    read = read_of(theirs, tmp_path)
    if is_pickled:
        (tmp_path / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
        read = read_hugging_face(tmp_path)
    ours = read.network
    assert ours.config.tied == (system != "t5_1_1")
    assert ours.config.scaled_logits == (system == "t5")
    kind = system.partition(" ")[0].partition("_")[0]
    special = ours.config.special
    assert (special.pad, special.begin, special.end) == SPECIAL[kind]

    source = sources(kind)
    target = np.random.default_rng(1).integers(4, peers.VOCAB - 1, (len(source), peers.LENGTH))
    target[:, 0] = special.begin
    expected = their_logits(theirs, source, target)
    logits = np.asarray(ours({"source": source, "target": target}, training=False))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits, expected, atol=1e-4 if kind == "marian" else 3e-5)

    check_greedy(ours, source, functools.partial(their_logits, theirs), peers.LENGTH)


def with_head(kind, our_kind, folder, *options):
    """Returns a Hugging Face BART with a task head, its outputs, and our model of its body."""
    theirs = peers.shaken(kind, transformers.BartConfig(**BART, num_labels=3), 0.2)
    read, source = read_of(theirs, folder), sources("bart")
    ours = our_kind(read.config, *options)
    ours.build()
    ours.encoder_decoder.set_weights(read.network.get_weights())
    with torch.no_grad():
        mask = torch.tensor(source != 1).long()
        return theirs, theirs(input_ids=torch.tensor(source), attention_mask=mask), ours


def test_the_classes_of_a_bart_agree(tmp_path):
    kind = transformers.BartForSequenceClassification
    theirs, answers, ours = with_head(kind, EncoderClassifier, tmp_path, 3)
    copy_linear(theirs.classification_head.dense, ours.pooler.dense)
    copy_linear(theirs.classification_head.out_proj, ours.head.dense)
    check_equal(ours({"token_ids": sources("bart")}, training=False), answers.logits)


def test_the_answers_of_a_bart_agree(tmp_path):
    kind, source = transformers.BartForQuestionAnswering, sources("bart")
    theirs, answers, ours = with_head(kind, EncoderQuestionAnswering, tmp_path)
    copy_linear(theirs.qa_outputs, ours.head.dense)
    segments = (np.arange(source.shape[1]) >= 4) * (source != 1).astype("int32")
    found = np.asarray(ours({"token_ids": source, "segment_ids": segments}, training=False))
    allowed = found > -1e8
    assert allowed[:, :, [0, 4]].all() and not allowed[:, :, [1, -1]].any()
    expected = torch.stack([answers.start_logits, answers.end_logits], dim=1).numpy()
    check_equal(found[allowed], expected[allowed])


def test_beam_search_of_a_fixed_length_agrees(tmp_path):
    """Beam search with a fixed number of steps finds the same best hypotheses as Hugging Face."""
    theirs = peers.marian()
    read = read_of(theirs, tmp_path)
    source = sources("marian", length=9)
    limits = {"max_length_offset": peers.LENGTH, "min_length": peers.LENGTH - 1}
    config = BeamSearchConfig(max_length_ratio=0.0, length_penalty=0.0, **limits)
    found = translate_ids(read.network, tf.constant(source), config)["ids"].numpy()[:, 0]
    options = {"do_sample": False, "num_beams": 4, "suppress_tokens": [peers.VOCAB - 1]}
    options |= {"min_new_tokens": peers.LENGTH, "max_new_tokens": peers.LENGTH}
    mask = torch.tensor(source != peers.VOCAB - 1).long()
    given = {"input_ids": torch.tensor(source), "attention_mask": mask}
    expected = theirs.generate(**given, **options, forced_eos_token_id=0).numpy()[:, 1:]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("beams", [1, 4])
def test_searches_with_limits_agree(beams, tmp_path):
    """Repeated n-grams, the minimum length and the length penalty are those of Hugging Face."""
    theirs, length = bart(), 18
    with torch.no_grad():
        theirs.final_logits_bias[0, 2] += 2.0  # outputs end before the maximum length
    network, source = read_of(theirs, tmp_path).network, sources("bart", batch=8)
    outputs = set()
    for size, least, alpha in ((0, 0, 1.0), (2, 6, 1.0), (3, 9, 2.0)):
        config = BeamSearchConfig(
            beam_size=beams,
            max_length_ratio=0.0,
            max_length_offset=length,
            min_length=least,
            no_repeat_ngram_size=size,
            length_penalty=alpha,
            length_penalty_name="fairseq",
        )
        found = translate_ids(network, tf.constant(source), config)["ids"].numpy()[:, 0]
        expected = theirs.generate(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != 1).long(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=length,
            min_length=least + 1,  # counts the start token
            no_repeat_ngram_size=size,
            length_penalty=alpha,
            early_stopping=True,
            suppress_tokens=[1],
            forced_eos_token_id=2,
        ).numpy()[:, 1:]
        width = expected.shape[1]
        np.testing.assert_array_equal(found[:, :width], expected)
        assert (found[:, width:] == 1).all()
        outputs.add(found.tobytes())
    assert len(outputs) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation_function": "quick_gelu"}, "activation_function='quick_gelu'"),
        ({"d_model": "32"}, "has d_model='32', but only a whole number can be used"),
    ],
)
def test_what_has_no_place_in_our_model_is_refused(changes, reason, tmp_path):
    peers.marian().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    refuses(reason, read_hugging_face, tmp_path)


@pytest.mark.parametrize("system", ["t5", "bart"])
def test_greedy_answers_are_theirs(system, tmp_path):
    theirs, tokenizer = {"t5": peers.t5_directory, "bart": peers.bart_directory}[system](tmp_path)
    read = read_hugging_face(tmp_path)
    options = {"sentinels": read.card.sentinels, **read.settings.ends}
    generator = SequenceGenerator(read.network, read.vocabulary, read.config.longest, **options)
    gaps = their_gaps = "the quick [MASK] fox jumped [MASK] dog."
    for name in ("<extra_id_0>", "<extra_id_1>") if system == "t5" else ("<mask>",) * 2:
        their_gaps = their_gaps.replace("[MASK]", name, 1)
    # Ids that our model never writes: special tokens and unused rows.
    barred = [0, 2, *range(175, 192)] if system == "t5" else [1, 3, tokenizer.mask_token_id]
    texts = [gaps, "Der schnelle braune Fuchs", "naïve €", "1,234.56 in many texts."]
    config = GenerationConfig(temperature=0.0, max_tokens=peers.LENGTH)
    greedy = {"do_sample": False, "num_beams": 1, "max_new_tokens": peers.LENGTH}
    different = set()
    for text, [ours] in zip(texts, generator.complete(texts, config), strict=True):
        asked = tokenizer(their_gaps if text == gaps else text, return_tensors="pt")
        assert generator.row(text) == asked["input_ids"][0].tolist()
        [answer] = theirs.generate(**asked, suppress_tokens=barred, **greedy).tolist()
        new = answer[1:]
        assert ours.text == generator.detokenizer(new).removeprefix(" ")
        assert ours.length == len(new)
        assert "".join(generator.stream(text, config)) == ours.text
        different.update(new)
    assert len(different) > 5


MANY_ENDS = [2, *range(20, 240, 20)]


@pytest.mark.parametrize(
    ("fields", "has_file"),
    [
        ({}, True),
        ({"forced_bos_token_id": 0, "forced_eos_token_id": 2}, False),
        ({"forced_bos_token_id": 0, "eos_token_id": MANY_ENDS}, True),
        ({"eos_token_id": MANY_ENDS, "num_beams": 2, "no_repeat_ngram_size": 2}, False),
    ],
)
def test_a_bart_that_is_read_and_written_generates_as_before(fields, has_file, tmp_path):
    theirs, tokenizer = peers.bart_directory(tmp_path)
    for name in ("config.json", "generation_config.json"):
        file = tmp_path / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
        if name != "config.json" and not has_file:
            file.unlink()
    kind = type(theirs)
    theirs = kind.from_pretrained(tmp_path)
    macaron_tf.load(f"hugging-face:{tmp_path}").save_pretrained(tmp_path / "own")
    read = macaron_tf.load(tmp_path / "own")
    read.save_pretrained(tmp_path / "out", format="hugging-face")
    back, generator = kind.from_pretrained(tmp_path / "out"), read.task.generator
    config = GenerationConfig(temperature=0.0, max_tokens=peers.LENGTH)
    barred = {"suppress_tokens": [1, 3, tokenizer.mask_token_id], "num_beams": 1}
    for text in ("the quick fox jumped.", "Der schnelle braune Fuchs", "naïve €"):
        asked = dict(tokenizer(text, return_tensors="pt"))
        for options in ({}, {"num_beams": 1}, {"num_beams": 3}):
            answers = [
                model.generate(**asked, **options, max_new_tokens=peers.LENGTH).tolist()
                for model in (theirs, back)
            ]
            assert answers[0] == answers[1]
        if "forced_eos_token_id" not in fields and "num_beams" not in fields:
            [[ours]] = generator.complete([text], config)
            [answer] = theirs.generate(**asked, **barred, max_new_tokens=peers.LENGTH).tolist()
            started = len(generator.answer_start)
            found = [*ours.ids]
            assert found[: len(answer) - started] == answer[started:]
            assert "".join(generator.stream(text, config)) == ours.text
            assert ours.ended == (found[-1] in fields.get("eos_token_id", [2]))


def test_several_ends_in_the_configuration_of_a_marian(tmp_path):
    theirs = peers.marian()
    theirs.config.eos_token_id = [0, 7, 9]
    read = read_of(theirs, tmp_path)
    assert read.special.end == 0 and read.config.end_id == 0


def test_the_row_of_the_mask_may_be_missing(tmp_path):
    """BART for summaries, as released: one row fewer than its tokenizer has tokens."""
    theirs, tokenizer = peers.bart_directory(tmp_path)
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    theirs.resize_token_embeddings(len(tokenizer) - 1)
    theirs.save_pretrained(tmp_path)
    read = read_hugging_face(tmp_path)
    text = "the quick fox"
    ids = tokenizer(text, return_tensors="np").input_ids.astype("int32")
    target = np.array([[2, 0, 9, 30]], "int32")
    expected = their_logits(theirs, ids, target)
    found = np.asarray(read.network({"source": ids, "target": target}, training=False))
    check_equal(found[..., : expected.shape[-1]], expected)
    theirs.resize_token_embeddings(len(tokenizer) - 2)  # a token of text lacks its row, too
    theirs.save_pretrained(tmp_path)
    refuses("use the tokenizer files and config.json", read_hugging_face, tmp_path)


def test_an_end_that_is_also_the_beginning_ends_answers(tmp_path):
    theirs = bart()
    with torch.no_grad():
        theirs.final_logits_bias[0, 2] = 50.0  # </s> begins and ends
    read = read_of(theirs, tmp_path)
    assert read.special.begin == read.special.end == 2
    config = BeamSearchConfig(max_length_ratio=0.0, max_length_offset=6)
    found = translate_ids(read.network, tf.constant(sources("bart")), config)["ids"].numpy()
    assert (found[..., 0] == 2).all()
