"""OAuth on behalf of users: providers, where they are discovered, consents, and the tokens that came of them."""
