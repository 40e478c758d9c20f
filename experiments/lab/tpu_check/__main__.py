"""Checks on a CPU machine whether a recipe can train on a TPU.

    python -m experiments.lab.tpu_check bert_base swish_rnn_base --topology v4:2x2x1
    python -m experiments.lab.tpu_check wmt14_macaron_base --batch 8192 --topology v5e:2x2

builds each recipe's train step as `fit` runs it (static shapes, bfloat16) and compiles it with the
TPU compiler. It prints whether the step compiles, and if not, which op and which line of code
prevent it; the memory that a core needs; the largest batch that fits; shapes that depend on values;
and the compiler's estimate of a step's time, with loops counted. The exit status is 0 if every
recipe passes, 1 if one does not, and 2 if the command is wrong.

    python -m experiments.lab.tpu_check gpt2_base --topology v5e:2x2 --engine jax \\
        --mesh data=2,model=2

compiles the update of the JAX engine for a mesh of the topology's cores, where each part along
`data` has one micro-batch. It prints the memory of a core and the bytes of the collectives.

    python -m experiments.lab.tpu_check --slices

needs no compiler. It prints the bytes of every model of the catalog and the smallest slice that
trains it.

`make tpu-check` installs the compiler; so does
`pip install -r experiments/lab/tpu_check/requirements.txt`
in a separate environment. A recipe of base size takes a minute or two and 6 GB.
"""

from experiments import command_line as cli

main = cli.single_program(
    "experiments.lab.tpu_check",
    __doc__,
    "experiments.lab.tpu_check.check:run",
    cli.argument("recipe", "names of pre-training and translation recipes", nargs="*"),
    cli.argument(
        "--topology CHIP:SHAPE",
        "such as v4:2x2x1 (default) or v5e:2x2; can be repeated. Without --mesh the step is "
        "compiled for one core, so that the shape changes nothing",
        action="append",
    ),
    cli.count(
        "--batch N",
        "micro-batch of a core: rows in pre-training, tokens of one side in translation "
        "(default: the recipe's own)",
    ),
    cli.count(
        "--compilations N",
        "most compilations for each recipe and topology, to find the largest batch; 1: only "
        "the given batch (default %(default)s)",
        4,
    ),
    cli.local_place("--json FILE", "file to which the results are added after each recipe"),
    cli.switch("--resume", "keep the rows in --json that have this commit and these settings"),
    cli.local_place("--markdown FILE", "file for the table; with --json, of all its rows"),
    cli.local_place("--hlo DIR", "folder for the compiler's optimized programs"),
    cli.ENGINE,
    cli.switch("--list", "list the chips"),
    cli.switch("--slices", "print which slice trains which model of the catalog, by its shapes"),
    cli.settings("model.rnn_step_sizes=1 or training.dtype_policy=float32"),
)

if __name__ == "__main__":
    raise SystemExit(main())
