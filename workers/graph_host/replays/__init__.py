"""Replays: runs whose tool and model calls are answered from the recording of a past run, and their scores."""
