"""Tests of GPT-2, GPT, XLNet, T5, BART and MarianMT saved as Hugging Face folders."""

import json

import numpy as np
import pytest

import macaron_tf
from macaron_tf.decoding import BeamSearchConfig, GenerationConfig, translate_ids
from macaron_tf.decoding.scoring import padded
from macaron_tf.decoding.text_generator import SequenceGenerator, TextGenerator
from macaron_tf.model import Model
from macaron_tf.models import EncoderConfig
from macaron_tf.models.model_parts import Card
from macaron_tf.models.segment_memory import TwoStreamModel
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.normalization import as_prompt
from tests.harness import float32_sum_error, numpy_of, refuses
from tests.toys import hugging_face as toys
from tests.toys.decoders import (
    LINES,
    LLAMA,
    SEQUENCES,
    language_model,
    sentencepiece,
    sequence_model,
)

pytest.importorskip("safetensors")

BOS, EOS = 2, 3  # of a vocabulary that is trained here
HARD = ["the cat sat", "Hello  world\t x", "a\u0301 ﬁne café 中文", "\u200bthe\x07 end "]


def test_a_language_model_whose_tokenizer_cannot_be_read_is_refused(tmp_path):
    toys.written(language_model(**LLAMA), tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": {"type": "NFKC"}}))
    reason = "has the ids .*, which .*: use the model in transformers"
    refuses(reason, macaron_tf.load, f"hugging-face:{tmp_path}")


def test_two_texts_have_the_separators_of_the_vocabulary(tmp_path, monkeypatch):
    made = sequence_model("denoiser")
    monkeypatch.setattr(made.vocabulary, "pair_separators", 2)  # other tests share it
    toys.written(made, tmp_path / "out")
    fields = json.loads((tmp_path / "out/tokenizer.json").read_text())["post_processor"]["pair"]
    names = [value["id"] for field in fields for value in field.values()]
    assert names == ["A", "</s>", "</s>", "B", "</s>"]


def rewritten(made: Model, place, model_class: str, change) -> str:
    """Saves a model, and then rewrites its weights and its class as another library's model.

    Args:
        made: model to save.
        place: folder to write.
        model_class: value of the field `architectures`; "" leaves the field out.
        change: function that maps the dict of weights to another dict.

    Returns:
        The folder as an argument of `load`.
    """
    import safetensors.numpy

    fields = toys.written(made, place)
    fields = {**fields, "architectures": [model_class] if model_class else None}
    (place / "config.json").write_text(json.dumps(fields))
    state = change(safetensors.numpy.load_file(place / "model.safetensors"))
    safetensors.numpy.save_file(state, place / "model.safetensors")
    return f"hugging-face:{place}"


def add_head(*names: str, prefix: tuple[str, str] = ("", "")):
    """Returns a `change` for `rewritten` that adds a head and drops the language head."""

    def change(state):
        state = {name.replace(*prefix): array for name, array in state.items()}
        state.pop("lm_head.weight", None)
        return {**state, **{name: np.ones((3, 32), "float32") for name in names}}

    return change


BART_HEAD = ("classification_head.dense.weight", "classification_head.out_proj.weight")
BODY = ("model.", "")


@pytest.mark.parametrize(
    ("kind", "model_class", "weights", "missing"),
    [
        ("gpt2", "GPT2ForTokenClassification", ["classifier.weight"], "head of"),
        ("gpt2", "MyTagger", ["tag.weight"], r"head of MyTagger \(tag.weight\)"),
        ("llama", "LlamaModel", [], "lm_head.weight was"),
        ("denoiser", "BartForSequenceClassification", BART_HEAD, "head of BartForSequence"),
        ("t5", "T5ForQuestionAnswering", ["qa_outputs.weight"], "head of T5ForQuestionAnswering"),
    ],
)
def test_a_model_without_its_language_head_writes_nothing(
    kind, model_class, weights, missing, tmp_path, capsys
):
    options = LLAMA if kind == "llama" else {}
    made = sequence_model(kind) if kind in SEQUENCES else language_model(**options)
    change = add_head(*weights, prefix=BODY if kind == "llama" else ("", ""))
    location = rewritten(made, tmp_path / "out", model_class, change)
    read = macaron_tf.load(location)
    for use in (read.predict, read.score, read.export):
        refuses(f"{missing}.* not read: fine-tune it by .* --init hugging-face:", use, "a")
    refuses("not read", read.save_pretrained, tmp_path / "again", toys.FORMAT)
    if "lm_head" not in missing:
        note = f"weights not read: {', '.join(read.card.unread)}"
        assert read.card.unread and note in capsys.readouterr()[1]
    # The other weights are those of the model.
    read.save_pretrained(tmp_path / "saved")
    refuses("not read", macaron_tf.load(tmp_path / "saved").predict, "a")
    if isinstance(read.config, EncoderConfig):
        again = macaron_tf.load(tmp_path / "saved")
        ids = {"token_ids": np.array([[BOS, 9, 8, 70, 263]])}
        ours, back = (numpy_of(one.encoder(ids)) for one in (made, again))
        np.testing.assert_allclose(ours, back, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "model_class", "change"),
    [
        ("denoiser", "BartModel", add_head(prefix=BODY)),
        ("t5", "T5Model", add_head()),
    ],
)
def test_a_body_with_tied_embeddings_writes_the_same(kind, model_class, change, tmp_path):
    made = sequence_model(kind, **({"logits_bias": False} if kind == "denoiser" else {}))
    read = macaron_tf.load(rewritten(made, tmp_path / "out", model_class, change))
    assert read.card.unread == () and read.card.missing_head == ""
    source, target = np.array([[9, 8, 7, EOS]]), np.array([[BOS, 7, 20]])
    pieces = made.vocabulary.pieces
    ours, back = (numpy_of(m.network({"source": source, "target": target})) for m in (made, read))
    np.testing.assert_allclose(ours[..., :pieces], back[..., :pieces], atol=1e-5)


