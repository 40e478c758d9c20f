"""Checks on a CPU machine whether a recipe can train on a TPU.

    python -m experiments.lab.tpu_check bert_base swish_rnn_base --topology v4:2x2x1
    python -m experiments.lab.tpu_check wmt14_macaron_base --batch 8192 --topology v5e:2x2

These commands build each recipe's train step as `fit` runs it (static shapes, bfloat16) and compile
the step with the TPU compiler. For each recipe they print:

- whether the step compiles, and otherwise the op and the line of code that prevent compilation
- the memory that the step needs on a core, and the largest compiled batch that fits
- tensor shapes that depend on values
- the compiler's estimate of the step time, in which each loop iteration counts

The exit status is 0 if every recipe passes, 1 if a recipe fails, and 2 if the command is wrong.

    python -m experiments.lab.tpu_check gpt2_base --topology v5e:2x2 --engine jax \\
        --mesh data=2,model=2

This command compiles the JAX engine's update for a mesh of cores. Each index along the axis `data`
has one micro-batch. The command also prints how many GiB a core receives in collective operations.

    python -m experiments.lab.tpu_check --slices

This command needs no compiler. For every model in the catalog it prints the memory for weights,
gradients, Adam's moments and activations, and the smallest TPU slice that can train the model.

Install the compiler by `make tpu-check`, or by
`pip install -r experiments/lab/tpu_check/requirements.txt` in a separate environment. Compiling a
recipe of base size takes 1 to 2 minutes and 6 GB of memory.
"""

from experiments import command_line as cli

main = cli.single_program(
    "python -m experiments.lab.tpu_check",
    __doc__,
    "experiments.lab.tpu_check.check:run",
    cli.argument(
        "recipe",
        "names of the pre-training, translation, ELMo and TCN recipes to check; required unless "
        "--list or --slices is given",
        nargs="*",
    ),
    cli.argument(
        "--topology CHIP:SHAPE",
        "TPU generation and number of chips along each axis, such as v5e:2x2. Without --mesh, the "
        "shape has no effect, because the step is compiled for one core (default: v4:2x2x1; "
        "repeatable)",
        action="append",
    ),
    cli.count(
        "--batch N",
        "micro-batch size, in rows or, for translation recipes, in tokens on each side. Each core "
        "has one micro-batch, but cores along the axis model of --mesh share a micro-batch "
        "(default: the size in the recipe)",
    ),
    cli.count(
        "--compilations N",
        "maximum number of compilations for each recipe and topology. The first compilation uses "
        "the batch size of --batch. The further compilations search for the largest batch that "
        "fits into memory (default: %(default)s)",
        4,
    ),
    cli.local_path_argument(
        "--json FILE",
        "JSON file to which the command adds the results of each recipe. New results replace "
        "earlier results of the same recipe, topology, batch size and mesh (default: only print "
        "the results)",
    ),
    cli.switch(
        "--resume",
        "skip each check whose result is already in the file of --json with the same commit, "
        "package versions, settings, batch size, mesh and --compilations; has no effect if files "
        "differ from the commit",
    ),
    cli.local_path_argument(
        "--markdown FILE",
        "output Markdown file for a table of the results. With --json, the table contains all "
        "results in the JSON file. With --slices, the file has the table of slices (default: only "
        "print the table)",
    ),
    cli.local_path_argument(
        "--hlo DIR",
        "output folder for the optimized HLO text of each compilation (default: write no HLO text)",
    ),
    cli.argument(
        "--engine",
        "Keras backend whose train step is compiled (default: tensorflow)",
        choices=cli.ENGINES,
    ),
    cli.argument(
        "--mesh AXES",
        "device mesh for --engine jax, as the number of cores along each axis, such as "
        "data=2,model=2; the axis data splits batches, and the axis model splits weights (default: "
        "data=1)",
    ),
    cli.switch("--list", "list the supported TPU generations instead of checking recipes"),
    cli.switch(
        "--slices",
        "print the smallest TPU slice that can train each catalog model, computed from array "
        "shapes and from saved results of tpu_check, instead of checking recipes",
    ),
    cli.settings("model.rnn_step_sizes=1 or training.dtype_policy=float32"),
)

if __name__ == "__main__":
    raise SystemExit(main())
