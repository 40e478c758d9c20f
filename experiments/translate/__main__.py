"""Trains and evaluates translation models, and translates text.

    python -m experiments.translate train multi30k_macaron_tiny runs/m30k --data-dir DIR
    python -m experiments.translate average runs/m30k
    python -m experiments.translate evaluate runs/m30k --checkpoint average
    echo "A man is riding a bike." | python -m experiments.translate translate runs/m30k

To start from a pre-trained language model (`runs/xlm`) or encoder-decoder (`runs/bart`):

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
        "checkpoint to load: average, best, last or the number of a step (default: average if the "
        "run has an average, otherwise best)"
    ),
    cli.count("--beam-size K", "beam size (default: decoding.beam_size of the recipe)"),
    cli.switch(
        "--backward",
        "translate from the target language to the source language; only runs with "
        "unsupervised=True support this direction",
    ),
)

main = cli.program(
    "experiments.translate",
    __doc__,
    cli.command(
        "train",
        "train a model by a recipe, or resume an interrupted run",
        "experiments.translate.train:run",
        cli.recipe_to_train(
            _EXAMPLES,
            cli.group(
                "start from pre-trained weights and their vocabulary",
                cli.place(
                    "--init RUN",
                    "pre-training run. The weights of an encoder or a language model initialize "
                    "both the encoder and the decoder. BART or T5 is kept as a whole and gets an "
                    "additional new encoder for the source language",
                ),
                cli.argument(
                    "--init-parts",
                    "parts to initialize with the weights, in addition to the embeddings "
                    "(default: encoder decoder)",
                    nargs="+",
                    choices=("embeddings", "encoder", "decoder"),
                ),
                cli.place(
                    "--init-decoder RUN",
                    "second pre-training run, whose weights initialize the decoder; both models "
                    "need the same sizes and the same vocabulary",
                ),
            ),
        ),
        cli.VOCABULARY,
        cli.count(
            "--processes N",
            "number of processes that tokenize, each with 0.5 GB of memory (default: one per "
            "core); the batches do not depend on this number",
        ),
        cli.DATA_SERVICE,
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "vocabulary",
        "train only the joint vocabulary of a recipe",
        "experiments.translate.train:run_vocabulary",
        _RECIPE,
        cli.place("out", "folder to write vocabulary.model and vocabulary.json to"),
    ),
    cli.command(
        "average",
        "average the weights of the newest checkpoints into RUN/average",
        "experiments.translate.evaluate:run_average",
        cli.RUN,
        cli.count("--last N", "number of checkpoints (default: average_last of the recipe)"),
    ),
    cli.command(
        "evaluate",
        "translate a test set and score it",
        "experiments.translate.evaluate:run",
        _RUN,
        cli.TFDS,
        cli.place(
            "--source",
            "source of the text pairs, in a form below (default: data.source of the recipe)",
        ),
        cli.argument(
            "--split",
            "split to translate (default: data.validation_split of the recipe; for another "
            "--source without {split} in its name, the whole file)",
        ),
        cli.argument(
            "--source-language NAME",
            "name of the source language in the data, such as en_US (default: "
            "data.source_language of the recipe)",
        ),
        cli.argument(
            "--target-language NAME",
            "name of the target language in the data (default: data.target_language of the recipe)",
        ),
        cli.yes_or_no(
            "--lowercase", "ignore case in the scores (default: metric.lowercase of the recipe)"
        ),
        cli.argument(
            "--tokenize NAME",
            "sacreBLEU tokenizer, such as char (default: metric.tokenize of the recipe)",
        ),
        cli.place(
            "--output DIR", "folder to write scores and translations to (default: RUN/scores)"
        ),
        cli.DEVICES,
    ),
    cli.command(
        "compare",
        "compare the BLEU of two evaluations by a paired bootstrap test",
        "experiments.translate.evaluate:run_compare",
        cli.place("first", "JSON file that `evaluate` wrote"),
        cli.place("second", "JSON file of another evaluation on the same test set"),
        cli.count("--samples N", "number of bootstrap samples (default: 1000)", 1000),
        cli.count("--seed N", "seed of the bootstrap samples (default: 1)", 1, least=0),
    ),
    cli.command(
        "translate",
        "translate text line by line, in order",
        "experiments.translate.evaluate:translate",
        _RUN,
        cli.place("--input FILE", "file with a text to translate in each line (default: stdin)"),
        cli.place("--output FILE", "file to write the translations to (default: stdout)"),
        cli.count(
            "--n-best N",
            "number of translations to print for each line; for N above 1, tabs separate the score "
            "and text of each translation (default: 1)",
            1,
        ),
        cli.group(
            "sampling, instead of beam search",
            cli.count("--temperature T", "temperature; 0 means greedy decoding", least=0.0),
            cli.DRAWING,
        ),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.recipes("experiments.translate.run:TranslationRecipe"),
    cli.settings_of("experiments.translate.run:TranslationRecipe"),
    forms="sources of text pairs:\n" + cli.source_forms(PAIRS),
)

if __name__ == "__main__":
    raise SystemExit(main())
