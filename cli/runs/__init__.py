"""What a deployment executes: runs and threads, started, listed, and shown as a person reads them."""
