"""Trains translators, scores them, and translates text.

    python -m experiments.translate train multi30k_macaron_tiny runs/m30k --data-dir DIR
    python -m experiments.translate average runs/m30k
    python -m experiments.translate evaluate runs/m30k --checkpoint average
    echo "A man is riding a bike." | python -m experiments.translate translate runs/m30k

    python -m experiments.translate train multi30k_xlm_tiny runs/x --init runs/xlm --data-dir DIR
    python -m experiments.translate train multi30k_bart_tiny runs/b --init runs/bart --data-dir DIR

To resume an interrupted `train`, give the same command again.
"""

from experiments import command_line as cli
from macaron_tf.data.sources.names import PAIRS

_EXAMPLES = "training.max_steps=500 or data.source=tsv:pairs.tsv"
_RECIPE = cli.recipe(_EXAMPLES)
_RUN = cli.together(
    cli.RUN,
    cli.checkpoint(
        "average, best, last or a step's number (default: average if there is one, else best)"
    ),
    cli.count("--beam-size K", "hypotheses of beam search (default: the recipe's)"),
    cli.switch(
        "--backward",
        "translate from the target's language to the source's, which an unsupervised run can",
    ),
)

main = cli.program(
    "experiments.translate",
    __doc__,
    cli.command(
        "train",
        "train a recipe, or resume an interrupted run",
        "experiments.translate.train:run",
        cli.recipe_to_train(
            _EXAMPLES,
            cli.group(
                "start from pre-trained weights, with their vocabulary",
                cli.place(
                    "--init RUN",
                    "a run of an encoder or a language model, whose weights both encoder and "
                    "decoder get; or a run of BART or T5, which reads the source language through "
                    "an additional new encoder",
                ),
                cli.argument(
                    "--init-parts",
                    "parts that get the weights (default: encoder decoder; the embeddings always "
                    "get them)",
                    nargs="+",
                    choices=("embeddings", "encoder", "decoder"),
                ),
                cli.place("--init-decoder RUN", "another run of equal shape, for the decoder"),
            ),
        ),
        cli.VOCABULARY,
        cli.count(
            "--processes N",
            "processes that tokenize, with 0.5 GB of memory each; the batches do not depend on it "
            "(default: one per core)",
        ),
        cli.DATA_SERVICE,
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "vocabulary",
        "only train a recipe's joint vocabulary",
        "experiments.translate.train:run_vocabulary",
        _RECIPE,
        cli.place("out", "folder for vocabulary.model and vocabulary.json"),
    ),
    cli.command(
        "average",
        "average the newest checkpoints of a run into RUN/average",
        "experiments.translate.evaluate:run_average",
        cli.RUN,
        cli.count("--last N", "number of checkpoints (default: the recipe's)"),
    ),
    cli.command(
        "evaluate",
        "translate a test set and score it",
        "experiments.translate.evaluate:run",
        _RUN,
        cli.TFDS,
        cli.place("--source", "source of the text pairs, see below (default: the recipe's)"),
        cli.argument(
            "--split",
            "split to translate (default: the recipe's validation split, or all of another file "
            "without {split})",
        ),
        cli.argument(
            "--source-language NAME",
            "name of the source language in the text, such as en_US (default: the recipe's)",
        ),
        cli.argument(
            "--target-language NAME",
            "name of the target language in the text (default: the recipe's)",
        ),
        cli.yes_or_no("--lowercase", "ignore case in scores (default: the recipe's)"),
        cli.argument(
            "--tokenize NAME", "tokenizer of sacreBLEU, such as char (default: the recipe's)"
        ),
        cli.place("--output DIR", "folder for scores and translations (default: RUN/scores)"),
        cli.DEVICES,
    ),
    cli.command(
        "compare",
        "test the difference of two evaluations by paired bootstrap",
        "experiments.translate.evaluate:run_compare",
        cli.place("first", "a .json file that `evaluate` wrote"),
        cli.place("second", "another .json file, for the same text"),
        cli.count("--samples N", "number of bootstrap samples (default 1000)", 1000),
        cli.count("--seed N", "seed of the bootstrap samples (default 1)", 1, least=0),
    ),
    cli.command(
        "translate",
        "translate text line by line, in order",
        "experiments.translate.evaluate:translate",
        _RUN,
        cli.place("--input FILE", "lines to translate (default: stdin)"),
        cli.place("--output FILE", "file of the translations (default: stdout)"),
        cli.count("--n-best N", "print N scores and translations per line, separated by tabs", 1),
        cli.group(
            "sampling, instead of beam search",
            cli.count("--temperature T", "sample at this temperature; 0 is greedy", least=0.0),
            cli.DRAWING,
        ),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.recipes("experiments.translate.run:TranslationRecipe"),
    cli.settings_of("experiments.translate.run:TranslationRecipe"),
    forms="sources of text:\n" + cli.source_forms(PAIRS),
)

if __name__ == "__main__":
    raise SystemExit(main())
