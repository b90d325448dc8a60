"""Several machines on one: a platform whose processes reach each other over a network that a test can break."""
