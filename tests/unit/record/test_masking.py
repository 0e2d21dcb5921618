from __future__ import annotations

import pytest

from trainprof.record.masking import masked_argv, masked_json, masked_text, secret_values


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--api-key", "12345678"], ["--api-key", "***"]),
        (["--token=1.2345678"], ["--token=***"]),
        (["--token", "1234567,x"], ["--token", "***"]),
        (["--keys=[1,12345678]"], ["--keys=***"]),
        (["--token", "trueish"], ["--token", "***"]),
        (["--password", "1234"], ["--password", "***"]),
        (["db.secret_key=7"], ["db.secret_key=***"]),
        (["--passphrase=-1"], ["--passphrase=***"]),
        (["--key", "7", "hf_abcdefghij"], ["--key", "7", "***"]),
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["--api_key=abc"], ["--api_key=***"]),
        (["--HF-TOKEN", "abc"], ["--HF-TOKEN", "***"]),
        (["-token", "abc"], ["-token", "***"]),
        (["--secretsauce=a=b"], ["--secretsauce=***"]),
        (["--db.password", "-x"], ["--db.password", "***"]),
        (["wandb.key=abc"], ["wandb.key=***"]),
        (["+logger.token=abc"], ["+logger.token=***"]),
        (["--use-token", "--lr", "1"], ["--use-token", "--lr", "1"]),
        (["--token"], ["--token"]),
        (["--token="], ["--token="]),
        (["https://me:pw@host/a"], ["https://***@host/a"]),
        (["--url=s3://id:pw@host"], ["--url=s3://***@host"]),
        (["https://host/a@b"], ["https://host/a@b"]),
        (["hf_abcdefghij"], ["***"]),
        (["--x=sk-proj-abcdefgh12"], ["--x=***"]),
        (["ghp_abcdefgh1234"], ["***"]),
        (["github_pat_abcdefgh1234"], ["***"]),
        (["AKIAIOSFODNN7EXAMPLE"], ["***"]),
        (["--db-pass", "hunter2"], ["--db-pass", "***"]),
        (["--db.pass=hunter2"], ["--db.pass=***"]),
        (["--pw", "hunter2"], ["--pw", "***"]),
        (["--pwd", "1234"], ["--pwd", "***"]),
        (["-p", "hunter2"], ["-p", "***"]),
        (["--auth", "u:hunter2"], ["--auth", "***"]),
        (["-u", "me:hunter2"], ["-u", "me:***"]),
        (["--proxy-user=me:hunter2"], ["--proxy-user=me:***"]),
        (["--cookie", "a=hunter2"], ["--cookie", "***"]),
        (["--tokens", "a", "b", "c", "--lr", "1"], ["--tokens", *["***"] * 3, "--lr", "1"]),
        (["--api-keys", "a", "b", "-v", "c"], ["--api-keys", "***", "***", "-v", "c"]),
        (["--dsn", "host=db password=hunter2 port=1"], ["--dsn", "host=db password=*** port=1"]),
        (['{"password": "hunter 2", "n": 1}'], ['{"password": "***", "n": 1}']),
        (["--header", "Authorization: Basic dTpw"], ["--header", "Authorization: Basic ***"]),
        (["api_key:hunter2"], ["api_key:***"]),
    ],
)
def test_secrets_are_masked(argv, expected):
    assert masked_argv(argv) == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["--tokenizer", "gpt2", "--max-tokens", "512", "--max_new_tokens=512", "--monkey", "3"],
        ["--num-keypoints", "17", "--tokens_per_batch=1048576", "model.num_key_value_heads=8"],
        ["--key-dims=[64,128]", "--key-sizes", "64, 128", "--key-shift", "-1"],
        ["--image_token_len", "256", "--token_dropout", "0.1", "--mask-token-prob", "1.5e-1"],
        ["--use-token", "False", "+logger.password=null"],
        ["train.py", "--lr", "1e-3", "data/monkey.png"],
        ["--model", "task-sketch", "risk-free-learning"],
        ["--num-passes", "3", "--passes", "two", "--second-pass", "2", "--pass-through", "all"],
        ["--compass", "north", "--author", "x", "--authors", "x", "--pin-memory"],
        ["--token-dropout", "0.1", "--seed", "1234567"],
        ["-p", "8080", "-p", "pyproject.toml", "-p", "-v", "-p"],
        ["-u", "train.py", "--user", "me", "-pretrained", "x"],
        ["--pad-token", "<pad>", "--eos_token=</s>", "--special-tokens", "a", "b"],
        ["--placeholder_token", "<toy>", "--initializer_token", "toy"],
        ["--text-key", "description", "--label_key=class", "--monkey-type", "rhesus"],
        ["--cookie-cutter", "x", "--path", "a", "--patience", "x", "--keyboard", "us"],
        ["data.token_key=3", "--betas", "0.9,0.999", "ratio:a", "16:9"],
    ],
)
def test_what_only_looks_like_one_stays(argv):
    assert masked_argv(argv) == argv


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://h/x?token=abc&n=1", "https://h/x?token=***&n=1"),
        ("https://h/x?n=1&X-Amz-Signature=abc#part", "https://h/x?n=1&X-Amz-Signature=***#part"),
        ("https://h/x?sig=abc;se=2026", "https://h/x?sig=***;se=2026"),
        ("https://h/#access_token=abc", "https://h/#access_token=***"),
        ("https://h/x?lr=0.1&design=flat&max_tokens=5", None),
        ("what?a=b&author=c", None),
    ],
)
def test_secrets_in_the_parameters_of_a_link_are_masked(text, expected):
    assert masked_text(text) == (expected or text)


