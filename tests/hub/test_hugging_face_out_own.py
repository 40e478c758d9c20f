"""Tests of networks without a Hugging Face class, saved with this project's PyTorch model file."""

import json

import numpy as np
import pytest

import macaron_tf
from macaron_tf import models
from macaron_tf.model import Model
from tests.harness import numpy_of, refuses
from tests.toys.decoders import language_model
from tests.toys.hugging_face import BATCH, FORMAT, SEGMENTS, WORDS, opened, written
from tests.toys.hugging_face import ROWS as IDS
from tests.toys.hugging_face import encoder_config as config
from tests.toys.hugging_face import with_vocabulary as model

pytest.importorskip("safetensors")

SYSTEMS = {
    "macaron": {"block": "macaron"},
    "swish_rnn": {
        **{"block": "swish_rnn", "rnn_step_sizes": (1, 2, 3), "rnn_gate": "sigmoid"},
        **{"relative_bias": "shared", "positions": "none"},
    },
    "turns": {
        **{"block": ("macaron", "transformer"), "norm": "pre", "relative_bias": "per_layer"},
        **{"positions": "sinusoidal", "sharing": "attention"},
        **{"embedding_scale": True, "embedding_dim": 16, "scale_dim": 7},
    },
    "gmlp": {"block": "gmlp", "norm": "pre"},
    "amlp": {"block": "amlp", "toeplitz": False},
    "gated": {"norm_type": "rms", "gated": True, "activation": "silu", "use_bias": False},
    "solvers": {
        "scheme": "channels/2 width 1 by heun, tokens by rk4, channels/2 again",
        "head_dim": 5,
        "scaled": False,
    },
    "halves": {"scheme": "2 x (tokens/2, channels/2 with relu)", "affine": False},
    "branches": {"norm": "pre", "scheme": "tokens & channels/2, channels by heun & tokens again"},
    "modern": {
        **{"block": "macaron", "norm": "pre", "norm_type": "unbiased", "first_norm": False},
        **{"use_bias": False, "gated": True, "positions": "rotary", "attention_windows": (0, 4)},
        **{"rotary_base": 160_000.0, "local_rotary_base": 10_000.0},
    },
    "rotary": {
        **{"block": ("swish_rnn", "macaron"), "norm": "pre", "norm_type": "rms", "gated": True},
        **{"positions": "rotary", "num_kv_heads": 1, "use_bias": False, "rotary_dim": 4},
        "rotary_scaling": (8.0, 1.0, 4.0, 6.0),
    },
    "alibi": {"block": "macaron", "positions": "alibi", "attention_windows": (4,)},
    "rotary amlp": {"block": "amlp", "toeplitz": False, "positions": "rotary"},
    "post-norm branches": {"scheme": "2 x (tokens & channels/2)", "sharing": "all"},
    "causal": {"block": "macaron", "causal": True},
    "qk norm": {"block": ("amlp", "macaron"), "qk_norm": "head", "toeplitz": False},
    "output norm": {
        **{"scheme": "channels/2, tokens & channels/2 by heun again", "norm": "output"},
        **{"norm_type": "rms", "qk_norm": "heads"},
    },
}
HEADS = {
    models.PretrainingEncoder: ("MaskedLM", {}),
    models.EncoderClassifier: ("SequenceClassification", {"num_classes": 3}),
    models.EncoderTokenClassifier: ("TokenClassification", {"num_tags": 3}),
    models.EncoderQuestionAnswering: ("QuestionAnswering", {}),
    models.EncoderMultipleChoice: ("MultipleChoice", {}),
}
# Every system with the head of masked tokens, and every head in a few systems. A causal model's
# classifier reads the last token (see `CLASSIFIERS`).
SCORES = [(system, models.PretrainingEncoder) for system in SYSTEMS]
SCORES += [(system, head) for system in ("macaron", "turns", "rotary") for head in [*HEADS][1:]]
SCORES += [("causal", head) for head in [*HEADS][2:4]]
# Language models, which have other defaults (see `language_model`).
LANGUAGE = {
    "macaron": {"block": "macaron"},
    "output bias": {"output_bias": True},
    "full steps": {
        **{"scheme": "channels width 1/2, tokens, channels width 1/2", "positions": "sinusoidal"},
        **{"embedding_dim": 16, "embedding_scale": True, "tied": False, "norm": "post"},
    },
    "branches": {
        **{"scheme": "tokens & channels/2, channels", "positions": "rotary", "num_kv_heads": 2},
        **{"norm_type": "rms", "gated": True, "use_bias": False, "tied": False},
    },
    "swish_rnn": {
        **{"block": "swish_rnn", "rnn_step_sizes": (1, 3), "positions": "none"},
        "relative_bias": "shared",
    },
    "alibi": {"positions": "alibi"},
    "windows": {
        **{"block": ("swish_rnn", "macaron"), "attention_windows": (4, 0), "positions": "rotary"},
        **{"rnn_step_sizes": (2,), "local_rotary_base": 100.0, "embedding_dim": 16},
    },
    "solvers": {"scheme": "channels by heun, tokens by rk4", "attention_windows": (3,)},
    "qwen": {
        **{"block": ("swish_rnn", "macaron"), "qk_norm": "head", "head_dim": 6, "num_kv_heads": 1},
        **{"positions": "rotary", "norm_type": "rms"},
    },
    "olmo": {
        **{"block": "macaron", "qk_norm": "heads", "norm": "output", "norm_type": "rms"},
        **{"positions": "rotary", "num_kv_heads": 2, "use_bias": False, "tied": False},
    },
    "output norm": {
        **{"scheme": "tokens & channels/2, channels by heun & tokens again", "norm": "output"},
        "attention_windows": (0, 4),
    },
}
REAL = IDS != 0


