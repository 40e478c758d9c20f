"""Encoders are saved as Hugging Face folders without PyTorch, atomically, and read again."""

import dataclasses
import json

import numpy as np
import pytest

import macaron_tf
from macaron_tf import models
from macaron_tf.models.segment_memory import TwoStreamModel
from macaron_tf.tasks import SentenceSettings
from tests.harness import numpy_of, refuses
from tests.toys.decoders import language_model, sequence_model
from tests.toys.hugging_face import BATCH, FORMAT, read_back, written
from tests.toys.hugging_face import ROWS as IDS
from tests.toys.hugging_face import encoder_config as config
from tests.toys.hugging_face import with_vocabulary as model
from tests.toys.pretrained import with_scores

pytest.importorskip("safetensors")

XLNET = {"positions": "transformer_xl", "embedding_norm": False}


def test_scores_of_a_regression_are_theirs(tmp_path):
    """The saved head predicts scores in the original units.

    Our model predicts standardized scores, so the saved head includes the standard deviation and
    the mean of the scores.
    """
    import safetensors.numpy

    made = with_scores(model(models.EncoderClassifier(config(), 1)), 2.5, 1.5)
    assert written(made, tmp_path / "out")["problem_type"] == "regression"
    state = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    kernel, bias = made.network.head.get_weights()
    np.testing.assert_allclose(state["classifier.weight"], 1.5 * kernel.T, rtol=1e-6)
    np.testing.assert_allclose(state["classifier.bias"], 1.5 * bias + 2.5, rtol=1e-6)


def test_a_sentence_encoder_is_read_back(tmp_path):
    made = model(models.SiameseEncoder(config(), "mean", normalize=True))
    made = dataclasses.replace(made, settings=SentenceSettings("mean", True, 9))
    read = read_back(made, tmp_path / "out")
    assert read.settings == SentenceSettings("mean", True, 9)
    ours, back = (numpy_of(one.encoder(BATCH))[IDS != 0] for one in (made, read))
    np.testing.assert_allclose(ours, back, atol=1e-6)


def test_a_card_names_license_metrics_and_settings_that_matter(tmp_path):
    recipe = {
        "task": {"name": "sst2"},
        "masking": {"rate": 0.15},
        "training": {"seed": 3, "log_every": 5},
    }
    made = model(
        models.EncoderClassifier(config(), 2),
        recipe=recipe,
        unlisted=("masking.", "training.log_every"),
        results={"step": 7, "metrics": {"accuracy": 0.9}},
    )
    made.save_pretrained(tmp_path / "out", FORMAT, license="apache-2.0")
    card = (tmp_path / "out/README.md").read_text()
    header = [
        *("library_name: transformers", "pipeline_tag: text-classification"),
        *("tags: [macaron_tf]", "license: apache-2.0"),
    ]
    assert card.split("---\n")[1].splitlines() == header
    assert "| training.seed | 3 |" in card and "accuracy | 0.9 |" in card
    assert "masking" not in card and "log_every" not in card
    made.save_pretrained(tmp_path / "own", license="mit")
    assert "\nlicense: mit\n" in (tmp_path / "own/README.md").read_text()
    own = macaron_tf.load(tmp_path / "own")
    assert own.card.license == "mit"
    own.save_pretrained(tmp_path / "again", FORMAT, "cc-by-4.0")
    assert "\nlicense: cc-by-4.0\n" in (tmp_path / "again/README.md").read_text()
    message = "license='Apache 2.0' is not a license identifier"
    refuses(message, own.save_pretrained, tmp_path / "other", FORMAT, "Apache 2.0")


def classifier(**options):
    return model(models.EncoderClassifier(config(**options), 2))


def two_streams(**options):
    return model(TwoStreamModel(config(**options), memory_length=6))


def causal_classifier():
    return model(models.CausalClassifier(language_model().config, 2, symmetric=True))


@pytest.mark.parametrize(
    ("make", "options", "setting", "family"),
    [
        (classifier, {"num_languages": 2}, "num_languages=2", "BERT"),
        (classifier, {"positions": "transformer_xl"}, "positions='transformer_xl'", ""),
        (classifier, {"summary": "last"}, "summary='last'", ""),
        (classifier, {"block": "macaron", "activation": "elu"}, "activation='elu'", ""),
        (two_streams, {**XLNET, "block": "macaron"}, "block='macaron'", "XLNet"),
        (language_model, {"block": "gmlp"}, "block='gmlp'", ""),
        (classifier, {"norm": "none"}, "norm='none'", "BERT"),
        (language_model, {"block": "macaron", "adaptive_cutoffs": (20,)}, r"cutoffs=\(20,\)", ""),
        (causal_classifier, {}, "CausalClassifier with EncoderConfig", "transformers"),
        (sequence_model, {"kind": "marian", "tied": False}, "tied=False", "MarianMT"),
        (
            sequence_model,
            {"kind": "marian", "position_layout": "interleaved"},
            "position_layout='interleaved'",
            "",
        ),
    ],
)
def test_what_has_no_place_is_one_sentence(make, options, setting, family, tmp_path):
    reason = f"{setting} has no counterpart in Hugging Face's {family}"
    refuses(reason, make(**options).save_pretrained, tmp_path / "out", FORMAT)
    assert not (tmp_path / "out").exists()


def test_a_folder_is_whole_and_replaces_only_its_like(tmp_path, monkeypatch):
    made = model(models.EncoderTokenClassifier(config(), 2))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text("{}")
    refuses("such as config.json", made.save_pretrained, tmp_path / "other", FORMAT)
    place = tmp_path / "out"
    first = written(made, place)
    assert (place / "README.md").read_text().startswith("---\nlibrary_name: transformers\n")
    with pytest.raises(ValueError, match="must be one of 'weights.h5'"):
        made.save_pretrained(place, format="onnx")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("safetensors.numpy.save_file", full)
        refuses("No space left", made.save_pretrained, place, FORMAT)
    assert json.loads((place / "config.json").read_text()) == first
    made.save_pretrained(place)  # our own format replaces the folder
    assert not (place / "config.json").exists()
    assert written(made, place) == first
    assert sorted(tmp_path.iterdir()) == [tmp_path / "other", place]
