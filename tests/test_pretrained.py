"""The front door: `macaron_tf.load`, `build` and what they refuse."""

import numpy as np
import pytest

import macaron_tf
from macaron_tf.errors import UserError
from tests.interop.toys import write_bert


def test_another_librarys_directory_is_loaded(tmp_path):
    pytest.importorskip("safetensors")
    found = macaron_tf.load(f"hugging-face:{write_bert(tmp_path / 'bert')}")
    assert (found.name, found.objective) == ("bert", "masked_language")
    assert found.vocabulary.encode_lines(["a b"]) == [[5, 6]]
    again = macaron_tf.models.catalog.config(
        found.model, **{**dict(found.model_options), "vocab_size": found.vocabulary.size}
    )
    assert again == found.config
    assert found.classifier(3)({"token_ids": np.array([[2, 5, 3]])}).shape == (1, 3)
    with pytest.raises(UserError, match="scheme='tokens, channels/2 width 1': the weights were"):
        found.classifier(3, scheme="tokens, channels/2 width 1")


def test_a_saved_model_is_loaded(tmp_path):
    model = macaron_tf.build("bert_tiny", vocab_size=16, num_layers=1)
    model.build()
    model.save(tmp_path / "bert.keras")
    found = macaron_tf.load(tmp_path / "bert.keras")
    assert found.name == "bert" and found.vocabulary is None
    for one, other in zip(found.network.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{}", "is no run: it has no model.json"),
        ("{}/none@best", "none@best is no run"),
        ("hugging-face:{}/none", "there is no folder"),
        ("hugging-face:{}", r"it has no config\.json"),
        ("keras-hub:{}", r"it has no config\.json"),
        ("keras-hub:gs://bucket/bert", "copy the folder from its bucket"),
    ],
)
def test_what_is_not_there_is_one_sentence(place, reason, tmp_path):
    with pytest.raises(UserError, match=reason):
        macaron_tf.load(place.format(tmp_path))