def test_weights_beyond_the_configuration_are_refused(tmp_path):
    def change(state):
        norm = "model.encoder.layers.{}.final_layer_norm.weight"
        return {**state, norm.format(2): state[norm.format(1)]}

    location = rewritten(sequence_model("denoiser"), tmp_path / "out", "", change)
    refuses(r"encoder.layers.2.* has no counterpart in the BART", macaron_tf.load, location)


def test_an_unknown_model_type_is_named(tmp_path):
    """`load` names the types of all its readers."""
    (tmp_path / "config.json").write_text("{}")
    refuses("lacks the field model_type", macaron_tf.load, f"hugging-face:{tmp_path}")
    for model_type in ("mbart", ["t5"]):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        reason = "but only distilbert, .*, gpt2, llama, qwen3, .*, xlnet, t5, .* can be used"
        refuses(reason, macaron_tf.load, f"hugging-face:{tmp_path}")


def with_tokenizer(ending: str, place):
    """Returns the model and the tokenizer of a folder, as transformers opens them."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    return toys.opened(getattr(transformers, f"AutoModelFor{ending}"), place), tokenizer


@pytest.mark.parametrize(
    ("norm", "options", "model_type"),
    [("pre", {}, "gpt2"), ("post", {}, "openai-gpt"), ("pre", LLAMA, "llama")],
)
def test_a_language_model_is_read_back_and_pytorch_writes_the_same(
    norm, options, model_type, tmp_path
):
    made = language_model(norm, **options)
    assert toys.written(made, tmp_path / "out")["model_type"] == model_type
    encoded = [[BOS, *row] for row in made.vocabulary.encode_lines(HARD)]
    ids = np.array(encoded[:1])
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'out'}")
    assert read.card.starts and read.card.unread == ()
    assert [[BOS, *row] for row in read.vocabulary.encode_lines(HARD)] == encoded
    ours = numpy_of(made.network({"token_ids": ids}))[..., : made.vocabulary.pieces]
    np.testing.assert_allclose(ours, numpy_of(read.network({"token_ids": ids})), atol=1e-6)
    theirs, tokenizer = with_tokenizer("CausalLM", tmp_path / "out")
    generation = theirs.generation_config
    assert generation.suppress_tokens == [0, 1, 2, 4] and generation.eos_token_id == EOS
    assert [tokenizer(text)["input_ids"] for text in HARD] == encoded
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(ours, found, atol=1e-5)
    answer = theirs.generate(torch.tensor(ids), max_new_tokens=12, do_sample=False)
    generator = TextGenerator(made.network, made.vocabulary, made.config.longest)
    [[ours]] = generator.complete(HARD[:1], GenerationConfig(temperature=0.0, max_tokens=12))
    assert answer[0].tolist() == [*encoded[0], *ours.ids]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in SEQUENCES),
        *(("marian", {"activation": name}) for name in ("silu", "gelu_tanh", "relu")),
    ],
)
def test_an_encoder_decoder_is_read_back_and_pytorch_writes_the_same(kind, options, tmp_path):
    made = sequence_model(kind, **options)
    fields, pieces = toys.written(made, tmp_path / "out"), made.vocabulary.pieces
    assert fields["model_type"] == SEQUENCES[kind][-1]
    assert (fields["decoder_start_token_id"], fields["eos_token_id"]) == (BOS, EOS)
    encoded = [[*row, EOS] for row in made.vocabulary.encode_lines(HARD)]
    source = padded(encoded, 0)
    target = np.random.default_rng(0).integers(5, pieces, (len(HARD), 6))
    target[:, 0] = BOS
    ours = numpy_of(made.network({"source": source, "target": target}))[..., :pieces]
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'out'}")
    assert read.special.begin == BOS and read.special.end == EOS
    back = numpy_of(read.network({"source": source, "target": target}))[..., :pieces]
    np.testing.assert_allclose(back, ours, atol=1e-5)
    if read.vocabulary:
        assert read.settings.ends == {} and read.card.sentinels == made.card.sentinels
        assert read.vocabulary.encode_lines(HARD) == made.vocabulary.encode_lines(HARD)
    theirs, tokenizer = with_tokenizer("Seq2SeqLM", tmp_path / "out")
    assert [tokenizer(text)["input_ids"] for text in HARD] == encoded
    given = tokenizer(HARD, return_tensors="pt", padding=True)
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        found = theirs(**given, decoder_input_ids=torch.tensor(target)).logits.numpy()[..., :pieces]
    # A logit is a sum of D terms of mixed signs: they are as large as the largest logit / sqrt(D).
    width = made.config.hidden_dim
    atol = float32_sum_error(width) * np.abs(found).max() / width**0.5
    np.testing.assert_allclose(ours, found, atol=atol, rtol=0)
    if made.card.objective:  # a generator strips the white space at the end of a text
        given = tokenizer([as_prompt(text) for text in HARD], return_tensors="pt", padding=True)
    answer = theirs.generate(**given, max_new_tokens=8, do_sample=False)[:, 1:]
    if made.card.objective:
        generator = SequenceGenerator(
            made.network, made.vocabulary, made.config.longest, sentinels=made.card.sentinels
        )
        config = GenerationConfig(temperature=0.0, max_tokens=8)
        best = [[*ours.ids] for [ours] in generator.complete(HARD, config)]
    else:
        search = BeamSearchConfig(beam_size=1, max_length=8)
        best = translate_ids(made.network, source, search, pieces)["ids"][:, 0].numpy().tolist()
    for ids, row in zip(answer.tolist(), best, strict=True):
        ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
        # The sentinels follow the unused ids, which are left out.
        row = [n if n < pieces else n - made.vocabulary.size + pieces for n in row]
        if not made.card.objective:
            # Our search must end with EOS within the limit, unlike Hugging Face's. An answer that
            # ends at once has one token.
            common = max(min(len(ids), len(row)) - 1, 1)
            ids, row = ids[:common], row[:common]
        assert row == ids


VOCABULARIES = {
    "words": lambda: WordPieceVocabulary(toys.WORDS),
    "pieces": lambda: sentencepiece(True, "bpe"),
    "unigrams": lambda: sentencepiece(True, "unigram"),
    "none": lambda: None,
}


def two_streams(kind: str, **options) -> Model:
    vocabulary = VOCABULARIES[kind]()
    size = vocabulary.size if vocabulary else 24
    given = {"positions": "transformer_xl", "embedding_norm": False, **options}
    network = TwoStreamModel(EncoderConfig(size, 32, 48, 4, 2, **given), memory_length=6)
    return Model(
        toys.random(network), vocabulary=vocabulary, card=Card(objective="permutation_language")
    )


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("options", [{}, {"summary": "last", "clamp_length": 3}])
def test_an_xlnet_is_read_back(kind, options, tmp_path):
    made = two_streams(kind, **options)
    read = toys.read_back(made, tmp_path / "out")
    assert read.card.unread == () and read.card.objective == "permutation_language"
    assert read.network.memory_length == 6
    assert read.config.summary == made.config.summary
    pieces = made.vocabulary.pieces if made.vocabulary else made.config.vocab_size
    assert read.special.rows == pieces
    if made.vocabulary:
        assert read.vocabulary.encode_lines(LINES[:4]) == made.vocabulary.encode_lines(LINES[:4])
    rows = toys.two_stream_batch(pieces)
    ours, back = (numpy_of(one.network(rows)["masked_language"]) for one in (made, read))
    np.testing.assert_allclose(back[..., :pieces], ours[..., :pieces], atol=1e-6)


@pytest.mark.parametrize("kind", ["words", "unigrams"])
def test_pytorch_s_xlnet_scores_the_same(kind, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.toys.peer_language_models import hidden_states, stream_inputs

    made = two_streams(kind)
    assert toys.written(made, tmp_path / "out")["pad_token_id"] == 0
    theirs = toys.opened(transformers.XLNetLMHeadModel, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = made.vocabulary.encode_lines(LINES[:4])
    assert tokenizer(LINES[:4], add_special_tokens=False)["input_ids"] == expected
    pieces = made.vocabulary.pieces
    rows = toys.two_stream_batch(pieces)
    guessed, plain = (
        hidden_states(theirs, rows, **more).logits for more in (stream_inputs(rows), {})
    )
    ours = numpy_of(made.network(rows)["masked_language"])[..., :pieces]
    np.testing.assert_allclose(ours, guessed.numpy(), atol=1e-5)
    content = made.encoder({name: rows[name] for name in ("token_ids", "segment_ids")})
    ours = numpy_of(made.network.logits(content))[..., :pieces]
    np.testing.assert_allclose(ours, plain.numpy(), atol=1e-5)
