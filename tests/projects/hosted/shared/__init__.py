"""A package of the project that shares its name with one of the platform."""

WORD = "shared"
