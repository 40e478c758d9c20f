"""Compares the systems of the slides, all at one small size and with equally many tokens.

    python -m experiments.lab.slides encoders study --data-dir DIR
    python -m experiments.lab.slides decoders study --data-dir DIR
    python -m experiments.lab.slides sentences study --init runs/bert --data-dir DIR

encoders: pre-trains and fine-tunes BERT, RoBERTa, ALBERT, SpanBERT, XLM, ELECTRA, gMLP and aMLP.
What the slides compare has three seeds: the order of sentences, next sentences or neither; static
or dynamic masks; replaced or masked tokens. Sentence-BERT, which is BERT trained on STS-B, stands
beside the mean pooling of each untuned encoder.
decoders: trains GPT, GPT-2, Transformer-XL, XLNet, T5 and BART with Transformer, Macaron and
SwishRNN blocks of equally many weights; GPT and T5 with three seeds. It also scores Transformer-XL
with shorter and longer memories, prompts GPT-2 with tasks, and trains ELMo and taggers with and
without it.
sentences: trains Sentence-BERT's poolings and concatenations, on entailment or on STS-B.

Each comparison is a command `compare` in OUT, followed by the usual commands for its runs. The
results are OUT/NAME.md and .json; those of `sentences` are OUT/sentences.md and .json. Complete
runs are not trained again, so an interrupted command can be run again to continue.
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
            "also score sentence vectors on STS-B: of all encoders, and of BERT trained on STS-B",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
    ),
    cli.command(
        "decoders",
        "language models and encoder-decoders: about three hours on two cores",
        "experiments.lab.slides.systems:decoders",
        _PRETRAINING,
        cli.DATA_DIR,
        cli.place("--source", "tagged sentences for ELMo, such as conll:FILE"),
        cli.settings("training.max_steps=500, of ELMo", "--elmo-set"),
    ),
    cli.command(
        "sentences",
        "Sentence-BERT's poolings and concatenations: twelve short trainings for each seed",
        "experiments.lab.slides.sentences:run",
        cli.STUDY,
        cli.place("--init FROM", "initial weights, as for `embed train`", required=True),
        cli.argument("--task", "task with classes of pairs (default %(default)s)", default="mnli"),
        cli.DATA_DIR,
        cli.count("--jobs N", "trainings at once (default %(default)s)", 2),
        cli.settings("training.max_steps=500, of every training"),
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
