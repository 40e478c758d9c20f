"""`make demo`: from text to a served model in about six minutes.

Fetches the default corpus, trains a small Macaron on it, scores it, shows ten translations beside
their references, exports it, starts the server, and asks it over REST. The same command resumes an
interrupted demo.
"""

from experiments import command_line as cli

main = cli.single_program(
    "experiments.demo",
    __doc__,
    "experiments.demo.stages:run",
    cli.local_place("--run DIR", "folder (default %(default)s)", default="runs/demo"),
    cli.settings("training.max_minutes=5 or data.target_language=fr"),
)

if __name__ == "__main__":
    raise SystemExit(main())