def encoder(system, network=models.PretrainingEncoder, **kind) -> Model:
    """Returns an encoder with random weights."""
    objective = "masked_language" if network is models.PretrainingEncoder else None
    return model(network(config(**SYSTEMS[system]), **kind), objective=objective)


def decoder(system) -> Model:
    """Returns a language model with random weights."""
    return language_model(**LANGUAGE[system])


def in_pytorch(made: Model, ending: str, place):
    """Saves a model; returns the PyTorch model that transformers opens with our code."""
    made.save_pretrained(place, format=FORMAT)
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, f"AutoModelFor{ending}")
    return opened(kind, place, trust_remote_code=True)


def output(made: Model) -> np.ndarray:
    found = made.network(BATCH)
    return numpy_of(found["masked_language"] if isinstance(found, dict) else found)


@pytest.mark.parametrize(
    ("make", "system"),
    [
        *((encoder, system) for system in SYSTEMS),
        *((decoder, system) for system in LANGUAGE),
    ],
)
def test_our_reader_takes_the_folder_without_its_code(make, system, tmp_path, capsys):
    made = make(system)
    made.save_pretrained(tmp_path / "out", format=FORMAT)
    (tmp_path / "out/modeling_macaron.py").write_text("raise SystemExit('this ran')")
    read = macaron_tf.load(f"hugging-face:{tmp_path / 'out'}")
    assert read.card.unread == () and read.card.missing_head == ""
    assert "not read" not in capsys.readouterr().err
    assert type(read.network) is type(made.network)
    assert read.card.starts
    assert read.config.splittings == made.config.splittings
    pieces = made.vocabulary.pieces
    back = {weight.path: numpy_of(weight) for weight in read.network.weights}
    for weight in made.network.weights:
        value, other = numpy_of(weight), back.pop(weight.path)
        if len(value) == made.vocabulary.size:  # the unused rows at the end are left out
            value, other = value[:pieces], other[:pieces]
        np.testing.assert_array_equal(value, other)
    assert not any(bias[:pieces].any() for bias in back.values())  # an output bias of zeros
    ours, again = (output(one)[..., :pieces] for one in (made, read))
    np.testing.assert_allclose(ours, again, atol=1e-6)
    read.save_pretrained(tmp_path / "again", format=FORMAT)
    settings = ("config.json", "generation_config.json") if make is decoder else ()
    for name in ("model.safetensors", *settings):
        first, second = ((tmp_path / place / name).read_bytes() for place in ("out", "again"))
        assert first == second


def test_a_layer_is_a_list_of_steps(tmp_path):
    made = model(models.EncoderTokenClassifier(config(block="macaron", sharing="all"), 2))
    fields = written(made, tmp_path / "out")
    half = {"mixer": "feed_forward", "step_size": 0.5, "solver": "euler"}
    half |= {"inner_dim": 32, "activation": "gelu"}
    whole = {"mixer": "attention", "step_size": 1.0, "solver": "euler"}
    names = ("feed_forward_0", "attention_1", "feed_forward_2")
    steps = [{"name": f"block_0.{n}", **s} for n, s in zip(names, (half, whole, half), strict=True)]
    assert fields["layers"] == [steps] * fields["num_layers"]
    assert fields["auto_map"]["AutoModel"] == "modeling_macaron.MacaronModel"
    card = (tmp_path / "out/README.md").read_text()
    assert 'AutoModelForTokenClassification.from_pretrained("out", trust_remote_code=True)' in card


