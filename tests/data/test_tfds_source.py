"""TFDS translation sets, prepared ones only; a mistake gets a sentence that lists what exists."""

import shutil
import socket

import pytest

from macaron_tf.data.sources.readers import read_pairs, source_fingerprint
from macaron_tf.errors import UserError


def read(tfds_dir, source, split="validation", languages=("en", "de"), **options):
    return read_pairs(source, split, *languages, data_dir=tfds_dir, **options)


def test_both_directions_and_slices(tfds_dir):
    pairs = read(tfds_dir, "tfds:multi30k/de-en")
    assert len(pairs) == 1014
    assert pairs[0][0].startswith("A man") and pairs[0][1].startswith("Ein Mann")
    # Without a configuration, the one of the two languages; with a version; in the set's order.
    assert read(tfds_dir, "tfds:multi30k") == pairs
    assert read(tfds_dir, "tfds:multi30k/de-en:1.0.0", "validation[:7]") == pairs[:7]
    assert read(tfds_dir, "tfds:multi30k", languages=("de", "en"))[0] == pairs[0][::-1]
    assert read(tfds_dir, "tfds:multi30k", languages=("en", "fr"))[0][0] == pairs[0][0]


@pytest.mark.parametrize(
    ("source", "split", "languages", "message"),
    [
        ("tfds:nope", "train", ("en", "de"), r"no TFDS set 'nope' .*multi30k.*no builder 'nope'"),
        ("tfds:opus/medical", "train", ("en", "de"), r"prepare it with: .*load\('opus/medical'"),
        ("tfds:multi30k/xx", "train", ("en", "de"), r"no configuration 'xx' .*de-en, fr-en"),
        ("tfds:multi30k", "train", ("en", "xx"), r"several configurations .*de-en, fr-en"),
        ("tfds:multi30k/de-en:9.9.9", "train", ("en", "de"), r"no version '9\.9\.9': it has 1"),
        ("tfds:multi30k", "test", ("en", "de"), "no split 'test': it has train, validation"),
        ("tfds:multi30k/fr-en", "train", ("en", "de"), "no language 'de': .*en, fr"),
        ("tfds:glue/sst2", "train", ("en", "de"), "no language 'en': .*idx, label, sentence"),
        ("tfds:multi30k", "train[:10%", ("en", "de"), "cannot read split"),
        ("tfds:multi30k", "train[:0]", ("en", "de"), "cannot read split 'train"),
    ],
)
def test_errors(tfds_dir, source, split, languages, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tfds_dir, source, split, languages)
    assert "\n" not in str(caught.value)


def test_a_folder_without_any_set(tmp_path):
    with pytest.raises(UserError, match=r"holds nothing.*prepare it with: python -c"):
        read(tmp_path, "tfds:wmt14_translate/de-en")


@pytest.mark.parametrize("name", ["iwslt14/de-en", "multi30k"])
@pytest.mark.parametrize("download", [False, True])
def test_a_set_that_tfds_cannot_make(name, download, tmp_path, monkeypatch):
    def connect(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(
        UserError, match=r"--data-dir\).* no builder '(iwslt14|multi30k)'"
    ) as caught:
        read(tmp_path, f"tfds:{name}", download=download)
    assert "tfds.load" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_set(tfds_dir, tmp_path):
    folder = tmp_path / "multi30k" / "de-en"
    shutil.copytree(f"{tfds_dir}/multi30k/de-en", folder, copy_function=shutil.copyfile)
    folder = folder / "1.0.0"
    folder.chmod(0o755)
    record = next(folder.glob("*validation.tfrecord*"))
    record.write_bytes(record.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot read split 'validation'"):
        read(tmp_path, "tfds:multi30k")
    (folder / "features.json").write_text("{")
    with pytest.raises(UserError, match="not a prepared TFDS set"):
        read(tmp_path, "tfds:multi30k")
    (folder / "dataset_info.json").unlink()
    with pytest.raises(UserError, match="is not prepared: prepare it in that folder"):
        read(tmp_path, "tfds:multi30k/de-en")


def test_fingerprint(tfds_dir):
    def fingerprint(*languages):
        return source_fingerprint("tfds:multi30k", "train", *languages, data_dir=tfds_dir)

    assert fingerprint("en", "de") == fingerprint("en", "de") != fingerprint("de", "en")
