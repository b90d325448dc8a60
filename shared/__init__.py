"""What both sides know: state, rules and channels. No HTTP and no user code."""
