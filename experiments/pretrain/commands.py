"""Pre-trains encoders, language models and encoder-decoders.

    macaron pretrain train bert_tiny runs/bert --data-dir DIR
    macaron pretrain fill runs/bert "the [MASK] of the story"

To prepare a corpus once and share it between several runs:

    macaron pretrain prepare bert_tiny corpora/mini --data-dir DIR
    macaron pretrain train swish_rnn_tiny runs/swish --corpus corpora/mini
    macaron pretrain evaluate runs/swish --corpus corpora/mini

To continue pre-training of a published model on your own text:

    macaron pretrain train bert_base runs/law --init hugging-face:bert-base-uncased \\
        --set corpus.sources=text:law/*.txt

To resume an interrupted `prepare` or `train`, give the same command again.
"""

from experiments import command_line as cli
from macaron_tf.data.sources.names import DOCUMENT_FORMS

_EXAMPLES = "training.max_steps=500 or corpus.sequence_length=256"
_RECIPE = cli.recipe(_EXAMPLES)
_FORMS = f"""sources of text, for --set corpus.sources=SOURCE:
{cli.source_forms(DOCUMENT_FORMS)}
A GLOB is the name of a file or a pattern such as books/*.txt. Text and JSON files may be compressed
(.gz, .bz2, .xz).

An element of corpus.sources can also be a tuple (SOURCE, SPLIT, WEIGHT, LANGUAGE). If LANGUAGE is a
pair such as ("en", "de"), the source has translation pairs. SOURCE is then tfds:NAME,
text:FILE,FILE, tsv:FILE, jsonl:FILE, parquet:FILE, datasets:DIR or homeassistant:LANG.
"""

main = cli.program(
    "macaron pretrain",
    __doc__,
    cli.command(
        "vocabulary",
        "train only the vocabulary of a recipe",
        "experiments.pretrain.corpus:run_vocabulary",
        _RECIPE,
        cli.path_argument("out", "output folder for the vocabulary"),
    ),
    cli.command(
        "prepare",
        "tokenize the corpus of a recipe, pack the tokens into rows, and write the rows as shards",
        "experiments.pretrain.corpus:run_prepare",
        _RECIPE,
        cli.path_argument(
            "corpus",
            "output folder for the prepared corpus; repeat the command to resume an interrupted "
            "preparation",
        ),
        cli.VOCABULARY,
        cli.count(
            "--processes N",
            "processes that prepare the corpus, at most one per CPU core, with 0.5 GB of RAM each. "
            "The files do not depend on their number (default: 1)",
            1,
        ),
        cli.argument(
            "--beam OPTION",
            "options of the pipeline, such as runner=DataflowRunner project=NAME, to prepare the "
            "corpus with Apache Beam (default: without Beam)",
            nargs="+",
            default=(),
        ),
    ),
    cli.command(
        "train",
        "pre-train a model by a recipe, or resume an interrupted run",
        "experiments.pretrain.train:run",
        cli.recipe_to_train(
            _EXAMPLES,
            cli.path_argument(
                "--init FROM",
                "model whose weights and vocabulary initialize the run, such as runs/bert or "
                "hugging-face:DIR; heads that it lacks get random weights (default: random "
                "weights)",
            ),
        ),
        cli.path_argument(
            "--corpus DIR",
            "folder of a corpus written by `prepare` (default: prepare it in the cache folder)",
        ),
        cli.path_argument(
            "--vocabulary DIR",
            "folder of a saved vocabulary; not allowed with --corpus or --init (default: their "
            "vocabulary or, without them, a new one trained on the corpus)",
        ),
        cli.LOWER_CASE,
        cli.switch(
            "--own-shards",
            "make each worker read only its own part of the shards. The batches then depend on the "
            "number of workers (default: each worker reads all shards and keeps its rows)",
        ),
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "evaluate",
        "print the loss and the accuracy on the validation rows of a corpus",
        "experiments.pretrain.evaluate:run",
        cli.TRAINED,
        cli.path_argument("--corpus DIR", "folder of a corpus written by `prepare`", required=True),
        cli.path_argument(
            "--output FILE", "output JSON file for the scores (default: a file in RUN/scores)"
        ),
        cli.count(
            "--memory M",
            "memory lengths to evaluate, in positions, for a run of Transformer-XL or XLNet "
            "(default: memory_length of the run)",
            nargs="+",
        ),
        cli.count(
            "--clamp N",
            "maximum relative distance in attention, for a run of Transformer-XL or XLNet "
            "(default: model.clamp_length of the run)",
        ),
        cli.DEVICES,
    ),
    cli.command(
        "fill",
        "print the most probable words for each [MASK] of a text",
        "experiments.pretrain.evaluate:run_fill",
        cli.path_argument("run", "folder of the run, or hugging-face:DIR, or keras-hub:DIR"),
        cli.checkpoint(),
        cli.LOWER_CASE,
        cli.argument("text", "texts that contain [MASK] (default: each line of stdin)", nargs="*"),
        cli.count("--top N", "number of words to print for each [MASK] (default: 5)", 5),
        cli.JSON,
    ),
    *cli.recipes("experiments.pretrain.run:PretrainingRecipe"),
    epilog=_FORMS,
)
