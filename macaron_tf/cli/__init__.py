"""Command line interface: the launcher, process setup and argument parsers."""
