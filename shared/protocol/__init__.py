"""Protocol v2: a thread's runs as one numbered sequence of events, and the commands that go with it.

It is a second view of the logs that runs have anyway. The rows and the logs say all of it: no process keeps anything
that another one could not tell, and the numbers are the same after all of Redis was lost.
"""
