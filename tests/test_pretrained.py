"""Tests of `macaron_tf.load` and `save_pretrained`, and of their errors."""

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest

import macaron_tf
from macaron_tf.model import Model
from macaron_tf.tasks import SentenceSettings
from tests import ram_paths
from tests.harness import numpy_of, refuses
from tests.toys.hugging_face import random_state, write_bert, write_modules

pytest.importorskip("safetensors")
ROWS = {"token_ids": np.array([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])}


@pytest.fixture
def bert(tmp_path) -> Model:
    """Returns a Hugging Face BERT with all its heads, loaded from tmp_path/bert."""
    return macaron_tf.load(f"hugging-face:{write_bert(tmp_path / 'bert')}")


@pytest.fixture
def saved(bert, tmp_path) -> pathlib.Path:
    """Saves the `bert` fixture's model with `save_pretrained`; returns the folder."""
    bert.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def check_same(one, other):
    """Checks that two models have equal outputs, vocabularies and usage settings."""
    hidden = numpy_of(one.network.encoder(ROWS))
    np.testing.assert_array_equal(numpy_of(other.network.encoder(ROWS)), hidden)
    np.testing.assert_array_equal(
        numpy_of(other.network.masked_logits(hidden)), numpy_of(one.network.masked_logits(hidden))
    )
    assert one.vocabulary.hash == other.vocabulary.hash
    other = other.with_card(**one.card.options("name", "checkpoint", "results"))
    assert (one.settings, one.card) == (other.settings, other.card)
    assert one.model_options == other.model_options


def test_another_librarys_directory_is_loaded(tmp_path):
    loaded = macaron_tf.load(f"hugging-face:{write_bert(tmp_path / 'bert')}")
    assert (loaded.card.name, loaded.card.objective) == ("bert", "masked_language")
    assert loaded.vocabulary.encode_lines(["a b"]) == [[5, 6]]
    again = macaron_tf.models.catalog.config(
        loaded.card.model, **{**dict(loaded.model_options), "vocab_size": loaded.vocabulary.size}
    )
    assert again == loaded.config


def test_a_network_of_ones_own_is_saved_and_loaded(tmp_path):
    model = macaron_tf.build("bert_tiny", vocab_size=16, num_layers=1)
    model.build()
    Model(model).save_pretrained(tmp_path / "saved")
    again = macaron_tf.load(tmp_path / "saved")
    np.testing.assert_array_equal(numpy_of(again.network(ROWS)), numpy_of(model(ROWS)))


