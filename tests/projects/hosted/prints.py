"""Graphs that print in every way there is."""

from __future__ import annotations

import contextvars
import sys
import threading
import traceback
from typing import TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict, total=False):
    text: str


def of(node) -> object:
    return StateGraph(State).add_node(node).add_edge(START, node.__name__).compile()


def print_lines(state: State) -> State:
    print("one\ntwo\n\nthree")
    print("four\nfive", 5)
    print()
    print("half", end="")
    print(" and whole")
    sys.stdout.write("once\nmore\n")
    print("\n".join(letter * 5_000 for letter in "xyz"))
    print("w" * 10_000)
    return {}


lines = of(print_lines)


def print_beside(state: State) -> State:
    """Two threads of one run, each in the middle of a line of its own."""
    turns = threading.Barrier(2)

    def say(word: str) -> None:
        print(word, end="")
        turns.wait()
        print(f"\n{word} again")

    contexts = [contextvars.copy_context() for _ in "ab"]
    threads = [threading.Thread(target=c.run, args=(say, word)) for c, word in zip(contexts, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {}


beside = of(print_beside)


def fall() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("two\nlines") from error


def print_traceback(state: State) -> State:
    try:
        fall()
    except ValueError:
        traceback.print_exc()
    print("after it")
    print("not a traceback", file=sys.stderr)
    print("another", file=sys.stderr)
    thread = threading.Thread(target=fall, name="own")
    thread.start()
    thread.join()
    return {}


traces = of(print_traceback)


def deep(state: State) -> State:
    fall()
    return {}


falls = of(deep)
fails_inside = StateGraph(State).add_node("outer", falls).add_edge(START, "outer").compile()


def write_nonsense(state: State) -> State:
    return 7  # the library refuses it


refused = of(write_nonsense)
