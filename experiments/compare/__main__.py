"""Compares blocks, splitting schemes, recipes or pre-trained weights, and judges the differences.

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

An arm is [NAME=]RECIPE[:PATH=VALUE,...]: a recipe with settings in the form of --set. All arms
have the same kind, which decides the score:

  pre-training   the loss on validation text after the last update; with --tasks also the
                 development scores of each run when fine-tuned on these tasks
  translation    BLEU of the averaged checkpoints with the recipe's beam search, on the validation
                 split, with a paired bootstrap for each seed
  fine-tuning    the development score. RECIPE is the name of a task; give init=FROM as for
                 `finetune`, and preset=NAME or source=FORM if needed

Without arms, the command compares three GPTs with 0.8 million weights (recipe gpt_quick): with
Transformer blocks, with Macaron blocks, and with Macaron's layer by full steps. That takes five
minutes on two cores.

All arms must read the same text. The command writes OUT/compare.md, .json and .png. Complete runs
are not trained again: to resume an interrupted command, give it again.
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
        "two or more arms; the first is the baseline for the others",
        nargs="*",
    ),
    cli.place(
        "--corpus DIR",
        "folder that `pretrain prepare` wrote, for pre-training (default: made in OUT/corpus)",
    ),
    cli.TFDS,
    cli.finetuning(),
    cli.count(
        "--learning-rates R",
        "learning rates of fine-tuning on --tasks; each task uses its best (default: the preset's)",
        least=0.0,
        nargs="+",
    ),
    cli.count(
        "--jobs N",
        "trainings to run at once, each on its share of the CPUs (default: 2; with a GPU 1)",
    ),
    cli.argument(
        "--equal",
        "parameters: choose model.feed_forward_dim so that every arm has as many parameters as "
        "the first; time: measure the time of updates, and choose their number so that every arm "
        "trains for as long as the first",
        choices=("parameters", "time"),
        nargs="+",
        action=arguments.Distinct,
        default=[],
    ),
    cli.count(
        "--rates R",
        "learning rates to try; every arm is judged at its best one",
        least=0.0,
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.count(
        "--tuning-seeds N",
        "seeds that choose the best of --rates (default: one that is not among --seeds)",
        least=0,
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.count(
        "--widths D",
        "values of model.hidden_dim at which to compare the arms and judge the trend; "
        "model.feed_forward_dim is scaled in proportion",
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.argument(
        "--differ PATH",
        "settings of the text in which arms may differ, because you want to compare them",
        nargs="+",
        default=[],
    ),
    cli.settings("training.max_steps=500, for every arm"),
)

if __name__ == "__main__":
    raise SystemExit(main())
