"""Entry point of `python -m macaron_tf COMMAND`."""

from macaron_tf.cli.launcher import main

if __name__ == "__main__":
    raise SystemExit(main())
