"""Trains and evaluates translation models, and translates text.

    macaron translate train multi30k_macaron_tiny runs/m30k --data-dir DIR
    macaron translate average runs/m30k
    macaron translate evaluate runs/m30k --checkpoint average
    echo "A man is riding a bike." | macaron translate translate runs/m30k

To start from a pre-trained language model (`runs/xlm`) or encoder-decoder (`runs/bart`):

    macaron translate train multi30k_xlm_tiny runs/x --init runs/xlm --data-dir DIR
    macaron translate train multi30k_bart_tiny runs/b --init runs/bart --data-dir DIR

To resume an interrupted `train`, give the same command again.
"""

from experiments import command_line as cli
from macaron_tf.data.sources.names import PAIR_FORMS

_FORMS = f"""sources of text pairs, for data.source and --source:
{cli.source_forms(PAIR_FORMS)}
The language codes are the settings data.source_language and data.target_language. If the records
have no fields with the language codes as names, the command reads the entries with these names in
the field `translation`, as in {{"translation": {{"en": "...", "de": "..."}}}}.

In the name of a file, as in tsv:pairs.{{split}}.tsv, {{split}} stands for train or validation (the
values of data.train_split and data.validation_split). If the name has no {{split}}, the command
holds out a tenth of the pairs for validation, but at most 2,000 pairs. data.held_out sets another
fraction. Text, TSV, CSV and JSON files may be compressed (.gz, .bz2, .xz).
"""
_EXAMPLES = "training.max_steps=500 or data.source=tsv:pairs.tsv"
_RECIPE = cli.recipe(_EXAMPLES)
_RUN = cli.together(
    cli.RUN,
    cli.checkpoint(
        "checkpoint: 'average', 'best', 'last' or a training step (default: the first of average, "
        "best and last that exists)"
    ),
    cli.count("--beam-size K", "width of the beam search (default: decoding.beam_size of the run)"),
    cli.switch(
        "--backward",
        "translate from the target language to the source language, with runs of unsupervised=True",
    ),
)

main = cli.program(
    "macaron translate",
    __doc__,
    cli.command(
        "train",
        "train a model by a recipe, or resume an interrupted run",
        "experiments.translate.train:run",
        cli.recipe_to_train(
            _EXAMPLES,
            cli.group(
                "initialization with a pre-trained model and its vocabulary",
                cli.path_argument(
                    "--init LOCATION",
                    "pre-trained model to start from, such as runs/bert or hugging-face:DIR. An "
                    "encoder or a language model initializes both the encoder and the decoder. A "
                    "pre-training run of BART or T5 becomes the translation model, with a new "
                    "encoder of the source text before it (default: random weights)",
                ),
                cli.argument(
                    "--init-parts",
                    "parts to initialize besides the embeddings; 'embeddings' alone means no other "
                    "(default: 'encoder' and 'decoder')",
                    nargs="+",
                    choices=("embeddings", "encoder", "decoder"),
                ),
                cli.path_argument(
                    "--init-decoder LOCATION",
                    "second pre-trained model, of equal sizes and vocabulary, for the decoder "
                    "(default: the model of --init)",
                ),
            ),
        ),
        cli.path_argument(
            "--vocabulary DIR",
            "folder of a saved vocabulary; with a BART or T5 in --init, only for the source "
            "language (default: the vocabulary of --init, or a new one trained on the pairs)",
        ),
        cli.count(
            "--processes N",
            "processes that tokenize the training pairs, with 0.5 GB of RAM each (default: one "
            "per CPU core)",
        ),
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "vocabulary",
        "train only the vocabulary of a recipe, for both languages together",
        "experiments.translate.train:run_vocabulary",
        _RECIPE,
        cli.path_argument(
            "out", "output folder for the files vocabulary.model and vocabulary.json"
        ),
    ),
    cli.command(
        "average",
        "average the weights of the newest checkpoints, and write the result to RUN/average",
        "experiments.translate.evaluate:run_average",
        cli.RUN,
        cli.count(
            "--last N", "number of checkpoints to average (default: average_last of the run)"
        ),
    ),
    cli.command(
        "evaluate",
        "translate a split of the data, and score the translations",
        "experiments.translate.evaluate:run",
        cli.extra("evaluate"),
        _RUN,
        cli.TFDS,
        cli.path_argument(
            "--source", "source of the text pairs, such as tsv:FILE (default: that of the run)"
        ),
        cli.argument(
            "--split",
            "split to translate, such as 'test' (default: the run's validation split, or the whole "
            "of another file without {split} in its name)",
        ),
        cli.argument(
            "--source-language NAME", "source language in the data (default: that of the run)"
        ),
        cli.argument(
            "--target-language NAME", "target language in the data (default: that of the run)"
        ),
        cli.yes_or_no("--lowercase", "whether the scores ignore case (default: as in the run)"),
        cli.argument(
            "--tokenize NAME",
            "sacreBLEU's tokenizer, such as '13a' or 'char' (default: as in the run)",
        ),
        cli.path_argument(
            "--output DIR", "folder for the scores and the translations (default: RUN/scores)"
        ),
        cli.DEVICES,
    ),
    cli.command(
        "compare",
        "compare the BLEU of two evaluations by a paired bootstrap test",
        "experiments.translate.evaluate:run_compare",
        cli.path_argument("first", "JSON file written by `evaluate` for the first run"),
        cli.path_argument("second", "JSON file for the second run, on the same split"),
        cli.count("--samples N", "number of bootstrap samples (default: 1000)", 1000),
        cli.count("--seed N", "random seed of the bootstrap samples (default: 1)", 1, minimum=0),
    ),
    cli.command(
        "translate",
        "translate each line of a text",
        "experiments.translate.evaluate:translate",
        _RUN,
        cli.path_argument(
            "--input FILE", "file with one text per line to translate (default: stdin)"
        ),
        cli.path_argument("--output FILE", "output file for the translations (default: stdout)"),
        cli.count(
            "--n-best N",
            "translations of each line; if N is greater than 1, a line has N scores and texts, "
            "separated by tabs (default: 1)",
            1,
        ),
        cli.group(
            "sampling, instead of beam search",
            cli.count(
                "--temperature T",
                "temperature of sampling; 0 means greedy decoding (default: beam search)",
                minimum=0.0,
            ),
            cli.SAMPLING,
        ),
        cli.JSON,
        cli.DEVICES,
    ),
    *cli.recipes("experiments.translate.run:TranslationRecipe"),
    epilog=_FORMS,
)
