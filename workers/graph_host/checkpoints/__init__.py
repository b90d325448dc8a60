"""Checkpoints of graphs: the saver that graphs use, its serializer, and their way to the runner."""
