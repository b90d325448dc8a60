"""What graphs, routes and authorization share: they run in one process."""

opened: list[str] = []  # by the app's lifespan
events: list[str] = []  # what routes saw
