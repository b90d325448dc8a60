"""A project's code besides its graphs: its authorization, its app, and requests to its own deployment."""
