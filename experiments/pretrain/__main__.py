"""Pre-training an encoder from the first command to a model to fine-tune.

    python -m experiments.pretrain train bert_tiny runs/bert --data-dir DIR
    python -m experiments.pretrain fill runs/bert "the [MASK] of the story"

or, the corpus prepared once and shared by several runs:

    python -m experiments.pretrain prepare bert_tiny corpora/mini --data-dir DIR
    python -m experiments.pretrain train swish_rnn_tiny runs/swish --corpus corpora/mini
    python -m experiments.pretrain evaluate runs/swish --corpus corpora/mini

or from a model that has learnt already, on text of one's own:

    python -m experiments.pretrain train bert_base runs/law --init hugging-face:bert-base-uncased \\
        --set corpus.sources=text:law/*.txt

`prepare` and `train` go on where they were interrupted when the same command is given again.
"""

from experiments import command_line as cli
from macaron_tf.data.sources.names import DOCUMENTS

_EXAMPLES = "training.max_steps=500 or corpus.sequence_length=256"
_RECIPE = cli.recipe(_EXAMPLES)
_FORMS = f"""sources of text, in corpus.sources:
{cli.source_forms(DOCUMENTS)}
or (NAME, SPLIT, WEIGHT, LANGUAGE): with a LANGUAGE of two, ("en", "de"), translation pairs, from
tfds:NAME, text:FILE,FILE, tsv:FILE, jsonl:FILE, parquet:FILE, datasets:DIR or homeassistant:LANG
"""

main = cli.program(
    "experiments.pretrain",
    __doc__,
    cli.command(
        "vocabulary",
        "train a recipe's vocabulary alone",
        "experiments.pretrain.corpus:run_vocabulary",
        _RECIPE,
        cli.place("out", "folder of the vocabulary"),
    ),
    cli.command(
        "prepare",
        "write a recipe's corpus as shards of tokenized rows",
        "experiments.pretrain.corpus:run_prepare",
        _RECIPE,
        cli.place("corpus", "folder of the corpus; made, or continued where it exists"),
        cli.VOCABULARY,
        cli.count(
            "--processes N",
            "tokenize and pack in so many processes, one a core at most, half a gigabyte each; the "
            "files are the same for any number (default 1)",
            1,
        ),
        cli.argument(
            "--beam OPTION",
            "prepare with an Apache Beam pipeline and these options of it, such as "
            "runner=DataflowRunner project=NAME; the files are the same",
            nargs="+",
            default=(),
        ),
    ),
    cli.command(
        "train",
        "pre-train a recipe, or go on with an interrupted run",
        "experiments.pretrain.train:run",
        cli.recipe_to_train(
            _EXAMPLES,
            cli.place(
                "--init FROM",
                "go on from these weights, with their model and vocabulary: a pre-training run, "
                "hugging-face:DIR or keras-hub:DIR; heads that they lack are drawn",
            ),
        ),
        cli.place(
            "--corpus DIR",
            "a folder of `prepare`; by default the recipe's own is prepared in the cache",
        ),
        cli.VOCABULARY,
        cli.LOWER_CASE,
        cli.DATA_SERVICE,
        cli.switch(
            "--own-shards",
            "each worker reads its own shards of the corpus only; by default it reads all and "
            "takes its rows of each batch, so that any number of workers makes the same run",
        ),
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "evaluate",
        "loss and accuracy on a corpus's validation rows",
        "experiments.pretrain.evaluate:run",
        cli.TRAINED,
        cli.place("--corpus DIR", "a folder of `prepare`", required=True),
        cli.place("--output FILE", "JSON of the scores; in RUN/scores by default"),
        cli.count(
            "--memory M",
            "earlier positions that a run with a memory attends to; several are compared "
            "(default: the training's)",
            nargs="+",
        ),
        cli.count("--clamp N", "greater distances count as N (with a memory)"),
        cli.DEVICES,
    ),
    cli.command(
        "fill",
        "the likeliest words for each [MASK] of a text",
        "experiments.pretrain.evaluate:run_fill",
        cli.place("run", "folder of the run, hugging-face:DIR or keras-hub:DIR"),
        cli.checkpoint(),
        cli.LOWER_CASE,
        cli.argument("text", "texts with [MASK]; lines of stdin by default", nargs="*"),
        cli.count("--top N", "words for each [MASK] (default 5)", 5),
        cli.JSON,
    ),
    cli.recipes("experiments.pretrain.run:PretrainingRecipe"),
    cli.settings_of("experiments.pretrain.run:PretrainingRecipe"),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
