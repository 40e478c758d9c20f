"""Compares encoders, language models and encoder-decoders of one small size on equal token counts.

    python -m experiments.lab.slides encoders study --data-dir DIR
    python -m experiments.lab.slides decoders study --data-dir DIR
    python -m experiments.lab.slides sentences study --init runs/bert --data-dir DIR

The command `encoders` pre-trains and fine-tunes BERT, RoBERTa, ALBERT, SpanBERT, XLM, ELECTRA, gMLP
and aMLP. Three comparisons use all seeds: replaced-token detection against masked tokens, the
sentence-pair objectives (sentence order, next sentence, none), and static against dynamic masks.
The command also scores mean-pooled sentence vectors of each encoder, and Sentence-BERT.

The command `decoders` trains GPT, GPT-2, Transformer-XL, XLNet, T5 and BART with Transformer,
Macaron and SwishRNN blocks, which have about equal parameter counts. XLNet has no SwishRNN blocks.
Only GPT, T5 and the taggers use all seeds. The command also evaluates Transformer-XL with several
memory lengths, evaluates GPT-2 by few-shot prompting, and trains taggers with and without ELMo.

The command `sentences` trains Sentence-BERT on entailment and on STS-B, with several poolings and
concatenations.

Each comparison of `encoders` and `decoders` has a subfolder of OUT. The commands write their
reports to OUT/NAME.md and OUT/NAME.json, where NAME is the name of the command. If a command is
interrupted, give the same command again: complete runs are not trained again.
"""

import argparse

from experiments import command_line as cli

_PRETRAINING = cli.together(
    cli.STUDY,
    cli.argument(
        "--systems NAME",
        "names of the comparisons to run: tokens, pairs, masks or others for encoders; GPT, GPT-2, "
        "Transformer-XL, XLNet, T5, BART or ELMo for decoders (default: all comparisons)",
        nargs="+",
    ),
    cli.count("--jobs N", "maximum number of simultaneous training runs (default: %(default)s)", 2),
    cli.settings("training.max_steps=500, in every pre-training run"),
)

main = cli.program(
    "python -m experiments.lab.slides",
    __doc__,
    cli.command(
        "encoders",
        "compare encoders (about 3 hours on 2 cores)",
        "experiments.lab.slides.systems:encoders",
        _PRETRAINING,
        cli.DATA_DIR,
        cli.finetuning("sst2", "stsb", "conll2003"),
        cli.argument(
            "--sentences",
            "whether to score the sentence vectors of each encoder and of a Sentence-BERT on STS-B "
            "(default: yes)",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
    ),
    cli.command(
        "decoders",
        "compare language models and encoder-decoders (about 3 hours on 2 cores)",
        "experiments.lab.slides.systems:decoders",
        _PRETRAINING,
        cli.DATA_DIR,
        cli.path_argument(
            "--source",
            "source of tagged sentences for the taggers with and without ELMo, such as conll:FILE "
            "(default: tfds:conll2003_ner)",
        ),
        cli.settings("training.max_steps=500, in ELMo's training run", "--elmo-set"),
    ),
    cli.command(
        "sentences",
        "compare Sentence-BERT's poolings and concatenations (12 short training runs per seed)",
        "experiments.lab.slides.sentences:run",
        cli.STUDY,
        cli.path_argument(
            "--init FROM",
            "pre-trained encoder to start from, in a form that `embed train --init` accepts",
            required=True,
        ),
        cli.argument(
            "--task",
            "classification task with sentence pairs on which to train (default: %(default)s)",
            default="mnli",
        ),
        cli.DATA_DIR,
        cli.count(
            "--jobs N", "maximum number of simultaneous training runs (default: %(default)s)", 2
        ),
        cli.settings("training.max_steps=500, in every training run"),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
