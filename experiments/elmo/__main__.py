"""Trains ELMo, a bidirectional language model, and uses its word vectors.

    python -m experiments.elmo train elmo_tiny runs/elmo --data-dir DIR
    python -m experiments.elmo evaluate runs/elmo --data-dir DIR
    python -m experiments.elmo embed runs/elmo --input lines.txt --output vectors.npz
    python -m experiments.elmo neighbours runs/elmo play --in "He made a play ." --data-dir DIR
    python -m experiments.elmo tag runs/elmo runs/elmo-conll --data-dir DIR
    python -m experiments.finetune train sst2 OUT --init runs/elmo --preset elmo --data-dir DIR

To resume an interrupted `train` or `tag`, give the same command again. `tag` trains a tagger of
CoNLL-2003's entities with the vectors and one without, and prints the F1 of both. For other tasks
use `experiments.finetune`.
"""

from experiments import command_line as cli

main = cli.program(
    "experiments.elmo",
    __doc__,
    cli.command(
        "train",
        "train a recipe, or resume an interrupted run",
        "experiments.elmo.run:run",
        cli.recipe_to_train("training.max_steps=500 or sources=text:books/*.gz"),
        cli.CALLBACKS,
        cli.DEVICES,
    ),
    cli.command(
        "evaluate",
        "print the perplexity on the documents that the run held out",
        "experiments.elmo.run:evaluate",
        cli.TRAINED,
        cli.TFDS,
    ),
    cli.command(
        "embed",
        "write the vectors of the words of sentences, as an .npz file or JSON",
        "experiments.elmo.run:run_embed",
        cli.TRAINED,
        cli.place("--input FILE", "file with one sentence per line (default: stdin)"),
        cli.place("--output FILE", "the .npz file to write; with --json stdout by default"),
        cli.argument(
            "--layers",
            "vectors of each word: all layers, their mean, or the last one (default all)",
            choices=("all", "mean", "top"),
            default="all",
        ),
        cli.switch("--tokenized", "split words at spaces only"),
        cli.JSON,
    ),
    cli.command(
        "neighbours",
        "print the nearest neighbours of a word, by its characters and in its context",
        "experiments.elmo.neighbours:run",
        cli.TRAINED,
        cli.argument("word", "the word, spelled as in the sentences"),
        cli.argument(
            "--in SENTENCE",
            "sentences that contain the word",
            dest="sentences",
            required=True,
            nargs="+",
        ),
        cli.place("--source", "documents to search (default: the run's)", nargs="+"),
        cli.count("--limit N", "number of sentences to search (default 2000)", 2000),
        cli.count("--count N", "number of neighbours to show (default 5)", 5),
        cli.TFDS,
    ),
    cli.command(
        "tag",
        "train a tagger of entities with the vectors, and one without",
        "experiments.elmo.tag:run",
        cli.TRAINED,
        cli.place("out", "folder of the runs and results"),
        cli.place("--source", "tfds:NAME or conll:FILE (default: conll2003_ner)"),
        cli.argument(
            "--split",
            "split to score on (default dev, which also chooses the best epoch)",
            default="dev",
        ),
        cli.argument(
            "--places",
            "where the tagger's LSTM gets the vectors, at its input, its output or both; a tagger "
            "is trained for each place (default input)",
            choices=("input", "output", "both"),
            default=["input"],
            nargs="+",
            action=cli.Distinct,
        ),
        cli.count("--epochs N", "passes over the sentences (default 8)", 8),
        cli.count(
            "--seeds N",
            "seeds of the taggers (default 1)",
            [1],
            least=0,
            nargs="+",
            action=cli.Distinct,
        ),
        cli.TFDS,
    ),
    cli.recipes("experiments.elmo.run:ElmoRecipe"),
    cli.settings_of("experiments.elmo.run:ElmoRecipe"),
)

if __name__ == "__main__":
    raise SystemExit(main())
