"""Whether masked words of a command are others by now, told without keeping them."""

from __future__ import annotations

import json
import string

import pytest

from trainprof.experiments.masked_words import are_others, digest_of_masked

TOKEN = "ghp_" + "a1B2" * 9
WORDS = ["train.py", "--token", "first-one", "--url=https://me:pw@host/x", TOKEN, "--lr", "0.1"]


@pytest.mark.parametrize(("place", "another"), [(2, "second"), (3, "--url=https://me:p2@host/x")])
def test_another_secret_is_seen(place: int, another: str) -> None:
    before = digest_of_masked(WORDS)
    assert not are_others(list(WORDS), before)
    changed = [*WORDS[:place], another, *WORDS[place + 1 :]]
    assert are_others(changed, before)
    assert are_others(["train.py"], before)


def test_what_is_not_masked_does_not_count() -> None:
    before = digest_of_masked(WORDS)
    assert not are_others([*WORDS[:-1], "0.2"], before)


def test_a_command_without_a_secret_has_no_digest() -> None:
    assert digest_of_masked(["train.py", "--lr", "0.1"]) is None


@pytest.mark.parametrize("before", [None, {}, {"salt": "x"}, {"digest": "x"}])
def test_of_an_older_run_nothing_is_known(before: dict[str, str] | None) -> None:
    assert not are_others(WORDS, before)


@pytest.mark.parametrize("before", [{"salt": "", "digest": "\ud800"}, {"salt": "é", "digest": ""}])
def test_a_damaged_digest_is_another(before: dict[str, str]) -> None:
    assert are_others(WORDS, before)


def test_words_that_are_no_text() -> None:
    words = ["train.py", "--token", "\udcff"]  # as Python has bytes that are not UTF-8
    assert not are_others(words, digest_of_masked(words))


def test_nothing_of_a_secret_is_in_it_and_many_others_fit() -> None:
    told = digest_of_masked(WORDS)
    assert told is not None
    text = json.dumps(told)
    assert not any(secret in text for secret in ("first-one", "pw@", TOKEN))
    assert len(told["digest"]) == 4  # 65,536 of them: no list of passwords leaves but one
    assert set(told["salt"] + told["digest"]) <= set(string.hexdigits)


def test_equal_secrets_of_two_runs_do_not_look_alike() -> None:
    salts = {told["salt"] for _ in range(4) if (told := digest_of_masked(WORDS)) is not None}
    assert len(salts) == 4
