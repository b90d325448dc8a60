def hammer() -> str:
    return "hammer"
