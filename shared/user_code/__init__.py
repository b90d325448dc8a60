"""User code beside the graphs, as the service calls it: a deployment's authorization and its own routes."""
