"""Code of texts of which nothing is run."""

from __future__ import annotations

from types import CodeType


def code_of(text: str) -> CodeType:
    """Returns the code of the `__iter__` in it; nothing of it is run."""
    waiting = [compile(text, "<text>", "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if code.co_name == "__iter__":
            return code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    raise AssertionError("no __iter__ in the text")
