"""Compares blocks, splitting schemes, recipes or pre-trained weights on equal data.

    macaron compare runs/own own=my_block.py:Mine
    macaron compare runs/compare --data-dir DIR
    macaron compare runs/norms --corpus corpora/mini \\
        post=bert_tiny pre=bert_tiny:model.norm=pre,training.warmup_steps=100
    macaron compare runs/best --data-dir DIR --equal parameters time \\
        --rates 1e-3 2e-3 4e-3
    macaron compare runs/blocks --data-dir DIR \\
        'outside=multi30k_macaron_tiny:model.scheme=tokens/2, channels, tokens/2' \\
        macaron=multi30k_macaron_tiny --equal parameters
    macaron compare runs/sst2 --data-dir DIR \\
        bert=finetune:sst2:init=runs/bert swish=finetune:sst2:init=runs/swish,training.epochs=5
    macaron compare runs/glue --data-dir DIR bert=runs/bert own=hugging-face:DIR \\
        --tasks cola sst2 mrpc stsb qqp mnli qnli rte --rates 3e-5 5e-5
    macaron compare runs/tasks 'bert=runs/norms/pre-{seed}' --tasks cola rte
    macaron compare runs/jsb tcn=tcn_jsb lstm=tcn_jsb:model.mixer=lstm --set data.path=JSB.mat

An arm is one of the compared variants. The command trains each arm with several seeds and tests
which differences are significant. An arm is written [NAME=]RECIPE[:PATH=VALUE,...]: a recipe whose
settings are changed as by --set. All arms must be recipes of the same type, on which the score
depends:

  pre-training   loss on the validation text after the last update
  translation    BLEU of the averaged checkpoints on the validation split, with the beam search
                 settings of the recipe. A paired bootstrap test compares the arms of each seed
  fine-tuning    score on the validation splits of a task. RECIPE names the task, and the setting
                 init=MODEL is required, as in finetune:sst2:init=runs/bert. {seed} in MODEL is
                 replaced by the random seed, as in init=runs/bert-{seed}
  sequence task  metric of the best checkpoint on the validation split, beside that of the test
                 split. With model.mixer=lstm, gru or rnn, an arm is a recurrent model of the
                 TCN's size

With --tasks, an arm is a pre-trained model, written [NAME=]MODEL[:PATH=VALUE,...], where {seed} is
replaced too. The command fine-tunes it on every task, judges each task, and writes a table of all
scores with their average. One such arm alone gets its table of scores.

An arm may be a block of your own, [NAME=]FILE.py:CLASS[:PATH=VALUE,...], in the recipe of the first
arm that names one. If none does, the block is compared with the Transformer in the recipe
gpt_quick, on a text that pip fetches (homeassistant:en), unless --data-dir, --corpus or
--set data.sources choose another. That takes three minutes on two cores.

With --probes, causal language models are compared on synthetic tasks, by default in the recipe
gpt_probe. docs/bench.md describes the tasks.

Without arms, the command compares three GPTs with 0.8 million weights (recipe gpt_quick): a GPT
with Transformer blocks, a GPT with Macaron blocks, and a GPT with Macaron blocks whose feed-forward
residual steps are full instead of half. The comparison takes five minutes on two cores.

All arms must read the same training data, unless --differ allows a difference. The command writes
OUT/compare.md, compare.json and compare.png. To resume an interrupted comparison, give the same
command again. The command does not repeat complete training runs.
"""

from experiments import command_line as cli
from experiments.compare.probes import PROBES

main = cli.single_program(
    "macaron compare",
    __doc__,
    "experiments.compare.comparison:run",
    cli.extra("studies"),
    cli.local_path_argument("out", "output folder for the training runs and the report"),
    cli.seeds([1, 2, 3], "random seeds; each training run is repeated with every seed"),
    cli.path_argument(
        "arms [NAME=]RECIPE[:PATH=VALUE,...]",
        "recipes to compare; the first is the baseline (default: three GPTs with other blocks)",
        nargs="*",
    ),
    cli.CORPUS,
    cli.TFDS,
    cli.argument(
        "--tasks TASK",
        "tasks on which to fine-tune pre-trained models, such as rte or finetune_bert:rte",
        nargs="+",
        default=[],
    ),
    cli.argument(
        "--probes NAME",
        "compare causal language models on synthetic tasks (default: all): " + ", ".join(PROBES),
        nargs="*",
        choices=(*PROBES,),
    ),
    cli.count("--jobs N", "simultaneous training runs (default: 2, or 1 if there is a GPU)"),
    cli.argument(
        "--equal",
        "what the arms share with the first: the number of parameters, to within 1%%, by "
        "model.feed_forward_dim; the training time or the FLOPs, by the number of updates",
        choices=("parameters", "time", "flops"),
        nargs="+",
        action=cli.Distinct,
        default=[],
    ),
    cli.numbers(
        "--rates R",
        "learning rates to try; arms are compared at their best (default: as in the recipe)",
        minimum=0.0,
    ),
    cli.numbers(
        "--tuning-seeds N", "seeds to choose the best rate (default: the smallest other)", minimum=0
    ),
    cli.argument(
        "--differ PATH",
        "settings of the training data, such as data.sources, in which the arms may differ",
        nargs="+",
        default=[],
    ),
    cli.settings("training.max_steps=500, for every arm"),
)
