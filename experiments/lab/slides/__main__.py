"""The systems of the slides beside each other, at one small size and as many tokens.

    python -m experiments.lab.slides encoders study --data-dir DIR
    python -m experiments.lab.slides decoders study --data-dir DIR
    python -m experiments.lab.slides sentences study --init runs/bert --data-dir DIR

encoders: BERT, RoBERTa, ALBERT, SpanBERT, XLM, ELECTRA, gMLP and aMLP: what each learns, and how it
does when it is fine-tuned; three seeds where the slides compare two ways: the order of sentences
or next sentences or neither, static or dynamic masks, replaced or masked tokens. Sentence-BERT is
BERT's, trained on STS-B, beside the mean pooling of each encoder as it is.
decoders: GPT, GPT-2, Transformer-XL, XLNet, T5 and BART with Transformer's, Macaron's and
SwishRNN's blocks of as many weights; GPT and T5 with three seeds. Transformer-XL also with shorter
and longer memories, GPT-2 asked tasks without training, ELMo and a tagger with and without it.
sentences: Sentence-BERT's poolings and concatenations, trained on entailment or on STS-B.

Each comparison is a command `compare` in OUT; what follows is done by the commands that a person
would type. Writes OUT/NAME.md and .json, tables OUT/sentences.md and .json. Complete runs are not
trained again: an interrupted command goes on when it is given again.
"""

import argparse

from experiments import command_line as cli

_PRETRAINING = cli.together(
    cli.STUDY,
    cli.argument("--systems NAME", "comparisons (default: all)", nargs="+"),
    cli.count("--jobs N", "trainings at once (default %(default)s)", 2),
    cli.settings("training.max_steps=500, of every pre-training"),
)

main = cli.program(
    "experiments.lab.slides",
    __doc__,
    cli.command(
        "encoders",
        "the encoders: about three hours on two cores",
        "experiments.lab.slides.systems:encoders",
        _PRETRAINING,
        cli.DATA_DIR,
        cli.finetuning("sst2", "stsb", "conll2003"),
        cli.argument(
            "--sentences",
            "also score sentences' vectors on STS-B, as they are and, of BERT, trained",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
    ),
    cli.command(
        "decoders",
        "the others: about three hours on two cores",
        "experiments.lab.slides.systems:decoders",
        _PRETRAINING,
        cli.DATA_DIR,
        cli.place("--source", "tagged sentences for ELMo, such as conll:FILE"),
        cli.settings("training.max_steps=500, of ELMo", "--elmo-set"),
    ),
    cli.command(
        "sentences",
        "Sentence-BERT's poolings and concatenations: twelve short trainings a seed",
        "experiments.lab.slides.sentences:run",
        cli.STUDY,
        cli.place("--init FROM", "what to start with, as for `embed train`", required=True),
        cli.argument("--task", "classes of pairs (default %(default)s)", default="mnli"),
        cli.DATA_DIR,
        cli.count("--jobs N", "trainings at once (default %(default)s)", 2),
        cli.settings("training.max_steps=500, of every training"),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
