"""OAuth on behalf of users: providers, their discovery, requests for consent, and stored tokens."""
