"""`langgraph.json`: every key is honoured, refused with a reason, or said to be without meaning here."""
