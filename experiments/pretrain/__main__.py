"""Pre-trains encoders, language models and encoder-decoders.

    python -m experiments.pretrain train bert_tiny runs/bert --data-dir DIR
    python -m experiments.pretrain fill runs/bert "the [MASK] of the story"

To prepare a corpus once and share it between several runs:

    python -m experiments.pretrain prepare bert_tiny corpora/mini --data-dir DIR
    python -m experiments.pretrain train swish_rnn_tiny runs/swish --corpus corpora/mini
    python -m experiments.pretrain evaluate runs/swish --corpus corpora/mini

To continue with a pre-trained model on your own text:

    python -m experiments.pretrain train bert_base runs/law --init hugging-face:bert-base-uncased \\
        --set corpus.sources=text:law/*.txt

To resume an interrupted `prepare` or `train`, give the same command again.
"""

from experiments import command_line as cli
from macaron_tf.data.sources.names import DOCUMENTS

_EXAMPLES = "training.max_steps=500 or corpus.sequence_length=256"
_RECIPE = cli.recipe(_EXAMPLES)
_FORMS = f"""sources of text, in corpus.sources:
{cli.source_forms(DOCUMENTS)}
or (NAME, SPLIT, WEIGHT, LANGUAGE). If LANGUAGE is a pair, ("en", "de"), the source has translation
pairs, from tfds:NAME, text:FILE,FILE, tsv:FILE, jsonl:FILE, parquet:FILE, datasets:DIR or
homeassistant:LANG
"""

main = cli.program(
    "experiments.pretrain",
    __doc__,
    cli.command(
        "vocabulary",
        "only train a recipe's vocabulary",
        "experiments.pretrain.corpus:run_vocabulary",
        _RECIPE,
        cli.place("out", "folder of the vocabulary"),
    ),
    cli.command(
        "prepare",
        "write a recipe's corpus as shards of tokenized rows",
        "experiments.pretrain.corpus:run_prepare",
        _RECIPE,
        cli.place("corpus", "folder of the corpus; an interrupted one is continued"),
        cli.VOCABULARY,
        cli.count(
            "--processes N",
            "processes that tokenize and pack, at most one per core, with 0.5 GB of memory each; "
            "the files do not depend on it (default 1)",
            1,
        ),
        cli.argument(
            "--beam OPTION",
            "prepare with an Apache Beam pipeline that has these options, such as "
            "runner=DataflowRunner project=NAME; the files are the same as without",
            nargs="+",
            default=(),
        ),
    ),
    cli.command(
        "train",
        "pre-train a recipe, or resume an interrupted run",
        "experiments.pretrain.train:run",
        cli.recipe_to_train(
            _EXAMPLES,
            cli.place(
                "--init FROM",
                "start from these weights, with their model and vocabulary: a pre-training run, "
                "hugging-face:DIR or keras-hub:DIR; missing heads get random weights",
            ),
        ),
        cli.place(
            "--corpus DIR",
            "folder that `prepare` wrote (default: the recipe's corpus is prepared in the cache)",
        ),
        cli.VOCABULARY,
        cli.LOWER_CASE,
        cli.DATA_SERVICE,
        cli.switch(
            "--own-shards",
            "let each worker read only its own shards of the corpus; by default it reads all and "
            "takes its rows of each batch, so that the run does not depend on the number of "
            "workers",
        ),
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "evaluate",
        "print loss and accuracy on a corpus's validation rows",
        "experiments.pretrain.evaluate:run",
        cli.TRAINED,
        cli.place("--corpus DIR", "folder that `prepare` wrote", required=True),
        cli.place("--output FILE", "JSON file for the scores (default: a file in RUN/scores)"),
        cli.count(
            "--memory M",
            "length of the memory, for a run that has one; several lengths are compared (default: "
            "the length of the training)",
            nargs="+",
        ),
        cli.count("--clamp N", "treat greater distances as N, for a run with a memory"),
        cli.DEVICES,
    ),
    cli.command(
        "fill",
        "print the most probable words for each [MASK] of a text",
        "experiments.pretrain.evaluate:run_fill",
        cli.place("run", "folder of the run, hugging-face:DIR or keras-hub:DIR"),
        cli.checkpoint(),
        cli.LOWER_CASE,
        cli.argument("text", "texts with [MASK] (default: the lines of stdin)", nargs="*"),
        cli.count("--top N", "number of words for each [MASK] (default 5)", 5),
        cli.JSON,
    ),
    cli.recipes("experiments.pretrain.run:PretrainingRecipe"),
    cli.settings_of("experiments.pretrain.run:PretrainingRecipe"),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
