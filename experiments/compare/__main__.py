"""Blocks, splitting schemes, recipes or pre-trained weights compared: one table with a verdict.

    python -m experiments.compare runs/compare --data-dir DIR
    python -m experiments.compare runs/norms --corpus corpora/mini \\
        post=bert_tiny pre=bert_tiny:model.norm=pre,training.warmup_steps=100
    python -m experiments.compare runs/best --data-dir DIR --equal parameters time \\
        --rates 1e-3 2e-3 4e-3
    python -m experiments.compare runs/blocks --data-dir DIR \\
        'outside=multi30k_macaron_tiny:model.scheme=tokens/2, channels, tokens/2' \\
        macaron=multi30k_macaron_tiny --equal parameters
    python -m experiments.compare runs/sst2 --data-dir DIR \\
        bert=sst2:init=runs/bert swish=sst2:init=runs/swish,training.learning_rate=1e-3

An arm is [NAME=]RECIPE[:PATH=VALUE,...], a recipe with settings as of --set. All are of one kind:

  pre-training   the loss on validation text after the last update; with --tasks also the
                 development scores of each run fine-tuned on them
  translation    BLEU of the averaged checkpoints by the recipe's beam search, on the validation
                 split, with a paired bootstrap for each seed
  fine-tuning    the development score of a task, the arm's recipe; init=FROM as of `finetune`,
                 and preset=NAME or source=FORM where wanted

Without arms: a GPT of 0.8 million weights with Transformer's and Macaron's blocks, and with
Macaron's layer by full steps (recipe gpt_quick), in five minutes on two cores.

Arms read equal text: others are refused. Writes OUT/compare.md, .json and .png. Complete runs are
not trained again: an interrupted command goes on when it is given again.
"""

from experiments import command_line as cli
from macaron_tf.cli import arguments

main = cli.single_program(
    "experiments.compare",
    __doc__,
    "experiments.compare.comparison:run",
    cli.STUDY,
    cli.place(
        "arms [NAME=]RECIPE[:PATH=VALUE,...]",
        "two or more, of which the others are compared with the first",
        nargs="*",
    ),
    cli.place(
        "--corpus DIR", "of `pretrain prepare`, for pre-trainings (default: made in OUT/corpus)"
    ),
    cli.TFDS,
    cli.finetuning(),
    cli.count(
        "--learning-rates R",
        "of --tasks, each of which takes the best (default: the preset's)",
        least=0.0,
        nargs="+",
    ),
    cli.count(
        "--jobs N",
        "trainings at once, each on its share of the CPUs (default: 2; with a GPU 1)",
    ),
    cli.argument(
        "--equal",
        "parameters: choose model.feed_forward_dim so that every arm has the first one's; time: "
        "give every arm as many updates as take the time of the first one's, by a short timing",
        choices=("parameters", "time"),
        nargs="+",
        action=arguments.Distinct,
        default=[],
    ),
    cli.count(
        "--rates R",
        "learning rates to try: every arm is judged at its best one",
        least=0.0,
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.count(
        "--tuning-seeds N",
        "seeds that pick the rates (default: one that is none of --seeds)",
        least=0,
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.count(
        "--widths D",
        "values of model.hidden_dim: arms are compared at each, and their trend is judged; "
        "model.feed_forward_dim keeps its proportion",
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.argument(
        "--differ PATH",
        "settings of the text in which arms may differ, for they are what is compared",
        nargs="+",
        default=[],
    ),
    cli.settings("training.max_steps=500, of every arm"),
)

if __name__ == "__main__":
    raise SystemExit(main())
