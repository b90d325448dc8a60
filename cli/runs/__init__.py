"""Commands for runs, threads and the inbox: start a run and print its stream; list, show, cancel, retry, delete, answer."""
