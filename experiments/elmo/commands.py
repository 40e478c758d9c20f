"""Trains ELMo, a bidirectional language model, and applies its contextual word vectors.

    macaron elmo train elmo_tiny runs/elmo --data-dir DIR
    macaron elmo evaluate runs/elmo --data-dir DIR
    macaron elmo embed runs/elmo --input lines.txt --output vectors.npz
    macaron elmo neighbours runs/elmo play --in "He made a play ." --data-dir DIR
    macaron elmo tag runs/elmo runs/elmo-conll --data-dir DIR
    macaron finetune train sst2 OUT --init runs/elmo --preset elmo --data-dir DIR

To resume an interrupted `train` or `tag`, give the same command again. `tag` trains named entity
taggers on CoNLL-2003, with and without ELMo's vectors, and prints the F1 of each tagger. For other
tasks, use `macaron finetune`.
"""

from experiments import command_line as cli

main = cli.program(
    "macaron elmo",
    __doc__,
    cli.command(
        "train",
        "train an ELMo by a recipe, or resume an interrupted run",
        "experiments.elmo.run:run",
        cli.recipe_to_train("training.max_steps=500 or sources=text:books/*.gz"),
        cli.CALLBACKS,
        cli.DEVICES,
    ),
    cli.command(
        "evaluate",
        "print the perplexity on the held-out documents of the run",
        "experiments.elmo.run:evaluate",
        cli.TRAINED,
        cli.TFDS,
    ),
    cli.command(
        "embed",
        "write the word vectors of sentences to an .npz file or as JSON",
        "experiments.elmo.run:run_embed",
        cli.TRAINED,
        cli.path_argument("--input FILE", "file with one sentence per line (default: stdin)"),
        cli.path_argument(
            "--output FILE",
            "output .npz file with the vectors of every layer, or JSON file with --json (default "
            "with --json: stdout)",
        ),
        cli.switch(
            "--tokenized", "split sentences only at white space, and not at punctuation too"
        ),
        cli.JSON,
    ),
    cli.command(
        "neighbours",
        "print the words and the occurrences in a corpus that are most similar to a word",
        "experiments.elmo.neighbours:run",
        cli.TRAINED,
        cli.argument("word", "word whose neighbours to find, spelled as in --in"),
        cli.argument(
            "--in SENTENCE",
            "sentences that contain the word, each compared with its occurrences in the corpus",
            dest="sentences",
            required=True,
            nargs="+",
        ),
        cli.path_argument(
            "--source",
            "sources of the documents to search, such as text:books/*.txt (default: the run's "
            "training documents)",
            nargs="+",
        ),
        cli.count("--limit N", "maximum number of sentences to search (default: 2000)", 2000),
        cli.count("--count N", "number of neighbours to print for each vector (default: 5)", 5),
        cli.TFDS,
    ),
    cli.command(
        "tag",
        "train named entity taggers with and without ELMo's word vectors",
        "experiments.elmo.tag:run",
        cli.extra("train"),
        cli.TRAINED,
        cli.path_argument("out", "output folder for the training runs and the report"),
        cli.path_argument(
            "--source",
            "source of tagged sentences, as tfds:NAME or conll:FILE (default: tfds:conll2003_ner)",
        ),
        cli.argument(
            "--split",
            "split whose F1 to report; the best epoch is selected on 'dev' (default: 'dev')",
            default="dev",
        ),
        cli.argument(
            "--places",
            "where ELMo's vectors are concatenated: to the 'input' of the tagger's LSTM, to its "
            "'output', or to 'both'; the command trains a tagger for each value (default: 'input')",
            choices=("input", "output", "both"),
            default=["input"],
            nargs="+",
            action=cli.Distinct,
        ),
        cli.count("--epochs N", "number of training epochs (default: 8)", 8),
        cli.seeds([1], "random seeds; the command trains each tagger with every seed"),
        cli.TFDS,
    ),
    *cli.recipes("experiments.elmo.run:ElmoRecipe"),
)
