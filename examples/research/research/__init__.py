"""An agent that researches a topic: a plan, a subgraph for each question, a report."""
