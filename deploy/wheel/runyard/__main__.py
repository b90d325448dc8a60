"""`python -m runyard`, equivalent to `runyard`."""

from runyard import main

main()