# Spelled in parts, lest somebody's scanner takes this file for a leak.
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJl"
TELEGRAM = "123456789" + ":AAH" + "x" * 32
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIB\nAAAA\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "JWT": JWT,
    "Google": "AIza" + "Sy" + "x1" * 17,
    "GitLab": "glpat" + "-x1y2z3x1y2z3x1y2z3x1",
    "PEM": PEM,
    "Telegram": TELEGRAM,
    "Slack": "xapp" + "-1-A0123-456-abcdef",
    "NVIDIA": "nvapi" + "-" + "x1" * 16,
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_well_known_forms_are_masked_wherever_they_stand(secret):
    assert masked_text(secret) == "***"
    assert masked_text(f"KeyError: '{secret}'") == "KeyError: '***'"
    assert masked_text(f"see /data/{secret}\nnext") == "see /data/***\nnext"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/***"),
        ("https://discord.com/api/webhooks/123/abc-DEF", "https://discord.com/api/webhooks/***"),
        (f"https://api.telegram.org/bot{TELEGRAM}/send", "https://api.telegram.org/bot***/send"),
        ("-----BEGIN " + "PRIVATE KEY-----\nMIIB, cut", "***"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ('{"Authorization": "Basic dTpw", "n": 1}', '{"Authorization": "Basic ***", "n": 1}'),
        ("got bearer abcdefgh1 and", "got bearer *** and"),
        ("Cookie: a=b; c=d\nHost: x", "Cookie: ***\nHost: x"),
        ('{"password": "a b"}', '{"password": "***"}'),
        (r'"{\"password\": \"ab\"}"', r'"{\"password\": \"***\"}"'),
        ("password='hunter2', n=1", "password='***', n=1"),
        ("FATAL: PGPASSWORD=hunter2 is wrong", "FATAL: PGPASSWORD=*** is wrong"),
        ("api_key: abc\nlr: 1", "api_key: ***\nlr: 1"),
        ("x-api-key: abc", "x-api-key: ***"),
        ("AccountKey=abc==;EndpointSuffix=x", "AccountKey=***;EndpointSuffix=x"),
        ("unexpected token: foo", None),
        ("sort(key=len), token=tok, monkey: x", None),
        ("eos_token: x, secret: no, api_key: 3, password=", None),
        ("bearer of good tidings; a bearer certificate", None),
        ("at 12:30:45, ratio 16:9, sha256:Abcdef0123456789abcdef0123456789abcdef", None),
        ("compass: north, passes=3, bypass: x", None),
        ("KeyError: 'description'", None),
    ],
)
def test_secrets_within_texts_are_masked(text, expected):
    masked = masked_text(text)
    assert masked == (text if expected is None else expected)
    assert masked_text(masked) == masked


def test_what_was_handed_down_as_a_secret_is_known_in_other_texts():
    known = secret_values(
        ["train.py", "--token", "abc-123", "--db-pass=hunter22", "--key", "column", "-p", "8080"],
        {"MY_SECRET": "open sesame", "A_TOKEN": "off", "HOME": "/root1", "KEY_FILE": "/dev/null"},
    )
    assert known == ["open sesame", "hunter22", "abc-123"]
    assert masked_text("no user hunter22 in column", known) == "no user *** in column"


def test_json_is_masked_with_its_names():
    value = {"a": ["hf_abcdefghij", 1, None], "hf_abcdefghij.py": {"n": 1.5}}
    assert masked_json(value) == {"a": ["***", 1, None], "***.py": {"n": 1.5}}


@pytest.mark.parametrize(
    "piece", ["apikey", "apikey='", "-eyJaaaaaaaaa", "-----BEGIN PRIVATE KEY-----", "bearer ", "?a"]
)
def test_no_text_takes_long(piece):
    """A pattern that goes back and forth would take minutes: the test's own time limit is met."""
    masked_text(piece * (200_000 // len(piece)))