def test_a_network_is_saved_with_its_heads_and_its_vocabulary(bert, saved):
    again = macaron_tf.load(saved)
    check_same(bert, again)
    hidden = numpy_of(bert.network.encoder(ROWS))
    pooled = [numpy_of(model.network.pooler(hidden)) for model in (again, bert)]
    np.testing.assert_array_equal(*pooled)
    assert again.network.replaced_token is None and again.card.name == "saved"
    card = (saved / "README.md").read_text()
    for phrase in ("library_name: keras", "`PretrainingEncoder`", "10 pieces", "| num_heads | 2 |"):
        assert phrase in card
    names = {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert names == {
        *("model.json", "model.weights.h5", "manifest.json", "README.md"),
        *("vocabulary/vocabulary.json", "vocabulary/vocabulary.txt"),
    }


def test_the_working_folder_is_loaded_by_its_name(saved, monkeypatch):
    monkeypatch.chdir(saved)
    assert macaron_tf.load(".").card.name == "saved"
    refuses(r"say whether .*: leave lower_case", macaron_tf.load, ".", lower_case=True)


def test_safetensors_are_written_and_read(bert, saved, tmp_path, monkeypatch):
    from safetensors.numpy import load_file

    bert.save_pretrained(saved, format="safetensors")
    check_same(bert, macaron_tf.load(saved))
    files = {path.name for path in saved.iterdir()}
    assert "model.safetensors" in files and "model.weights.h5" not in files
    arrays = load_file(saved / "model.safetensors")
    assert {w.path: tuple(w.shape) for w in bert.network.weights} == {
        name: array.shape for name, array in arrays.items()
    }
    folder = ram_paths.folder(tmp_path) + "/saved"
    bert.save_pretrained(folder, format="safetensors")
    check_same(bert, macaron_tf.load(folder))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    install = r"needs safetensors: pip install -e '.*\[interop\]'"
    refuses(install, macaron_tf.load, saved)
    refuses(install, bert.save_pretrained, tmp_path / "new", format="safetensors")
    assert not (tmp_path / "new").exists()


def test_ids_and_pooling_are_kept(tmp_path):
    directory = write_bert(tmp_path / "bert")
    write_modules(directory)
    bert = macaron_tf.load(f"hugging-face:{directory}")
    object.__setattr__(bert, "ids", np.array([3, 1, -1]))
    bert.save_pretrained(tmp_path / "saved")
    again = macaron_tf.load(tmp_path / "saved")
    check_same(bert, again)
    assert again.settings == SentenceSettings("mean", True, 12)
    assert again.special == bert.special


def test_a_saved_folder_is_replaced_and_no_other(bert, saved, tmp_path):
    (saved / "README.md").write_text("mine")
    check_same(bert, macaron_tf.load(saved))
    bert.save_pretrained(saved)
    assert "mine" not in (saved / "README.md").read_text()
    (saved / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for path, phrase in ((saved, "notes.txt"), ("bert", "config.json"), ("file", "is a file")):
        before = sorted(tmp_path.rglob("*"))
        refuses(phrase, bert.save_pretrained, tmp_path / path)
        assert sorted(tmp_path.rglob("*")) == before


def changed(file: pathlib.Path, old: str, new: str):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def later_format(saved):
    from macaron_tf.training.checkpoints import _manifest_digest

    manifest = json.loads((saved / "manifest.json").read_text()) | {"format": 9}
    manifest["sha256"] = _manifest_digest(manifest)
    (saved / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "model.weights.h5").unlink(), r"model\.weights\.h5 is missing"),
        (lambda d: (d / "model.weights.h5").write_bytes(b"half"), "has changed since it was"),
        (lambda d: (d / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda d: shutil.rmtree(d / "vocabulary"), "no vocabulary in"),
        (lambda d: (d / "model.json").unlink(), r"has no readable model\.json"),
        (lambda d: (d / "model.json").write_text("{}"), r"model\.json is not of this version"),
        (lambda d: changed(d / "model.json", "PretrainingEncoder", "None"), "no network that this"),
        (later_format, "has a newer format than 1: update macaron_tf"),
    ],
)
def test_half_a_folder_is_one_sentence(damage, reason, saved):
    damage(saved)
    refuses(reason, macaron_tf.load, saved)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("{}", "has no readable model.json"),
        ("hugging-face:{}/none", "there is no folder"),
        ("keras-hub:gs://bucket/bert", "copy the folder to a local disk"),
        ("model-garden:{}", "nor the name of .* says whether text is lower-cased"),
        ("hub:bert", "write hub:OWNER/NAME"),
    ],
)
def test_what_is_not_there_is_one_sentence(location, reason, tmp_path):
    refuses(reason, macaron_tf.load, location.format(tmp_path))


def test_weights_in_several_files_are_read(bert, tmp_path):
    from safetensors.numpy import save_file

    state, index = random_state(), {}
    (tmp_path / "bert" / "model.safetensors").unlink()
    for shard in range(2):
        part = {name: np.ascontiguousarray(state[name]) for name in [*state][shard::2]}
        index |= dict.fromkeys(part, f"model-{shard}.safetensors")
        save_file(part, tmp_path / "bert" / f"model-{shard}.safetensors")
    weight_map = json.dumps({"weight_map": index})
    (tmp_path / "bert" / "model.safetensors.index.json").write_text(weight_map)
    check_same(bert, macaron_tf.load(f"hugging-face:{tmp_path}/bert"))
    (tmp_path / "bert" / "model-1.safetensors").unlink()
    words = "model-1.safetensors cannot be read"
    refuses(words, macaron_tf.load, f"hugging-face:{tmp_path}/bert")
