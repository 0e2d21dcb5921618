from __future__ import annotations

import json

import pytest

from trainprof.launch.options import script_environment


def environment(**environ):
    return script_environment(
        environ, directory="/runs/a", options={"max_steps": None}, site_directory="/site"
    )


def test_only_ours_is_added():
    made = environment(HOME="/root", LANG="é\udcff")
    assert json.loads(made.pop("TRAINPROF_OPTIONS")) == {"max_steps": None}
    assert made == {
        "HOME": "/root",
        "LANG": "é\udcff",
        "TRAINPROF_DIR": "/runs/a",
        "PYTHONPATH": "/site",
    }


@pytest.mark.parametrize(
    ("users", "made"),
    [
        ("/a:/b", "/site:/a:/b"),
        # An empty entry means the working directory, an empty variable nothing.
        ("/a::/b:", "/site:/a::/b:"),
        ("", "/site"),
        ("/site:/a", "/site:/a"),  # under another trainprof
    ],
)
def test_the_users_search_path_stays_behind_ours(users, made):
    assert environment(PYTHONPATH=users)["PYTHONPATH"] == made
