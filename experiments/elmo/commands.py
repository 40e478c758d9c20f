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
            "output .npz file for the vectors or, with --json, output JSON file (default with "
            "--json: stdout; without --json, the file is required)",
        ),
        cli.argument(
            "--layers",
            "layers whose vectors to write. 'all': a vector for each layer; 'mean': the mean over "
            "the layers; 'top': only the top layer (default: 'all')",
            choices=("all", "mean", "top"),
            default="all",
        ),
        cli.switch(
            "--tokenized",
            "split sentences into words only at white space (default: also separate punctuation "
            "from words)",
        ),
        cli.JSON,
    ),
    cli.command(
        "neighbours",
        "print the words and the occurrences in a corpus that are most similar to a word",
        "experiments.elmo.neighbours:run",
        cli.TRAINED,
        cli.argument(
            "word", "word whose nearest neighbours to find, spelled as in the sentences of --in"
        ),
        cli.argument(
            "--in SENTENCE",
            "sentences that contain the word; for each sentence, the command prints the "
            "occurrences with the most similar contextual vectors",
            dest="sentences",
            required=True,
            nargs="+",
        ),
        cli.path_argument(
            "--source",
            "sources of the documents to search for neighbours, such as text:books/*.txt (default: "
            "the training documents of the run)",
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
            "split on which to report F1, such as 'test'. The best epoch is always selected on the "
            "split 'dev' (default: 'dev')",
            default="dev",
        ),
        cli.argument(
            "--places",
            "positions at which ELMo's word vectors are concatenated. 'input': the input of the "
            "tagger's LSTM; 'output': the output of the LSTM; 'both': the input and the output. "
            "The command trains one tagger for each value (default: 'input')",
            choices=("input", "output", "both"),
            default=["input"],
            nargs="+",
            action=cli.Distinct,
        ),
        cli.count("--epochs N", "number of training epochs (default: 8)", 8),
        cli.count(
            "--seeds N",
            "random seeds; the command trains each tagger once with every seed (default: 1)",
            [1],
            minimum=0,
            nargs="+",
            action=cli.Distinct,
        ),
        cli.TFDS,
    ),
    cli.recipes("experiments.elmo.run:ElmoRecipe"),
    cli.settings_of("experiments.elmo.run:ElmoRecipe"),
)
