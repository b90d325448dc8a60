"""Who may call and what they may do: organizations, API keys, and creates that are sent twice."""
