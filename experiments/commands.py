"""Trains models by recipes, scores them and answers texts with them.

    macaron train multi30k_macaron_tiny runs/m30k --data-dir DIR
    macaron evaluate runs/m30k --data-dir DIR
    echo "A man is riding a bike." | macaron predict runs/m30k
    macaron export runs/m30k served/m30k

The same commands pre-train (bert_tiny), fine-tune (finetune:sst2), train sentence encoders
(sentence_bert:stsb), and so on: the recipe says what is trained.
"""

import argparse

from experiments import command_line as cli
from macaron_tf.cli.arguments import MODEL
from macaron_tf.data.sources.names import DOCUMENT_FORMS, PAIR_FORMS

_INDENT = "\n  "
_TRAIN = f"""train a model by a recipe, or resume an interrupted run

    macaron train bert_tiny runs/bert --data-dir DIR
    macaron train finetune:sst2 runs/sst2 --init runs/bert --data-dir DIR
    macaron train finetune:classify runs/mine --init hugging-face:DIR --set data.source=tsv:mine.tsv
    macaron train text_to_text:sst2+cola runs/t5 --init hugging-face:DIR --data-dir DIR
    macaron train ./my_recipes.py:mine runs/mine

To resume an interrupted run, give the same command again. `macaron recipes` lists the recipes,
`macaron tasks` the tasks of finetune, sentence_bert and text_to_text, and `macaron settings RECIPE`
all settings of a recipe.

MODEL of --init is a run or one of its checkpoints (RUN@CHECKPOINT), a folder written by
`save_pretrained`, hugging-face:DIR (from transformers or sentence-transformers, with its
tokenizer), keras-hub:DIR (a preset), model-garden:DIR (a BERT) or a repository hub:OWNER/NAME.

sources of text for pre-training, --set data.sources=SOURCE:
  {_INDENT.join(DOCUMENT_FORMS)}
A GLOB is the name of a file or a pattern such as books/*.txt. An element of data.sources can also
be a tuple (SOURCE, SPLIT, WEIGHT, LANGUAGE). If LANGUAGE is a pair such as ("en", "de"), the source
has translation pairs, in a form of the next list. docs/settings.md describes the forms.

sources of text pairs for translation, --set data.source=SOURCE:
  {_INDENT.join(PAIR_FORMS)}
The fields have the names data.source_language and data.target_language, in the records or in their
field `translation`.

sources of examples for fine-tuning, --set data.source=SOURCE: tfds:NAME, tsv:FILE (or .csv),
jsonl:FILE, parquet:FILE, datasets:DIR or python:MODULE:FUNCTION with the columns of the task and
`label`, or with the fields of SQuAD; conll:FILE (a word and its tag per line). The tasks classify,
regress, tag and choose read your own table, as with --set data.table.text=review.

In the name of a file, as in tsv:reviews.{{split}}.tsv, {{split}} stands for train, validation or
test. Without it, a tenth of the examples is held out. Files may be compressed (.gz, .bz2, .xz).
"""
_PREDICT = """answer texts: classify, translate, continue, fill in [MASK], or encode as vectors

    echo "A man is riding a bike." | macaron predict runs/m30k --set beam_size=4
    macaron predict runs/gpt2 "The story of" --set temperature=0.7 --set max_tokens=64
    macaron predict runs/bert "the [MASK] of the story"
    macaron predict runs/rte --input pairs.tsv --json
    macaron predict runs/sts --input lines.txt --output vectors.npy

A line has one text, or several texts separated by tabs: the two texts of a pair; question and
context; or the text, the question and the choices, where a missing choice is an empty column. A
tagger splits a line at spaces. A language model continues the text token by token, or with
num_samples=N writes N continuations. The same model, text, settings and seed give the same answer,
also from `macaron export`.

settings of --set: beam_size, n_best (translators); temperature, top_k, top_p, seed, max_tokens,
min_tokens, num_samples (language models); top (words for each [MASK]); language (multilingual
classifiers); task (T5 and BART); pooling, max_length (encoders); tokenized (ELMo: split only at
white space).
"""
_EVALUATE = """score a run on the validation data of its task, or an encoder on a task

    macaron evaluate runs/m30k --data-dir DIR --set task.decoding.beam_size=8
    macaron evaluate runs/bert
    macaron evaluate runs/sst2 --source tsv:test.tsv
    macaron evaluate hugging-face:DIR --task stsb --data-dir DIR

--set changes settings of the run: task.decoding.NAME and task.metric.NAME of a translation run,
task.decoding.NAME of a text-to-text run, data.language of a classifier of several languages,
objective.memory_length and model.clamp_length of a Transformer-XL or XLNet, pooling and
max_length of a sentence encoder.
"""

