"""`python -m runyard` is `runyard`."""

from runyard import main

main()
