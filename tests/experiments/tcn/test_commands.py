"""Tests of the TCN's sequence tasks: their comparison and their data."""

import functools
import gzip
import itertools
import json

import numpy as np
import pytest
import scipy.io

from experiments import registry
from experiments.commands import main
from experiments.compare.commands import main as compare
from macaron_tf.errors import UserError
from macaron_tf.runs import sequences
from tests.toys.pretraining import flags
from tests.toys.tasks import validations

SMALL = ("training.max_steps=40", "training.validate_every=20", "training.log_every=10")
SMALL += (
    "data.batch_size=4",
    "model.widths=(8,)",
    "training.learning_rate=0.02",
    "model.dropout=0.1",
)
SMALL += ("training.schedule=constant",)


def opened(name: str, size: int = 2, seed: int = 1, tfds=None, **data) -> sequences.TaskData:
    """Opens the data of a task with the task's recipe, a batch size and a seed."""
    recipe = registry.load(f"tcn_{name}", sequences.SequenceRecipe)
    recipe = recipe.changed(data={"batch_size": size, **data}, training={"seed": seed})
    return sequences.TASKS[name].read_data(recipe, tfds)


def write_pieces(path, tunes: str, **changes) -> None:
    """Copies the MATLAB file `tunes` of piano rolls to `path`.

    `changes` maps the name of a split to a function that returns the changed split.
    """
    pieces = scipy.io.loadmat(tunes)
    pieces |= {split: change(pieces[split]) for split, change in changes.items()}
    scipy.io.savemat(path, {name: split for name, split in pieces.items() if name[0] != "_"})


@pytest.mark.parametrize("calls", ["real"], indirect=True)
def test_a_tcn_is_compared_with_a_recurrent_model_of_its_size(calls, tunes, tmp_path):
    arms = ["tcn=tcn_nottingham", "gru=tcn_nottingham:model.mixer=gru"]
    words = [
        str(tmp_path),
        *arms,
        "--seeds",
        "1",
        "--jobs",
        "1",
        *flags([*SMALL, f"data.path={tunes}"]),
    ]
    assert compare(words) == 0
    tcn, gru = json.loads((tmp_path / "compare.json").read_text())["rows"]
    for row in (tcn, gru):
        losses = [line["loss"] for line in validations(tmp_path / f"{row['arm']}-1")]
        assert row["validation"] == pytest.approx(min(losses), rel=1e-6)  # seven digits
        assert row["test"] > 0 and row["updates"] == 40
    assert tcn["parameters"] == pytest.approx(gru["parameters"], rel=0.02)
    gru = json.loads((tmp_path / "gru-1" / "recipe.json").read_text())["training"]
    # The recipe's clipping of recurrent models; the rate of --set.
    assert (gru["clip_norm"], gru["learning_rate"]) == (1.0, 0.02)
    assert "| test |" in (tmp_path / "compare.md").read_text()
    calls.clear()
    assert compare(words) == 0 and not calls


@pytest.mark.parametrize("split", ["traindata", "validdata"])
def test_other_pieces_with_as_many_keys_are_refused(split, tunes, tmp_path, ran, refused):
    words = ["train", "tcn_jsb", tmp_path / "run", *flags([*SMALL, "training.max_steps=1"])]
    ran(main, *words, "--set", f"data.path={tunes}")
    write_pieces(other := tmp_path / "other.mat", tunes, **{split: lambda pieces: pieces[:, ::-1]})
    words += ["--set", "training.max_steps=2", "--set", f"data.path={other}"]
    refused(main, words, "the training data differ from")


def test_music_is_padded_and_answered_by_the_next_frame(tunes):
    found = opened("jsb", 4, path=tunes)
    batch = next(iter(found.train(0)))
    inputs, targets, weight = (batch[name].numpy() for name in ("inputs", "targets", "weight"))
    assert inputs.shape == targets.shape == (*weight.shape, 88)
    for row in range(4):
        length = int(weight[row].sum())
        np.testing.assert_array_equal(inputs[row, 1:length], targets[row, : length - 1])
        assert not inputs[row, length:].any() and not weight[row, length:].any()
    assert sum(float(b["weight"].numpy().sum()) for b in found.validation) == sum(
        len(piece) - 1 for piece in scipy.io.loadmat(tunes)["validdata"][0]
    )


def test_the_adding_problem_adds_two_numbers_anywhere():
    positions = np.zeros(20)
    for number in range(30):
        batch = sequences.adding_batch(40, (1, number), length=20)
        inputs, targets = batch["inputs"].numpy(), batch["targets"].numpy()
        assert (inputs[:, :, 1].sum(1) == 2).all()
        np.testing.assert_allclose(targets[:, 0], inputs.prod(-1).sum(1), rtol=1e-6)
        positions += inputs[:, :, 1].sum(0)
    assert positions.min() > 60 and positions.max() < 190  # 120 each on average


def test_copy_memory_asks_for_the_symbols_at_the_end():
    batch = sequences.copy_batch(3, (1, 2), distance=25)
    ids, targets = batch["inputs"].numpy().argmax(-1), batch["targets"].numpy()
    assert ids.shape == targets.shape == batch["weight"].shape == (3, 45)
    assert ((ids[:, :10] >= 1) & (ids[:, :10] <= 8)).all()
    assert not ids[:, 10:34].any() and (ids[:, 34:] == 9).all()
    assert not targets[:, :35].any()
    np.testing.assert_array_equal(targets[:, 35:], ids[:, :10])