def test_layers_that_are_not_those_of_the_settings_are_refused(tmp_path):
    """PyTorch reads the layers, and our reader the settings."""
    fields, file = written(decoder("macaron"), tmp_path / "out"), tmp_path / "out/config.json"
    for name, value, reason in (
        ("layers", [[{**step, "step_size": 1.0} for step in fields["layers"][0]]] * 2, "layers"),
        ("block", "transformer", "layers"),
        ("causal", False, "causal=False, but only True can be used"),
    ):
        file.write_text(json.dumps({**fields, name: value}))
        refuses(f"has {reason}", macaron_tf.load, f"hugging-face:{tmp_path / 'out'}")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize(("system", "network"), SCORES)
def test_pytorch_gives_the_same_scores(system, network, tmp_path, torch):
    ending, kind = HEADS[network]
    made, batch = encoder(system, network, **kind), BATCH
    theirs = in_pytorch(made, ending, tmp_path / "out")
    if network is models.EncoderMultipleChoice:
        batch = {name: rows[None] for name, rows in batch.items()}  # one example with two choices
    given = {"input_ids": batch["token_ids"], "token_type_ids": batch["segment_ids"]}
    given = {name: torch.tensor(rows).long() for name, rows in given.items()}
    with torch.no_grad():
        found = theirs(**given, attention_mask=(given["input_ids"] != 0).long())
    ours = made.network(batch)
    if network is models.PretrainingEncoder:
        ours = numpy_of(ours["masked_language"])[REAL][:, : len(WORDS)]
        found = found.logits.numpy()[REAL]
    elif network is models.EncoderQuestionAnswering:
        ours = numpy_of(ours)  # `(B, 2, L)`, very negative at positions that cannot be answers
        found = np.stack([found.start_logits, found.end_logits], axis=1)
        ours, found = ours[ours > -1e8], found[ours > -1e8]
    else:
        ours, found = numpy_of(ours), found.logits.numpy()
        if network is models.EncoderTokenClassifier:
            ours, found = ours[REAL], found[REAL]
    assert len(ours)
    np.testing.assert_allclose(ours, found, atol=1e-5)


