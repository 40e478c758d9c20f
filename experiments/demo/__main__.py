"""Trains, scores and serves a small translator in about six minutes (`make demo`).

The demo downloads a corpus, trains a small Macaron on it, scores it, shows ten translations with
their references, exports the model, starts a server and sends it a request over REST. To resume an
interrupted demo, give the same command again.
"""

from experiments import command_line as cli

main = cli.single_program(
    "experiments.demo",
    __doc__,
    "experiments.demo.stages:run",
    cli.local_place("--run DIR", "folder of the run (default %(default)s)", default="runs/demo"),
    cli.settings("training.max_minutes=5 or data.target_language=fr"),
)

if __name__ == "__main__":
    raise SystemExit(main())
