"""Words and names that trainprof does not use, and where a text or a source has them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Prose, and what to say instead.
WORDS: Final = {
    r"told|tells": "reported, recorded, shown",
    r"looks|looked at|(?:a|each|every|per|one) look": "stack sample",
    r"(?:so|as) many|(?:so|as) much|so long|as long(?! as)": "the number",
    r"minded|minds|mind:": "Note:, caution",
    r"mak(?:e|es|ing) (?:a |its |the |each |their |one )?batch(?:es)?|(?:is|are) made": "prepare",
    r"tak(?:es|ing|en) over": "IPC transfer",
    r"(?:(?:each|every|a|first|second|later|last|next|another|one|training|evaluation|validation|"
    r"loader's) pass(?:es)?|passes (?:over|of))(?! of (?:the )?model)": "epoch",
    r"anew|once more|again and again": "again, each epoch",
    r"lives? on|kept workers": "persistent workers",
    r"beside|meanwhile": "concurrently, during",
    r"script's own|scripts' own|of yours": "your code",
    r"script as it is": "baseline",
    r"holds? the interpreter": "holds the GIL",
    r"giv(?:e|es|en|ing) out": "launches kernels",
    r"(?:has|have|had) nothing to do|runs? dry": "idle",
    r"tiny numbers": "denormals",
    r"gives:|gives? (?:about|up to|steps|training)": "saves, costs",
    r"dear|dearer|dearest|quick|quicker|quickly": "slow, fast",
    r"heirs?": "subclasses",
    r"queued for (?:a |the )?(?:cpu|cores?)": "waiting for a CPU core",
    r"held against": "compared with",
    r"nobody (?:knows|can know|could know|can tell)|cannot know|can't know": "unknown",
    r"(?<!there )(?:is|was) no(?! longer)|(?-i:(?:is|are) none)": "is not ..., there is no ...",
}
NAMES: Final = frozenset({"one", "found", "case", "fed", "facts", "told"})
_EXEMPT: Final = re.compile(r"(?:forward|backward)(?: or backward)? pass(?:es)?", re.IGNORECASE)
_BANNED: Final = re.compile(
    "|".join(rf"(?<![\w.=\[/-])(?:{words})(?![\w=])" for words in WORDS), re.IGNORECASE
)


def words_in(text: str) -> list[str]:
    """Returns the banned words of a text, line ends counted as spaces."""
    plain = _EXEMPT.sub("", re.sub(r"\s*\n\s*(?:#\s*)?", " ", text))
    return [match.group() for match in _BANNED.finditer(plain)]


def in_source(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and word of each banned word or name in a Python file, comments included."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            text = "".join(x.value if isinstance(x, ast.Constant) else "0" for x in node.values)
            yield from ((node.lineno, word) for word in words_in(text))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A word that is a name is a key of the JSON.
            if node.value.isidentifier():
                continue
            yield from ((node.lineno, word) for word in words_in(node.value))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg) and node.arg in NAMES:
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name.lower() in NAMES:
            yield node.lineno, node.name
    yield from _in_comments(source)


def _in_comments(source: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        if block and line == last + 1 and not token.line[:column].strip():
            block.append(token.string)
        else:
            yield from ((first, word) for word in words_in("\n".join(block)))
            block, first = [token.string], line
        last = line
    yield from ((first, word) for word in words_in("\n".join(block)))
