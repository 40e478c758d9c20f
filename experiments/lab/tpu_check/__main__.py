"""Checks on a CPU machine, without a TPU, that a recipe is fit for one.

    python -m experiments.lab.tpu_check bert_base swish_rnn_base --topology v4:2x2x1
    python -m experiments.lab.tpu_check wmt14_macaron_base --batch 8192 --topology v5e:2x2

builds each recipe's train step as `fit` runs it (static shapes, bfloat16), compiles it with the TPU
compiler, and says: whether it compiles, and if not which op stands in the way and on which line
that is; what memory a core needs; the largest batch that fits; shapes that depend on values; and
the compiler's estimate of a step's time, loops counted. It exits with 0 where every recipe passes,
with 1 where one does not, and with 2 where the command is wrong.

    python -m experiments.lab.tpu_check gpt2_base --topology v5e:2x2 --engine jax \\
        --mesh data=2,model=2

compiles the update of the JAX engine for a mesh of the topology's cores, whose `data` parts have a
micro-batch each: memory a core, and the bytes of the collectives.

    python -m experiments.lab.tpu_check --slices

needs no compiler: the bytes of every model of the catalog, and the smallest slice that holds them.

The compiler is installed by `make tpu-check`, or by
`pip install -r experiments/lab/tpu_check/requirements.txt`
in an environment of its own. A recipe of base size takes a minute or two and 6 GB.
"""

from experiments import command_line as cli

main = cli.single_program(
    "experiments.lab.tpu_check",
    __doc__,
    "experiments.lab.tpu_check.check:run",
    cli.argument("recipe", "names of pre-training and translation recipes", nargs="*"),
    cli.argument(
        "--topology CHIP:SHAPE",
        "such as v4:2x2x1 (default) or v5e:2x2; may be given again. Without --mesh one core is "
        "compiled for, so that the shape changes nothing",
        action="append",
    ),
    cli.count(
        "--batch N",
        "a core's micro-batch: rows of pre-training, tokens on one side of translation "
        "(default: the recipe's own)",
    ),
    cli.count(
        "--compilations N",
        "how many to spend on each recipe and topology in search of the largest batch; 1 = "
        "the given batch alone (default %(default)s)",
        4,
    ),
    cli.local_place("--json FILE", "add the results to this file, after each recipe"),
    cli.switch("--resume", "keep the rows that --json has of this commit and these settings"),
    cli.local_place("--markdown FILE", "the table; with --json, of all of its rows"),
    cli.local_place("--hlo DIR", "keep the compiler's optimized programs there"),
    cli.ENGINE,
    cli.switch("--list", "list the chips"),
    cli.switch("--slices", "which model of the catalog trains on which slice, by its shapes"),
    cli.settings("model.rnn_step_sizes=1 or training.dtype_policy=float32"),
)

if __name__ == "__main__":
    raise SystemExit(main())
