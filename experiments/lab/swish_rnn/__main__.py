"""The figures and tables of the SwishRNN paper (Lei et al. 2022), at any scale.

    python -m experiments.pretrain prepare bert_tiny corpora/mini --data-dir DIR
    python -m experiments.compare study/curves --corpus corpora/mini \\
        bert_tiny bert_rab_tiny swish_rnn_tiny macaron_bert_tiny
    python -m experiments.lab.swish_rnn step-sizes study/steps --corpus corpora/mini --data-dir DIR
    python -m experiments.lab.swish_rnn stability study/stability --data-dir DIR \\
        --init study/curves/bert_rab_tiny-1 study/curves/swish_rnn_tiny-1

compare: figure 4, the loss of pre-training against the step.
stability: figure 3, the fine-tuned score against the learning rate, of several models.
step-sizes: table 2, scores and time by the step size of the recurrence.

Each writes OUT/NAME.md, .json and .png, means over seeds with their deviation. Runs that are
complete are not trained again; an interrupted command goes on when it is given again.
"""

from experiments import command_line as cli

_PRETRAINING = cli.together(
    cli.STUDY,
    cli.place("--corpus DIR", "a folder of `pretrain prepare`", required=True),
    cli.count("--jobs N", "pre-trainings at once, each on its share of the CPUs", 1),
    cli.settings("training.max_steps=500, of every pre-training"),
)
_FINETUNING = cli.finetuning("cola", "rte", "stsb")

main = cli.program(
    "experiments.lab.swish_rnn",
    __doc__,
    cli.command(
        "step-sizes",
        "table 2: scores and time by step size",
        "experiments.lab.swish_rnn.paper:step_sizes",
        _PRETRAINING,
        cli.argument("--recipe", "default %(default)s", default="swish_rnn_tiny"),
        cli.argument("--reference", "its time counts as 1 (%(default)s)", default="bert_rab_tiny"),
        cli.argument(
            "--sizes K[,K...]",
            "step sizes, layer by layer in turn (default 1, 2 and 1,2,4)",
            nargs="+",
            default=["1", "2", "1,2,4"],
        ),
        cli.count(
            "--learning-rates R",
            "of fine-tuning, of which each task takes the best (default: the preset's)",
            least=0.0,
            nargs="+",
        ),
        _FINETUNING,
    ),
    cli.command(
        "stability",
        "figure 3: score against learning rate",
        "experiments.lab.swish_rnn.paper:stability",
        cli.STUDY,
        cli.place("--init [NAME=]FROM", "models, as for finetune", nargs="+", required=True),
        cli.count(
            "--learning-rates R",
            "default: 1e-5 to 1e-3",
            [1e-5, 3e-5, 1e-4, 3e-4, 1e-3],
            least=0.0,
            nargs="+",
        ),
        _FINETUNING,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
