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
        "checkpoint to load: 'average', 'best', 'last' or the number of a training step (default: "
        "'average' if the run has averaged weights of its newest checkpoints; otherwise 'best', or "
        "'last' if the run was never validated)"
    ),
    cli.count(
        "--beam-size K",
        "width of the beam search (default: the setting decoding.beam_size of the run)",
    ),
    cli.switch(
        "--backward",
        "translate from the target language to the source language; allowed only for runs with "
        "unsupervised=True (default: from the source language to the target language)",
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
                    "pre-trained model to start from, such as runs/bert or hugging-face:DIR. The "
                    "weights of an encoder or a language model initialize both the encoder and the "
                    "decoder. A BART or T5, which must be a pre-training run, becomes the "
                    "translation model; an additional encoder with random weights then reads the "
                    "source text, and its output replaces the token embeddings of the BART or T5 "
                    "(default: random weights for the whole model)",
                ),
                cli.argument(
                    "--init-parts",
                    "parts of the model to initialize with the weights of --init. The embeddings "
                    "are always initialized; give 'embeddings' alone to initialize nothing else "
                    "(default: 'encoder' and 'decoder')",
                    nargs="+",
                    choices=("embeddings", "encoder", "decoder"),
                ),
                cli.path_argument(
                    "--init-decoder LOCATION",
                    "pre-trained model whose weights initialize the decoder; the weights of --init "
                    "then initialize only the encoder and the embeddings. Both pre-trained models "
                    "must have the same sizes and the same vocabulary (default: the model of "
                    "--init)",
                ),
            ),
        ),
        cli.path_argument(
            "--vocabulary DIR",
            "folder of a saved vocabulary. If --init is a BART or T5 model, the vocabulary is used "
            "only for the source language (default: the vocabulary of an encoder or language model "
            "in --init; otherwise, a new vocabulary trained on the training pairs, or only on "
            "their source side if --init is a BART or T5 model)",
        ),
        cli.count(
            "--processes N",
            "number of processes that tokenize the training pairs. Each process takes 0.5 GB of "
            "RAM. The batches do not depend on the number of processes (default: one process "
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
            "--last N",
            "number of newest checkpoints to average (default: the setting average_last of the "
            "run)",
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
            "--source",
            "source of the text pairs, such as tsv:FILE (default: the setting data.source of the "
            "run)",
        ),
        cli.argument(
            "--split",
            "split to translate, such as 'test' (default: the setting data.validation_split of the "
            "run). If --source is a file that the run was not trained on, without {split} in its "
            "name, the default is the whole file",
        ),
        cli.argument(
            "--source-language NAME",
            "name of the source language in the data, such as 'en' or 'en_US' (default: the "
            "setting data.source_language of the run)",
        ),
        cli.argument(
            "--target-language NAME",
            "name of the target language in the data, such as 'de' or 'de_DE' (default: the "
            "setting data.target_language of the run)",
        ),
        cli.yes_or_no(
            "--lowercase",
            "whether the scores ignore case (default: the setting metric.lowercase of the run)",
        ),
        cli.argument(
            "--tokenize NAME",
            "name of sacreBLEU's tokenizer, such as '13a' or 'char' (default: the setting "
            "metric.tokenize of the run)",
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
        cli.path_argument(
            "second",
            "JSON file written by `evaluate` for the second run, on the same split as the first "
            "run",
        ),
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
            "number of translations to print for each line. If N is greater than 1, each output "
            "line contains the scores and the texts of N translations, separated by tabs (default: "
            "1)",
            1,
        ),
        cli.group(
            "sampling, instead of beam search",
            cli.count(
                "--temperature T",
                "temperature of sampling, which replaces beam search; 0 means greedy decoding "
                "(default: beam search)",
                minimum=0.0,
            ),
            cli.SAMPLING,
        ),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.recipes("experiments.translate.run:TranslationRecipe"),
    cli.settings_of("experiments.translate.run:TranslationRecipe"),
    epilog=_FORMS,
)