_RECIPE = cli.together(cli.RECIPE, cli.TFDS, cli.SETTINGS)
_POOLED = cli.together(cli.settings("pooling=max or max_length=64"), cli.LOWER_CASE, cli.DEVICES)
_SOURCE = cli.path_argument(
    "--source",
    "source of the examples, such as tsv:FILE (default: for a run, the source that it was trained "
    "on; otherwise the task's dataset in TensorFlow Datasets)",
)
_OUTPUT = cli.path_argument("--output DIR", "folder for the scores (default: RUN/scores)")

COMMANDS = {
    "train": (
        _TRAIN,
        "experiments.train:run",
        cli.extra("train"),
        cli.recipe_help,
        cli.local_path_argument("recipe", cli.RECIPE_TEXT, nargs="?"),
        cli.path_argument(
            "run", "folder for the new run; training resumes if it has a run", nargs="?"
        ),
        cli.path_argument("--resume RUN", "run to resume, in place of RECIPE, RUN and --init"),
        cli.path_argument(
            "--init MODEL",
            "pre-trained model to start from, such as runs/bert or hugging-face:DIR (default: that "
            "of the recipe, or random weights)",
        ),
        cli.CORPUS,
        cli.VOCABULARY,
        cli.LOWER_CASE,
        cli.count("--processes N", "processes that tokenize pairs (default: one per CPU core)"),
        cli.switch(
            "--own-shards",
            "make each worker of pre-training read only its own part of the shards. The batches "
            "then depend on the number of workers",
        ),
        cli.switch("--no-hints", argparse.SUPPRESS),  # `macaron compare` has no next commands
        cli.TFDS,
        cli.SETTINGS,
        cli.CALLBACKS,
        cli.DEVICES,
        cli.ENGINE,
    ),
    "evaluate": (
        _EVALUATE,
        "experiments.evaluate:run",
        MODEL,
        _SOURCE,
        cli.argument(
            "--split",
            "split to score, such as 'test' (default: the validation splits, or the whole of "
            "another file without {split} in its name)",
        ),
        cli.argument("--task", "task on which to score a sentence encoder, such as 'stsb'"),
        cli.CORPUS,
        cli.BACKWARD,
        _OUTPUT,
        cli.TFDS,
        _POOLED,
    ),
    "predict": (
        _PREDICT,
        "experiments.predict:run",
        MODEL,
        cli.argument("text", "texts to answer (default: each line of --input)", nargs="*"),
        cli.path_argument("--input FILE", "file with a text per line (default: stdin)"),
        cli.path_argument(
            "--output FILE",
            "output file (default: stdout). A .npy file has the vectors of an encoder, `(N, D)` "
            "float32",
        ),
        cli.switch("--json", "write the fields of `Model.predict` as a line of JSON per text"),
        cli.BACKWARD,
        cli.settings("beam_size=8 or temperature=0.7"),
        cli.LOWER_CASE,
    ),
    "score": (
        "print the perplexity of text files by a language model, per token and per word",
        "experiments.score:run",
        MODEL,
        cli.path_argument(
            "files FILE", "text files to score, plain or compressed (.gz, .bz2, .xz)", nargs="+"
        ),
    ),
    "average": (
        "average the weights of the newest checkpoints, and write the result to RUN/average",
        "experiments.evaluation.translation:run_average",
        cli.RUN,
        cli.count("--last N", "number of checkpoints (default: average_last of the run, or 5)"),
    ),
    "prepare": (
        "tokenize the corpus of a recipe, pack the tokens into rows, and write the rows as shards",
        "experiments.prepare:run",
        _RECIPE,
        cli.path_argument("corpus", "output folder; if it has a part of the corpus, work resumes"),
        cli.VOCABULARY,
        cli.count("--processes N", "processes, with 0.5 GB of RAM each (default: 1)", 1),
        cli.argument(
            "--beam OPTION",
            "options to tokenize with Apache Beam, as runner=DataflowRunner project=NAME",
            nargs="+",
            default=(),
        ),
    ),
    "bench": (
        "judge blocks on probes and in a small GPT, BERT and translator, on one page\n\n"
        "    macaron bench my_block.py:Mine\n"
        "    macaron bench macaron swish_rnn gated_deltanet --full --out runs/blocks\n\n"
        "Every block is compared with the Transformer's at equal parameters, at its best of three "
        "learning rates, with three seeds. pip fetches the text, 51 MB. The page is OUT/bench.md, "
        "with a heat map of the probes. An interrupted bench continues with the same command.",
        "experiments.compare.bench:run",
        cli.extra("studies"),
        cli.path_argument(
            "arms [NAME=]BLOCK[:PATH=VALUE,...]",
            "blocks to judge: FILE.py:CLASS, package.module:CLASS or a block of this library",
            nargs="+",
        ),
        cli.local_path_argument("--out DIR", "output folder", default="runs/bench"),
        cli.switch("--full", "run all ten probes (default: five of them)"),
        cli.seeds([1, 2, 3], "random seeds"),
        cli.count("--jobs N", "simultaneous training runs (default: 2, or 1 if there is a GPU)"),
        cli.settings("training.max_steps=300, for every run"),
    ),
    "probe": (
        "train the model of a recipe on a synthetic task, such as associative recall\n\n"
        "    macaron probe gpt_probe recall runs/recall --set model.block=macaron\n\n"
        "`macaron compare` with --probes compares blocks on all tasks.",
        "experiments.compare.probing:run",
        cli.local_path_argument("recipe", cli.RECIPE_TEXT),
        cli.argument("probe", "name of the task: recall, parity, s5 and others"),
        cli.RUN,
        cli.SETTINGS,
    ),
    "recipes": (
        "list the recipes, or print a recipe as a Python file to edit",
        "experiments.registry:run",
        cli.local_path_argument("name", "name of the recipe (default: list all)", nargs="?"),
    ),
    "settings": (
        "list the settings of a recipe with their paths, values, ranges and meanings",
        "experiments.registry:run_settings",
        cli.RECIPE,
        cli.argument("words WORD", "list only settings with a WORD in path or meaning", nargs="*"),
        cli.settings("model=NAME, before the settings are listed"),
    ),
    "tasks": (
        "list the tasks of fine-tuning with their columns, classes and metrics",
        "experiments.evaluation.finetuning:print_tasks",
    ),
    "submit": (
        "predict the labels of test sets, and write files for the GLUE server",
        "experiments.evaluation.finetuning:submit",
        cli.path_argument("runs run", "folders of the fine-tuning runs, one per task", nargs="+"),
        cli.path_argument("out", "output folder for the files to submit, such as CoLA.tsv"),
        cli.TFDS,
    ),
}


def main(arguments: list[str]) -> int:
    """Runs the command that the first argument names, and makes only its parser."""
    name, *argv = arguments
    # `train --help` shows the settings of a recipe that stands before it.
    intermixed = name != "train"
    return cli.single_program(f"macaron {name}", *COMMANDS[name], intermixed=intermixed)(argv)