@pytest.mark.parametrize("name", ["adding", "copy_memory"])
def test_drawn_sequences_go_on_from_any_batch_and_never_repeat(name):
    found = opened(name)
    whole = [batch["inputs"].numpy() for batch in found.train(0).take(4)]
    np.testing.assert_array_equal(next(iter(found.train(3)))["inputs"], whole[3])
    held = next(iter(found.validation))["inputs"].numpy()
    other = next(iter(opened(name, seed=2).train(0)))["inputs"].numpy()
    for one, two in itertools.combinations([*whole, held, other], 2):
        assert not np.array_equal(one, two)


def test_windows_answer_every_symbol_once_with_all_the_history_there_is():
    ids = np.arange(2 * 23 + 1, dtype="int32")
    seen = []
    windows = sequences.windows(ids, 2, (8, 5))
    for batch in windows.evaluation_dataset().as_numpy_iterator():
        np.testing.assert_array_equal(batch["targets"], batch["inputs"] + 1)
        assert batch["inputs"].shape[1] == 8
        seen += [batch["targets"][batch["weight"] > 0]]
    assert sorted(np.concatenate(seen)) == list(range(1, 47))
    endless = windows.batches()
    whole = list(itertools.islice(endless, 10))
    later = next(windows.batches(start_step=7))
    np.testing.assert_array_equal(later["inputs"], whole[7]["inputs"])


def test_penn_treebank_cuts_words_and_characters(tmp_path):
    for split, lines in (("train", " a bb \n bb <unk> \n" * 60), ("valid", " bb a \n" * 60)):
        (tmp_path / f"{split}.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "test.txt").write_text("\n\n")
    found = opened("ptb_words", path=str(tmp_path))
    assert found.vocab_size == 4 and found.test is None  # <eos>, bb, a, <unk>
    assert opened("ptb_characters", path=str(tmp_path)).vocab_size == 9
    (tmp_path / "valid.txt.gz").write_bytes(gzip.compress(b" c \n"))
    with pytest.raises(Exception, match="valid.txt contains 'c', which train.txt lacks"):
        opened("ptb_words", path=str(tmp_path))


def test_documents_are_cut_into_words_some_of_them_held_out(tmp_path):
    lines = ["one two three"] * 90 + ["four four"] * 30
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    source = (f"text-lines:{tmp_path}/text.txt",)
    found = opened("wikitext", sources=source, vocabulary_size=6, held_out=2)
    assert found.vocab_size == 6 and found.test is None
    validation = [batch["targets"].numpy() for batch in found.validation]
    # <UNK> <S> </S> four one three; "two" is outside the vocabulary.
    assert set(np.unique(np.concatenate([t.ravel() for t in validation]))) == {0, 1, 2, 3, 4, 5}
    with pytest.raises(UserError, match="more than 80 words, the length of a window"):
        opened("wikitext", sources=source, held_out=60)


def test_lambada_asks_for_the_last_word_of_each_passage(tmp_path):
    (tmp_path / "book.txt").write_text('"I can\'t," she said to the fox.\n' * 30)
    passages = ["`` i ca n't , '' said the fox", "she said to the wolf", "the fox . it ca n't"]
    (tmp_path / "dev.txt").write_text("\n".join(passages) + "\n")
    lines, texts = ((f"{form}:{tmp_path}/book.txt",) for form in ("text-lines", "text"))
    found = opened("lambada", path=str(tmp_path), sources=lines)
    (batch,) = found.validation
    inputs, targets, weight = (batch[name].numpy() for name in ("inputs", "targets", "weight"))
    # No book contains the wolf.
    assert weight.sum(axis=1).tolist() == [1.0, 1.0] and found.test is None
    asked = [int(row[w > 0][0]) for row, w in zip(targets, weight, strict=True)]
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert len(set(asked)) == 2 and 0 not in asked
    assert inputs.shape == targets.shape == (2, max(weight.argmax(axis=1)) + 1)
    # One book is used whole for training.
    book = opened("lambada", path=str(tmp_path), sources=texts)
    assert book.summary == found.summary
    with pytest.raises(UserError, match="no passage of dev.txt ends"):
        (tmp_path / "dev.txt").write_text("a wolf\n")
        opened("lambada", path=str(tmp_path), sources=lines)


def test_mnist_reads_pixels_in_one_order(tfds, monkeypatch):
    monkeypatch.setattr(sequences, "read_columns", functools.cache(sequences.read_columns))
    in_order, permuted = (opened(name, 3, tfds=tfds) for name in ("mnist", "permuted_mnist"))
    plain = next(iter(in_order.validation))["inputs"].numpy()
    mixed = next(iter(permuted.validation))["inputs"].numpy()
    assert plain.shape == (250, 784, 1)
    np.testing.assert_allclose(np.sort(plain[0], axis=0), np.sort(mixed[0], axis=0))
    assert not np.array_equal(plain[0], mixed[0])
    assert next(iter(in_order.train(0)))["targets"].shape == (3,)
