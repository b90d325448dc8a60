"""An agent that researches a topic: it plans, runs a subgraph for each question and writes a report."""
