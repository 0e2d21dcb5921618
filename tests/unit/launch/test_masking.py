from __future__ import annotations

import pytest

from trainprof.launch.masking import masked_argv, masked_text


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--api-key", "12345678"], ["--api-key", "***"]),
        (["--token=1.2345678"], ["--token=***"]),
        (["--token", "12e345"], ["--token", "***"]),
        (["--token", "1234567,x"], ["--token", "***"]),
        (["--keys=[1,12345678]"], ["--keys=***"]),
        (["--token", "10.0.0.1"], ["--token", "***"]),
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
    ],
)
def test_secrets_are_masked(argv: list[str], expected: list[str]) -> None:
    assert masked_argv(argv) == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["--tokenizer", "gpt2"],
        ["--tokenizer_name=gpt2"],
        ["--max-tokens", "512"],
        ["--max_new_tokens=512"],
        ["--num-keypoints", "17"],
        ["--tokens-per-sample", "512"],
        ["--tokens_per_batch=1048576"],
        ["model.num_key_value_heads=8"],
        ["--key-dim", "64"],
        ["--key-dims=[64,128]", "--key-sizes", "64, 128"],
        ["--image_token_len", "256"],
        ["--token_dropout", "0.1"],
        ["--mask-token-prob", "1.5e-1"],
        ["--monkey", "3"],
        ["--key-shift", "-1"],
        ["--use-token", "False"],
        ["+logger.password=null"],
        ["train.py", "--lr", "1e-3", "data/monkey.png"],
        ["--model", "task-sketch", "risk-free-learning"],
    ],
)
def test_what_only_looks_like_one_stays(argv: list[str]) -> None:
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
def test_secrets_in_the_parameters_of_a_link_are_masked(text: str, expected: str | None) -> None:
    assert masked_text(text) == (expected or text)
