"""Building of revisions, from claim to DEPLOYED: unpack, resolve, install, inspect the graphs, switch traffic."""
