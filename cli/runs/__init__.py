"""Commands for runs and threads: start a run and print its stream; list, show, cancel, retry and delete."""
