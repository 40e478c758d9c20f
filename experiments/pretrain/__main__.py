"""Pre-trains encoders, language models and encoder-decoders.

    python -m experiments.pretrain train bert_tiny runs/bert --data-dir DIR
    python -m experiments.pretrain fill runs/bert "the [MASK] of the story"

To prepare a corpus once and share it between several runs:

    python -m experiments.pretrain prepare bert_tiny corpora/mini --data-dir DIR
    python -m experiments.pretrain train swish_rnn_tiny runs/swish --corpus corpora/mini
    python -m experiments.pretrain evaluate runs/swish --corpus corpora/mini

To continue pre-training of a published model on your own text:

    python -m experiments.pretrain train bert_base runs/law --init hugging-face:bert-base-uncased \\
        --set corpus.sources=text:law/*.txt

To resume an interrupted `prepare` or `train`, give the same command again.
"""

from experiments import command_line as cli
from macaron_tf.data.sources.names import DOCUMENTS

_EXAMPLES = "training.max_steps=500 or corpus.sequence_length=256"
_RECIPE = cli.recipe(_EXAMPLES)
_FORMS = f"""sources of text in corpus.sources:
{cli.source_forms(DOCUMENTS)}
A source can also be a tuple (NAME, SPLIT, WEIGHT, LANGUAGE). If LANGUAGE is a pair such as
("en", "de"), the source has translation pairs, and NAME is tfds:NAME, text:FILE,FILE, tsv:FILE,
jsonl:FILE, parquet:FILE, datasets:DIR or homeassistant:LANG.
"""

main = cli.program(
    "experiments.pretrain",
    __doc__,
    cli.command(
        "vocabulary",
        "train only the vocabulary of a recipe",
        "experiments.pretrain.corpus:run_vocabulary",
        _RECIPE,
        cli.place("out", "folder to write the vocabulary to"),
    ),
    cli.command(
        "prepare",
        "tokenize the corpus of a recipe and write it as shards of rows",
        "experiments.pretrain.corpus:run_prepare",
        _RECIPE,
        cli.place(
            "corpus", "folder to write the corpus to; an interrupted `prepare` continues there"
        ),
        cli.VOCABULARY,
        cli.count(
            "--processes N",
            "number of processes that tokenize and pack, at most one per core, each with 0.5 GB of "
            "memory (default: 1); the files do not depend on this number",
            1,
        ),
        cli.argument(
            "--beam OPTION",
            "options of an Apache Beam pipeline that prepares the corpus, such as "
            "runner=DataflowRunner project=NAME (default: do not use Beam)",
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
            cli.place(
                "--init FROM",
                "pre-trained model that provides the initial weights and the vocabulary: a "
                "pre-training run, hugging-face:DIR or keras-hub:DIR; heads that the model lacks "
                "get random weights",
            ),
        ),
        cli.place(
            "--corpus DIR",
            "folder that `prepare` wrote (default: `train` prepares the corpus of the recipe in a "
            "cache folder)",
        ),
        cli.VOCABULARY,
        cli.LOWER_CASE,
        cli.DATA_SERVICE,
        cli.switch(
            "--own-shards",
            "let each worker read only its own shards of the corpus (default: each worker reads "
            "all shards and keeps its rows of each batch, so that the batches do not depend on the "
            "number of workers)",
        ),
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "evaluate",
        "print loss and accuracy on the validation rows of a corpus",
        "experiments.pretrain.evaluate:run",
        cli.TRAINED,
        cli.place("--corpus DIR", "folder that `prepare` wrote", required=True),
        cli.place(
            "--output FILE", "JSON file to write the scores to (default: a file in RUN/scores)"
        ),
        cli.count(
            "--memory M",
            "memory length in positions, for a run with a memory (Transformer-XL, XLNet); several "
            "lengths are evaluated in turn (default: memory_length of the run)",
            nargs="+",
        ),
        cli.count(
            "--clamp N",
            "maximum relative distance in attention, for a run with a memory; greater distances "
            "count as N (default: model.clamp_length of the run)",
        ),
        cli.DEVICES,
    ),
    cli.command(
        "fill",
        "print the most probable words for each [MASK] of a text",
        "experiments.pretrain.evaluate:run_fill",
        cli.place("run", "folder of the run, or hugging-face:DIR or keras-hub:DIR"),
        cli.checkpoint(),
        cli.LOWER_CASE,
        cli.argument("text", "texts that contain [MASK] (default: the lines of stdin)", nargs="*"),
        cli.count("--top N", "number of words to print for each [MASK] (default: 5)", 5),
        cli.JSON,
    ),
    cli.recipes("experiments.pretrain.run:PretrainingRecipe"),
    cli.settings_of("experiments.pretrain.run:PretrainingRecipe"),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
