"""Figures of runs: how many ended and how, how long they waited and took, which tokens they used.

    a run ends ──► ended_run ──fold──► figure        by minute (2 days), hour (60 days), day (2 years), and ever
      (its own      (a row)   ──────►  daily_usage   by day and model (2 years)
     statement)

The statement that ends a run appends a row, so a run is counted exactly once, whoever ends it, and no two of them
wait for each other. Upkeep folds: what it takes out of `ended_run` it adds to every step at once, in one
transaction, so that a crash loses nothing, a row that comes late is added to the steps it belongs to, and no step
depends on another. Readers add what is not folded yet, in one statement: what they see is true to the second.

A run is counted as created at the time when it was, all else at its end. Everything stored can be added, which is
what makes folding and reading the same sum: percentiles come from histograms.
"""
