"""A project's code beside its graphs: its authorization, its app, and their way to their own deployment."""
