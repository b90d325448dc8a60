"""What those who run the service look at and keep: workers and load, use, organizations, keys, the console."""
