word = "own"
