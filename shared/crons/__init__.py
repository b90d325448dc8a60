"""Crons: schedules that create runs, on a given thread or on a new one each time."""