@pytest.mark.parametrize("system", LANGUAGE)
def test_pytorch_writes_the_same_with_and_without_its_cache(system, tmp_path, torch):
    """Rows padded on the left continue as without padding, by greedy choice and with two beams."""
    made = decoder(system)
    theirs = in_pytorch(made, "CausalLM", tmp_path / "out")
    pieces, padding = made.vocabulary.pieces, 5
    ids = torch.tensor(np.random.default_rng(0).integers(5, pieces, (2, 11)))
    mask = torch.ones_like(ids)
    ids[1, :padding] = mask[1, :padding] = 0
    padded, alone = theirs(ids, mask).logits, theirs(ids[1:, padding:]).logits
    torch.testing.assert_close(padded[1:, padding:], alone, atol=1e-5, rtol=0)
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "return_dict_in_generate": True}
    for beams in (1, 2):
        options |= {"num_beams": beams, "output_logits": True}
        cached, plain = (
            theirs.generate(ids, attention_mask=mask, use_cache=use, **options)
            for use in (True, False)
        )
        alone = theirs.generate(ids[1:, padding:], **options)
        assert torch.equal(cached.sequences, plain.sequences)
        assert torch.equal(cached.sequences[1:, padding:], alone.sequences)
        assert cached.past_key_values is not None and plain.past_key_values is None
        for one, other, last in zip(cached.logits, plain.logits, alone.logits, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
            torch.testing.assert_close(one[beams:], last, atol=1e-5, rtol=0)
        if beams == 1:
            row = cached.sequences[:1].numpy()
            ours = numpy_of(made.network({"token_ids": row}))[0, 10:-1, :pieces]
            found = torch.cat([logits[:1] for logits in cached.logits]).numpy()
            np.testing.assert_allclose(ours, found, atol=1e-5)


def check_resized(theirs, ids, ending, place) -> None:
    """Asserts that new rows change no other logit, are saved, and can be cut off again."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    logits = theirs(ids).logits
    size = logits.shape[-1]
    theirs.resize_token_embeddings(size + 3)
    more = theirs(ids).logits
    assert more.shape[-1] == size + 3
    torch.testing.assert_close(more[..., :size], logits)
    assert not any(bias[-3:].any() for bias in theirs.parameters() if bias.shape == (size + 3,))
    theirs.save_pretrained(place)
    again = opened(getattr(transformers, f"AutoModelFor{ending}"), place, trust_remote_code=True)
    torch.testing.assert_close(again(ids).logits, more)
    theirs.resize_token_embeddings(size)
    torch.testing.assert_close(theirs(ids).logits, logits)


def test_pytorch_s_models_follow_transformers_customs(tmp_path, torch):
    theirs = in_pytorch(encoder("macaron"), "MaskedLM", tmp_path / "out")
    ids = torch.tensor(IDS).long()
    named, plain = theirs(ids), theirs(ids, return_dict=False)
    assert type(plain) is tuple and torch.equal(plain[0], named.logits)
    plain = theirs(ids, labels=ids, output_hidden_states=True, return_dict=False)
    assert [type(part) for part in plain] == [torch.Tensor, torch.Tensor, tuple]
    theirs.config.output_hidden_states, theirs.config.return_dict = True, False
    assert [type(part) for part in theirs(ids)] == [torch.Tensor, tuple]
    theirs.config.output_hidden_states, theirs.config.return_dict = False, True
    check_resized(theirs, ids, "MaskedLM", tmp_path / "again")


@pytest.mark.parametrize("system", ["output bias", "branches"])  # the second is untied
def test_pytorch_s_language_models_follow_transformers_customs(system, tmp_path, torch):
    made = decoder(system)
    theirs = in_pytorch(made, "CausalLM", tmp_path / "out")
    assert theirs.config.tie_word_embeddings == made.config.tied  # transformers 4 ties by it
    ids = torch.tensor(np.random.default_rng(0).integers(5, made.vocabulary.pieces, (2, 9)))
    logits = theirs(ids).logits
    first = theirs(ids[:, :4], use_cache=True)
    second = theirs(ids[:, 4:], past_key_values=first.past_key_values, logits_to_keep=2)
    torch.testing.assert_close(second.logits, logits[:, -2:])
    plain = theirs(ids, labels=ids, use_cache=True, return_dict=False)
    assert [type(part).__name__ for part in plain] == ["Tensor", "Tensor", "Cache"]
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(plain[0], expected)
    plain[0].backward()
    assert all(weight.grad is not None for weight in theirs.parameters())
    check_resized(theirs, ids, "CausalLM", tmp_path / "again")


def test_distances_have_their_buckets(tmp_path, torch):
    """Relative positions beyond the last bucket get the bias of that bucket."""
    made = encoder("swish_rnn")
    theirs = in_pytorch(made, "MaskedLM", tmp_path / "out")
    ids = np.random.default_rng(0).integers(5, len(WORDS), (1, 300))
    ours = numpy_of(made.network({"token_ids": ids})["masked_language"])[..., : len(WORDS)]
    with torch.no_grad():
        found = theirs(input_ids=torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(ours, found, atol=1e-5)


@pytest.mark.parametrize("labels", [[0, 1], [0.5, 1.2]])  # two classes, and numbers
def test_its_loss_reaches_every_weight(labels, tmp_path, torch):
    outputs, labels = 2 if labels == [0, 1] else 1, torch.tensor(labels)
    made = encoder("swish_rnn", models.EncoderClassifier, num_classes=outputs)
    theirs = in_pytorch(made, "SequenceClassification", tmp_path / "out")
    given = {"input_ids": torch.tensor(IDS).long(), "attention_mask": torch.tensor(REAL).long()}
    answer = theirs(**given, token_type_ids=torch.tensor(SEGMENTS).long(), labels=labels)
    if outputs == 2:
        expected = torch.nn.functional.cross_entropy(answer.logits, labels)
    else:
        expected = torch.nn.functional.mse_loss(answer.logits[:, 0], labels)
    torch.testing.assert_close(answer.loss, expected)
    answer.loss.backward()
    assert all(weight.grad is not None for weight in theirs.parameters())


def test_the_head_of_a_prefix_language_model_fills_no_masks(tmp_path):
    network = models.PretrainingEncoder(config(**SYSTEMS["macaron"]))
    written = {}
    for objective in ("masked_language", "prefix_language"):
        model(network, objective=objective).save_pretrained(tmp_path / objective, format=FORMAT)
        fields = json.loads((tmp_path / objective / "config.json").read_text())
        written[objective] = fields["architectures"]
    assert written == {
        "masked_language": ["MacaronForMaskedLM"],
        "prefix_language": ["MacaronModel"],
    }
