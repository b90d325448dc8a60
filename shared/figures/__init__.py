"""Figures of runs: counts of ended runs by status, wait times, durations, and used tokens.

    a run ends ──► ended_run ──fold──► figure        by minute (2 days), hour (60 days), day (2 years), and ever
      (its own      (a row)   ──────►  daily_usage   by day and model (2 years)
     statement)

The statement that ends a run appends a row to `ended_run`. Every run is therefore counted exactly once, whichever
process ends it, and ends of runs do not wait for each other.

Upkeep folds: it moves rows from `ended_run` into the sums of all steps in one transaction. A crash loses nothing, a
late row is added to the steps of its time, and no step depends on another. Readers add the unfolded rows in one
statement, so their numbers are always current.

A run counts as created at its creation time; all its other numbers count at its end. Two rows are merged by adding their
numbers, so folding and reading use the same sums. Percentiles come from histograms, which are added as well.
"""
