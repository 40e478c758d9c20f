"""Commands of `macaron train` that train one tiny run of each kind.

Each function takes `value`, a function from a fixture's name to its value, and returns the words of
a command, in which RUN stands for the folder of the run.
"""

from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, t5_settings, toy_settings
from tests.toys.tasks import toy_flags


def pretraining(recipe: str, *more: str):
    def words(value):
        settings = [*toy_settings(value("source")), "model.dropout=0.1", *more]
        return ["train", recipe, "RUN", *flags(settings)]

    return words


def t5(value):
    settings = [*t5_settings("t5_tiny", "macaron"), "model.dropout=0.1"]
    corpus = ["--corpus", value("t5_corpus")]
    return ["train", "t5_tiny", "RUN", *corpus, *flags(settings)]


def text_to_text(value):
    rows = ["batching.max_tokens=512", "max_target=16", "validation_examples=8"]
    settings = flags([*rows, f"source={value('tables')}"])
    return ["train", "text_to_text:sst2", "RUN", "--init", value("t5_run"), *settings]


def fine_tuning(value):
    return ["train", "finetune:sst2", "RUN", *toy_flags(value("toy"), model__dropout=0.1)]


def embeddings(value):
    toy = toy_flags(value("toy"), "stsb", model__dropout=0.1)
    return ["train", "sentence_bert:stsb", "RUN", *toy]


def elmo(value):
    settings = ["batch_size=8", "row_length=10", "held_out=6", "vocabulary_size=7"]
    settings += ["model.lstm_dim=8", "model.projection_dim=4", "model.filters=((1, 4), (2, 4))"]
    settings += [f"sources={value('source')}"]
    return ["train", "elmo_tiny", "RUN", *flags(settings)]


def tcn(value):
    words = ["jsb", "RUN", "--data", value("tunes"), "--models", "tcn", "--seeds", "3"]
    return [*words, *flags(["batch_size=4", "model.widths=(8,)"])]


def translation(value):
    settings = [*number_settings(value("number_text")), "model.dropout=0.1"]
    return ["train", "multi30k_macaron_tiny", "RUN", *flags(settings)]
