"""`runyard doctor`: check the environment of the service and report problems. Starts nothing and changes nothing."""
