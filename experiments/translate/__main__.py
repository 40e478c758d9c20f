"""Translation from the first command to scores.

    python -m experiments.translate train multi30k_macaron_tiny runs/m30k --data-dir DIR
    python -m experiments.translate average runs/m30k
    python -m experiments.translate evaluate runs/m30k --checkpoint average
    echo "A man is riding a bike." | python -m experiments.translate translate runs/m30k

    python -m experiments.translate train multi30k_xlm_tiny runs/x --init runs/xlm --data-dir DIR
    python -m experiments.translate train multi30k_bart_tiny runs/b --init runs/bart --data-dir DIR

`train` resumes where an interrupted run stopped when the same command is given again.
"""

from experiments import command_line as cli
from macaron_tf.data.sources.names import PAIRS

_EXAMPLES = "training.max_steps=500 or data.source=tsv:pairs.tsv"
_RECIPE = cli.recipe(_EXAMPLES)
_RUN = cli.together(
    cli.RUN,
    cli.checkpoint(
        "average, best, last or a step's number (default: average where made, else best)"
    ),
    cli.count("--beam-size K", "hypotheses; the recipe's by default"),
    cli.switch("--backward", "from the target's language to the source's (an unsupervised run)"),
)

main = cli.program(
    "experiments.translate",
    __doc__,
    cli.command(
        "train",
        "train a recipe, or go on with an interrupted run",
        "experiments.translate.train:run",
        cli.recipe_to_train(
            _EXAMPLES,
            cli.group(
                "start from pre-trained weights, with their vocabulary",
                cli.place(
                    "--init RUN",
                    "a run of an encoder or a language model, copied into both stacks; or of BART "
                    "or T5, which reads the other language through a new encoder",
                ),
                cli.argument(
                    "--init-parts",
                    "parts that get the weights (default: encoder decoder; embeddings always do)",
                    nargs="+",
                    choices=("embeddings", "encoder", "decoder"),
                ),
                cli.place("--init-decoder RUN", "another run of that shape, for the decoder"),
            ),
        ),
        cli.VOCABULARY,
        cli.count(
            "--processes N",
            "tokenize in so many processes, half a gigabyte each; the batches are the same for any "
            "number (default: one a core)",
        ),
        cli.DATA_SERVICE,
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "vocabulary",
        "train a recipe's joint vocabulary alone",
        "experiments.translate.train:run_vocabulary",
        _RECIPE,
        cli.place("out", "folder for vocabulary.model and vocabulary.json"),
    ),
    cli.command(
        "average",
        "average the newest checkpoints of a run into RUN/average",
        "experiments.translate.evaluate:run_average",
        cli.RUN,
        cli.count("--last N", "number of checkpoints; the recipe's by default"),
    ),
    cli.command(
        "evaluate",
        "translate a test set and score it",
        "experiments.translate.evaluate:run",
        _RUN,
        cli.TFDS,
        cli.place("--source", "text to translate; the recipe's by default"),
        cli.argument(
            "--split",
            "by default the recipe's validation split; all of other files without {split}",
        ),
        cli.argument(
            "--source-language NAME",
            "the text's name of the source language, such as en_US; the recipe's by default",
        ),
        cli.argument("--target-language NAME", "the same of the target language"),
        cli.yes_or_no(
            "--lowercase", "score without regard to case, or with; the recipe's by default"
        ),
        cli.argument(
            "--tokenize NAME", "sacreBLEU's tokenizer, such as char; the recipe's by default"
        ),
        cli.place("--output DIR", "of scores and translations; RUN/scores by default"),
        cli.DEVICES,
    ),
    cli.command(
        "compare",
        "paired bootstrap between two evaluated outputs",
        "experiments.translate.evaluate:run_compare",
        cli.place("first", "a .json that `evaluate` wrote"),
        cli.place("second", "another, on the same text"),
        cli.count("--samples N", "resamplings (default 1000)", 1000),
        cli.count("--seed N", "of the resamplings (default 1)", 1, least=0),
    ),
    cli.command(
        "translate",
        "translate lines, in order, one line out for one line in",
        "experiments.translate.evaluate:translate",
        _RUN,
        cli.place("--input FILE", "lines to translate; stdin by default"),
        cli.place("--output FILE", "translations; stdout by default"),
        cli.count("--n-best N", "print N a line, with scores, in TSV", 1),
        cli.group(
            "sampling, instead of beam search",
            cli.count("--temperature T", "draw at this temperature; 0 is greedy", least=0.0),
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
