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

_FORMS = f"""sources of text pairs, for data.source and --source:
{cli.source_forms(PAIRS)}
The default FIELDs are the language codes data.source_language and data.target_language, or the
entries with these names in the field `translation`. homeassistant without LANG has the pairs of
English and the other language of the recipe.

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
        "checkpoint to load: average, best, last or the number of a step (default: average if the "
        "run has an average, otherwise best)"
    ),
    cli.count("--beam-size K", "width of the beam search (default: decoding.beam_size of the run)"),
    cli.switch(
        "--backward",
        "translate from the target language to the source language; allowed only for runs with "
        "unsupervised=True (default: from the source language to the target language)",
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
                    "pre-training run to start from (default: random weights). The weights of an "
                    "encoder or a language model initialize both the encoder and the decoder. A "
                    "BART or T5 keeps its encoder and decoder, and the command adds a new encoder "
                    "for the source language in front",
                ),
                cli.argument(
                    "--init-parts",
                    "parts to initialize with the weights of --init; the embeddings are always "
                    "initialized (default: encoder decoder)",
                    nargs="+",
                    choices=("embeddings", "encoder", "decoder"),
                ),
                cli.place(
                    "--init-decoder RUN",
                    "pre-training run whose weights initialize the decoder, while the weights of "
                    "--init initialize the encoder. Both models must have the same sizes and the "
                    "same vocabulary (default: the run of --init)",
                ),
            ),
        ),
        cli.place(
            "--vocabulary DIR",
            "folder of a saved vocabulary (default: the vocabulary of --init). A run without "
            "--init, and the new encoder for a BART or T5, get by default a new vocabulary that is "
            "trained on the training pairs",
        ),
        cli.count(
            "--processes N",
            "number of processes that tokenize, each of which takes 0.5 GB of memory. The batches "
            "do not depend on this number (default: one process per core)",
        ),
        cli.DATA_SERVICE,
        cli.CALLBACKS,
        cli.TRAINING_DEVICES,
    ),
    cli.command(
        "vocabulary",
        "train only the vocabulary of a recipe, which both languages share",
        "experiments.translate.train:run_vocabulary",
        _RECIPE,
        cli.place("out", "folder for the vocabulary: vocabulary.model and vocabulary.json"),
    ),
    cli.command(
        "average",
        "average the weights of the newest checkpoints into RUN/average",
        "experiments.translate.evaluate:run_average",
        cli.RUN,
        cli.count(
            "--last N", "number of checkpoints to average (default: average_last of the run)"
        ),
    ),
    cli.command(
        "evaluate",
        "translate a test set and score it",
        "experiments.translate.evaluate:run",
        _RUN,
        cli.TFDS,
        cli.place(
            "--source",
            "source of the text pairs, in a form below (default: data.source of the run)",
        ),
        cli.argument(
            "--split",
            "split to translate, such as test (default: data.validation_split of the run; for "
            "another --source without {split} in its name, the whole file)",
        ),
        cli.argument(
            "--source-language NAME",
            "name of the source language in the data, such as en_US (default: "
            "data.source_language of the run)",
        ),
        cli.argument(
            "--target-language NAME",
            "name of the target language in the data (default: data.target_language of the run)",
        ),
        cli.yes_or_no(
            "--lowercase",
            "whether the scores ignore case (default: metric.lowercase of the run)",
        ),
        cli.argument(
            "--tokenize NAME",
            "tokenizer of sacreBLEU, such as 13a or char (default: metric.tokenize of the run)",
        ),
        cli.place(
            "--output DIR", "folder for the scores and the translations (default: RUN/scores)"
        ),
        cli.DEVICES,
    ),
    cli.command(
        "compare",
        "compare the BLEU of two evaluations by a paired bootstrap test",
        "experiments.translate.evaluate:run_compare",
        cli.place("first", "JSON file that `evaluate` wrote for the first run"),
        cli.place("second", "JSON file that `evaluate` wrote for the second run on the same split"),
        cli.count("--samples N", "number of bootstrap samples (default: 1000)", 1000),
        cli.count("--seed N", "random seed of the bootstrap samples (default: 1)", 1, least=0),
    ),
    cli.command(
        "translate",
        "translate each line of a text",
        "experiments.translate.evaluate:translate",
        _RUN,
        cli.place("--input FILE", "file with one text to translate per line (default: stdin)"),
        cli.place("--output FILE", "file for the translations (default: stdout)"),
        cli.count(
            "--n-best N",
            "number of translations to print for each line. If N is greater than 1, an output line "
            "contains the score and the text of each translation, separated by tabs (default: 1)",
            1,
        ),
        cli.group(
            "sampling, instead of beam search",
            cli.count(
                "--temperature T",
                "sampling temperature; 0 means greedy decoding (default: beam search)",
                least=0.0,
            ),
            cli.DRAWING,
        ),
        cli.JSON,
        cli.DEVICES,
    ),
    cli.recipes("experiments.translate.run:TranslationRecipe"),
    cli.settings_of("experiments.translate.run:TranslationRecipe"),
    forms=_FORMS,
)

if __name__ == "__main__":
    raise SystemExit(main())
