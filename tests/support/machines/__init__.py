"""Several simulated machines: a platform whose processes communicate over a network that a test can break."""
