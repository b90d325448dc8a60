"""Commands for operators: workers, load, usage, organizations, API keys, encryption keys, login and the console."""
