"""ELMo: a language model in both directions, and the F1 that its vectors add to a tagger.

    python -m experiments.elmo train elmo_tiny runs/elmo --data-dir DIR
    python -m experiments.elmo evaluate runs/elmo --data-dir DIR
    python -m experiments.elmo embed runs/elmo --input lines.txt --output vectors.npz
    python -m experiments.elmo neighbours runs/elmo play --in "He made a play ." --data-dir DIR
    python -m experiments.elmo tag runs/elmo runs/elmo-conll --data-dir DIR
    python -m experiments.finetune train sst2 OUT --init runs/elmo --preset elmo --data-dir DIR

`train` and `tag` go on where they were interrupted when the same command is given again. `tag`
trains a tagger of CoNLL-2003's entities with the vectors and one without, and prints both F1;
classes, scores, spans and tags of any task are `experiments.finetune`'s.
"""

from experiments import command_line as cli

main = cli.program(
    "experiments.elmo",
    __doc__,
    cli.command(
        "train",
        "train a recipe, or go on with an interrupted run",
        "experiments.elmo.run:run",
        cli.recipe_to_train("training.max_steps=500 or sources=text:books/*.gz"),
        cli.CALLBACKS,
        cli.DEVICES,
    ),
    cli.command(
        "evaluate",
        "perplexity on the documents that the run held out",
        "experiments.elmo.run:evaluate",
        cli.TRAINED,
        cli.TFDS,
    ),
    cli.command(
        "embed",
        "the vectors of the words of some lines, as an .npz or JSON",
        "experiments.elmo.run:run_embed",
        cli.TRAINED,
        cli.place("--input FILE", "a sentence a line; stdin by default"),
        cli.place("--output FILE", "the .npz to write; of --json stdout by default"),
        cli.argument(
            "--layers",
            "all layers of each word (default), their mean, or the last one",
            choices=("all", "mean", "top"),
            default="all",
        ),
        cli.switch("--tokenized", "words are separated by spaces already"),
        cli.JSON,
    ),
    cli.command(
        "neighbours",
        "the nearest neighbours of a word: words by its letters, and occurrences by its context",
        "experiments.elmo.neighbours:run",
        cli.TRAINED,
        cli.argument("word", "the word, as it stands in each sentence"),
        cli.argument(
            "--in SENTENCE", "sentences with it", dest="sentences", required=True, nargs="+"
        ),
        cli.place("--source", "documents to look in; the run's own by default", nargs="+"),
        cli.count("--limit N", "look in so many sentences (default 2000)", 2000),
        cli.count("--count N", "show so many of each (default 5)", 5),
        cli.TFDS,
    ),
    cli.command(
        "tag",
        "a tagger of entities with the vectors, and one without",
        "experiments.elmo.tag:run",
        cli.TRAINED,
        cli.place("out", "folder of runs and results"),
        cli.place("--source", "tfds:NAME or conll:FILE; conll2003_ner by default"),
        cli.argument(
            "--split", "the split to score on (default dev, which chooses the epoch)", default="dev"
        ),
        cli.argument(
            "--places",
            "where a tagger has the vectors: beside its LSTM's input (default), its output, or "
            "both, with weights of the layers for each; a tagger for each place given",
            choices=("input", "output", "both"),
            default=["input"],
            nargs="+",
            action=cli.Distinct,
        ),
        cli.count("--epochs N", "passes over the sentences (default 8)", 8),
        cli.count("--seeds N", "default 1", [1], least=0, nargs="+", action=cli.Distinct),
        cli.TFDS,
    ),
    cli.recipes("experiments.elmo.run:ElmoRecipe"),
    cli.settings_of("experiments.elmo.run:ElmoRecipe"),
)

if __name__ == "__main__":
    raise SystemExit(main())
