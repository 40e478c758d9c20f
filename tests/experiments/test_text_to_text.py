"""T5 and BART on the language of letters: pre-trained by the command, then answering in words."""

import numpy as np
import pytest

from experiments.finetune.init import read_init
from experiments.pretrain.__main__ import main as pretrain
from experiments.pretrain.run import PretrainingRun
from experiments.text_to_text.__main__ import main
from experiments.text_to_text.evaluate import check_answers
from experiments.text_to_text.run import TextRun
from macaron_tf.errors import UserError
from macaron_tf.interop import read_encoder_decoder
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.training.progress import read_lines
from tests.experiments.pretraining_toy import flags, prepare, toy_settings, train, write_documents
from tests.experiments.task_toys import scores_in, validations


def settings_of(recipe: str, block: str, source: str = "text:/nowhere/*") -> list[str]:
    """A short pre-training; its corpus is prepared already where no source is given."""
    return [*toy_settings(source, 20, recipe), "vocabulary.size=90", f"model.block={block}"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    """Rows of the letters and of a task's words, which a vocabulary of letters could not say."""
    documents = tmp_path_factory.mktemp("documents")
    source = write_documents(documents)
    (documents / "words.txt").write_text("sst2 sentence : a c negative . positive .\n" * 200)
    folder = str(tmp_path_factory.mktemp("corpora") / "words")
    return prepare("t5_tiny", folder, settings_of("t5_tiny", "macaron", source))


@pytest.fixture(scope="module")
def start(corpus, tmp_path_factory) -> str:
    """A pre-trained T5."""
    run = tmp_path_factory.mktemp("runs") / "t5"
    assert train("t5_tiny", run, corpus, settings_of("t5_tiny", "macaron")) == 0
    return str(run)


@pytest.mark.parametrize("recipe", ["t5_tiny", "bart_tiny"])
def test_it_is_pre_trained_and_evaluated(recipe, start, corpus, tmp_path, ran, refused):
    run = start
    if recipe == "bart_tiny":
        run = tmp_path / "bart"
        settings = flags(settings_of(recipe, "swish_rnn"))
        output = ran(pretrain, "train", recipe, run, "--corpus", corpus, *settings).out
        assert "experiments.text_to_text" in output and "experiments.finetune" not in output
    opened = PretrainingRun.open(run)
    lines = read_lines(opened.path / "metrics.jsonl")
    assert lines[-1]["kind"] == "validation" and lines[-1]["loss"] < lines[0]["loss"]
    ran(pretrain, "evaluate", run, "--corpus", corpus, "--checkpoint", "last")
    assert scores_in(opened.path / "scores")["loss"] == pytest.approx(lines[-1]["loss"], abs=1e-5)
    sentinels = SENTINEL_ROWS if recipe == "t5_tiny" else 0
    assert opened.build_network().config.vocab_size == opened.vocabulary.size + sentinels
    refused(pretrain, ["fill", run, "a [MASK]"], "is an encoder-decoder and fills no [MASK]")
    with pytest.raises(UserError, match="is an encoder-decoder: give a run of an encoder"):
        read_init(str(run))


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> str:
    """Sentences of a and b; those that begin with an a are positive."""
    folder = tmp_path_factory.mktemp("tables")
    for split, count in (("train", 64), ("validation", 16)):
        rows = [f"{'ab'[i % 2]} {'cd'[i // 2 % 2]}\t{1 - i % 2}" for i in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return f"tsv:{folder}/{{split}}.tsv"


TRAINING = ("max_steps=80", "validate_every=40", "log_every=10", "learning_rate=0.01")
ROWS = ["batching.max_tokens=512", "max_target=16", "validation_examples=8"]
SETTINGS = flags([f"training.{one}" for one in TRAINING] + ROWS)


def test_from_pre_training_to_answers(start, tables, tmp_path, answered):
    run = tmp_path / "sst2"
    command = ["train", "sst2", str(run), "--init", start, "--source", tables, *SETTINGS]
    assert main(command) == 0
    lines = validations(run)
    assert [line["step"] for line in lines] == [40, 80]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["score"] == lines[-1]["task_accuracy"] > 0.9
    assert main(command) == 0  # nothing is left to do
    assert main(["evaluate", str(run)]) == 0
    record = scores_in(run / "scores")
    assert record["accuracy"] > 0.9 and len(record["answers"]) == 16
    answers = answered(main, "predict", run, text="a c\nb d\n").splitlines()
    assert len(answers) == 2 and answers[0] != answers[1]


def test_wrong_input_is_one_sentence(start, tmp_path, refused):
    run, bleu = str(tmp_path / "run"), ["--set", "training.best_metric=bleu"]
    for arguments, words in (
        (["squad", run, "--init", start], "task='squad' must be one of"),
        (["sst2", run, "--init", str(tmp_path)], "is no run"),
        (["sst2", run, "--init", start, *bleu], "training.best_metric is 'bleu'"),
        (["sst2", run, "--init", start, "--set", "label_smoothing=1"], "label_smoothing=1 must be"),
    ):
        refused(main, ["train", *arguments], words, tmp_path)


def test_a_vocabulary_that_cannot_say_the_answers_is_refused():
    class Letters:
        """Knows no word."""

        def encode_lines(self, lines):
            return [[1] for _ in lines]

        def decode_lines(self, rows):
            return ["" for _ in rows]

    with pytest.raises(UserError, match="makes '' of the answer 'negative' of sst2"):
        check_answers("sst2", Letters())
    check_answers("summarization", Letters())


def test_a_t5_of_hugging_face_is_fine_tuned(tables, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.interop.test_encoder_decoders import t5_directory

    (tmp_path / "t5").mkdir()
    t5_directory(tmp_path / "t5")
    found = read_encoder_decoder(tmp_path / "t5")
    run, settings = tmp_path / "run", ["max_steps=2", "validate_every=2", "learning_rate=1e-9"]
    settings = flags([f"training.{one}" for one in settings] + ["max_target=16"])
    command = ["train", "sst2", str(run), "--source", tables, *settings, "--init"]
    assert main([*command, f"hugging-face:{tmp_path}/t5"]) == 0
    opened = TextRun.open(run)
    assert opened.vocabulary.hash == found.vocabulary.hash and not opened.recipe.starts
    network = opened.load_network("last")
    assert network.config == found.network.config
    for weight, theirs in zip(network.get_weights(), found.network.get_weights(), strict=True):
        np.testing.assert_allclose(weight, theirs, atol=1e-6)
