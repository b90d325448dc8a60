last = "work"
