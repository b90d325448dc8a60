"""Commands for runs, threads and the inbox: start a run and print its stream; list, cancel, retry, delete, answer."""
