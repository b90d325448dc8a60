def cut() -> str:
    return "saw"
