"""One revision from claim to DEPLOYED: unpacked, resolved, installed, its graphs inspected, switched to."""
