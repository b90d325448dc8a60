"""`runyard doctor`: what is there and what is missing, in one screen. It starts nothing and changes nothing."""

from cli.doctor.screen import command

__all__ = ["command"]
