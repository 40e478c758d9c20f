"""Compares blocks, splitting schemes, recipes or pre-trained weights on equal data.

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

The command trains each arm with several seeds and tests which differences are significant. An arm
is [NAME=]RECIPE[:PATH=VALUE,...], which is a recipe with settings in the form of --set. All arms
must be of the same kind. The kind determines the score:

  pre-training   loss on validation text after the last update; with --tasks, also the
                 development-set score of each run after fine-tuning on these tasks
  translation    BLEU on the validation split, by averaged checkpoints and the recipe's beam
                 search, with a paired bootstrap test for each seed
  fine-tuning    score on the development set. RECIPE is the name of a task; set init=FROM as
                 for `finetune`, and preset=NAME or source=FORM if needed

Without arms, the command compares three GPTs with 0.8 million weights (recipe gpt_quick): a GPT
with Transformer blocks, a GPT with Macaron blocks, and a GPT with Macaron blocks whose feed-forward
residual steps are full instead of half. The comparison takes five minutes on two cores.

All arms must read the same text. The command writes OUT/compare.md, .json and .png. Complete runs
are not trained again. To resume an interrupted comparison, give the same command again.
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
        "two or more arms; the first arm is the baseline (default: the arms described above)",
        nargs="*",
    ),
    cli.place(
        "--corpus DIR",
        "folder of a corpus that `pretrain prepare` wrote, for pre-training (default: prepare a "
        "corpus in OUT/corpus)",
    ),
    cli.TFDS,
    cli.finetuning(),
    cli.count(
        "--learning-rates R",
        "learning rates to try in fine-tuning on --tasks; the best rate of each task counts "
        "(default: the learning rate of the preset)",
        least=0.0,
        nargs="+",
    ),
    cli.count(
        "--jobs N",
        "number of training runs at once, each on its own part of the CPUs (default: 2, or 1 with "
        "a GPU)",
    ),
    cli.argument(
        "--equal",
        "what to make equal in all arms: parameters chooses model.feed_forward_dim so that every "
        "arm has as many parameters as the first arm; time measures the time per update and "
        "chooses the number of updates so that every arm trains for as long as the first arm",
        choices=("parameters", "time"),
        nargs="+",
        action=arguments.Distinct,
        default=[],
    ),
    cli.count(
        "--rates R",
        "learning rates to try; the comparison uses each arm's best rate (default: the rate of "
        "the recipe)",
        least=0.0,
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.count(
        "--tuning-seeds N",
        "random seeds of the runs that choose among --rates (default: one seed that is not in "
        "--seeds)",
        least=0,
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.count(
        "--widths D",
        "values of model.hidden_dim at which to compare the arms and test for a trend; "
        "model.feed_forward_dim is scaled in proportion",
        nargs="+",
        action=arguments.Distinct,
    ),
    cli.argument(
        "--differ PATH",
        "settings of the text that may differ between arms, such as corpus.sources",
        nargs="+",
        default=[],
    ),
    cli.settings("training.max_steps=500, for every arm"),
)

if __name__ == "__main__":
    raise SystemExit(main())
