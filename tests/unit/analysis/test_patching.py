"""A finding's change as a diff of the user's file, and when none is offered."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.finding import Finding
from trainprof.analysis.patching import edits_of
from trainprof.analysis.source_text import Edit, NotMechanical, SourceText, diff

WORKERS = {"num_workers": 4, "persistent_workers": True}


def patch(finding: Finding, path: str, source: str, **known: Any) -> str:
    return diff(path, SourceText(source), edits_of(finding, source, **known)).decode()


def changed(source: str, change: dict[str, Any], tmp_path: Path, line: int = 1) -> str:
    """Returns the text that `patch -p1` makes of the diff."""
    finding = summaries.finding(site=f"train.py:{line}", change=change)
    diff = patch(finding, "train.py", source)
    (tmp_path / "train.py").write_text(source)
    subprocess.run(["git", "apply", "-p1", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    return (tmp_path / "train.py").read_text()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = DataLoader(d)\n", "a = DataLoader(d, num_workers=4, persistent_workers=True)\n"),
        (
            "a = data.DataLoader(d, num_workers=0)\n",
            "a = data.DataLoader(d, num_workers=4, persistent_workers=True)\n",
        ),
        (
            "a = DataLoader(\n    d,\n    shuffle=True,\n)\n",
            "a = DataLoader(\n    d,\n    shuffle=True,\n    num_workers=4,\n"
            "    persistent_workers=True,\n)\n",
        ),
        (
            'a = DataLoader(d["größe"], num_workers=1) # ü\n',
            'a = DataLoader(d["größe"], num_workers=4, persistent_workers=True) # ü\n',
        ),
        (
            "for x in wrap(DataLoader(d, 8)):",
            "for x in wrap(DataLoader(d, 8, num_workers=4, persistent_workers=True)):",
        ),
    ],
)
def test_arguments_are_set(source: str, expected: str, tmp_path: Path) -> None:
    if source.endswith(":"):
        source, expected = f"{source}\n    pass", f"{expected}\n    pass"
    assert changed(source, WORKERS, tmp_path) == expected


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ((3, 5), (5, 7), False),
        ((3, 5), (4, 7), True),
        ((3, 3), (3, 3), True),  # two insertions, of which one would come twice
        ((3, 5), (4, 4), True),
        ((3, 3), (1, 3), False),
    ],
)
def test_edits_of_the_same_place_clash(
    one: tuple[int, int], other: tuple[int, int], clash: bool
) -> None:
    first, second = Edit(*one, "a"), Edit(*other, "b")
    assert first.clashes_with(second) is second.clashes_with(first) is clash


def test_workers_are_kept_only_where_there_are_any(tmp_path: Path) -> None:
    found = changed("a = DataLoader(d, num_workers=n)\n", {"persistent_workers": True}, tmp_path)
    assert found == "a = DataLoader(d, num_workers=n, persistent_workers=n > 0)\n"


def test_what_is_for_workers_goes_with_them(tmp_path: Path) -> None:
    source = "a = DataLoader(d, num_workers=2, persistent_workers=True, prefetch_factor=4)\n"
    found = changed(source, {"num_workers": 0}, tmp_path)
    assert found == (
        "a = DataLoader(d, num_workers=0, persistent_workers=False, prefetch_factor=None)\n"
    )
    assert changed("a = DataLoader(d, 8, num_workers=1)\n", {"num_workers": 0}, tmp_path) == (
        "a = DataLoader(d, 8, num_workers=0)\n"
    )


def test_what_is_for_workers_goes_with_them_at_a_package_too() -> None:
    source = (
        "a = TrainingArguments(dataloader_num_workers=4, dataloader_persistent_workers=True, "
        "dataloader_prefetch_factor=4, timeout=3)\n"
    )
    finding = summaries.finding(site="train.py:1", change={"num_workers": 0})
    assert (
        "+a = TrainingArguments(dataloader_num_workers=0, dataloader_persistent_workers=False, "
        "dataloader_prefetch_factor=None, timeout=3)\n"
    ) in patch(finding, "train.py", source, built_by="transformers")
    # What ** hands over may be what torch refuses.
    unknown = "a = TrainingArguments(dataloader_num_workers=4, **others)\n"
    with pytest.raises(NotMechanical, match="passes arguments on"):
        patch(finding, "train.py", unknown, built_by="transformers")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("num_workers=4", "num_workers=0, persistent_workers=False"),
        ("persistent_workers=True, num_workers=4", "persistent_workers=False, num_workers=0"),
        ("num_workers=0", None),
    ],
)
def test_a_package_that_keeps_workers_by_itself_is_told_not_to(
    given: str, expected: str | None
) -> None:
    finding = summaries.finding(site="train.py:1", change={"num_workers": 0})
    source = f"a = create_loader(data, 224, 8, {given})\n"
    expected = expected or f"{given}, persistent_workers=False"
    assert f"+a = create_loader(data, 224, 8, {expected})\n" in patch(
        finding, "train.py", source, built_by="timm"
    )
    more = replace(finding, change={"num_workers": 2})
    source = "a = create_loader(data, 224, 8)\n"
    assert "8, num_workers=2)\n" in patch(more, "train.py", source, built_by="timm")


HF_SCRIPT = """arguments = Seq2SeqTrainingArguments(
    "saved",
    dataloader_num_workers=0,
)
trainer = Seq2SeqTrainer(model, arguments)
trainer.train()
"""


def test_a_package_is_told_in_its_own_arguments() -> None:
    finding = summaries.finding(site="train.py:6", change=WORKERS)
    diff = patch(finding, "train.py", HF_SCRIPT, built_by="transformers")
    assert "-    dataloader_num_workers=0,\n" in diff
    assert "+    dataloader_num_workers=4,\n+    dataloader_persistent_workers=True,\n" in diff
    timm = "loader = timm.data.create_loader(data, 224, 8)\n"
    diff = patch(replace(finding, site="train.py:1"), "train.py", timm, built_by="timm")
    assert "+loader = timm.data.create_loader(data, 224, 8, num_workers=4" in diff


@pytest.mark.parametrize(
    ("source", "package", "why"),
    [
        (
            "Trainer(model, parsed).train()\n",
            "transformers",
            "this file does not call TrainingArguments by its name",
        ),
        (HF_SCRIPT * 2, "transformers", "called on lines 1 and 7"),
        ("trainer.train(DataLoader(data))\n", "planted", "planted builds this loader"),
    ],
)
def test_of_a_loader_that_a_package_builds_no_call_is_guessed(
    source: str, package: str, why: str
) -> None:
    finding = summaries.finding(site="train.py:1", change=WORKERS)
    with pytest.raises(NotMechanical, match=why):
        patch(finding, "train.py", source, built_by=package)


def test_workers_of_a_package_are_kept_only_where_there_are_any() -> None:
    finding = summaries.finding(site="train.py:1", change={"persistent_workers": True})
    source = "a = TrainingArguments(dataloader_num_workers=n)\n"
    diff = patch(finding, "train.py", source, built_by="transformers")
    assert "num_workers=n, dataloader_persistent_workers=n > 0)" in diff


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("o = A(p, 0.1)\n", "o = A(p, 0.1, fused=True)\n"),
        ("o = AdamW(p, fused=False)\n", "o = AdamW(p, fused=True)\n"),
        ("o = torch.optim.AdamW([{'params': p}])\n", None),
    ],
)
def test_an_optimizer_by_any_name(source: str, expected: str | None) -> None:
    text = f"from torch.optim import AdamW as A\n{source}"
    finding = summaries.finding(site="train.py:2", change={"fused": True})
    found = patch(replace(finding, evidence={"optimizer": "AdamW"}), "train.py", text)
    assert f"+{expected or source.replace('])', '], fused=True)')}" in found


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("o = getattr(optim, name)(p)\nother = AdamW(q)\n", "in another way than by its name"),
        ("o, q = AdamW(p), AdamW(q)\n", "line 1 holds 2 calls of AdamW"),
        ("o = AdamW(p, **options)\n", "passes arguments on"),
    ],
)
def test_no_other_optimizer_is_fused(source: str, why: str) -> None:
    finding = summaries.finding(site="train.py:1", change={"fused": True})
    with pytest.raises(NotMechanical, match=why):
        patch(replace(finding, evidence={"optimizer": "AdamW"}), "train.py", source)


def test_an_optimizer_is_fused_where_it_is_made(tmp_path: Path) -> None:
    source = "o = optim.AdamW(\n    model.parameters(), lr=1e-3\n)\no.step()\n"
    finding = summaries.finding(site="train.py:4", change={"fused": True})
    finding = replace(finding, evidence={"optimizer": "AdamW"})
    assert "+    model.parameters(), lr=1e-3,\n+    fused=True\n" in patch(
        finding, "train.py", source
    )
    twice = source + source.replace("o =", "p =")
    built = replace(finding, site="train.py:6")
    assert patch(built, "train.py", twice).count("+    fused=True\n") == 1
    for unclear, why in (
        ("o.step()\n" * 4, "this file does not call AdamW by its name: set fused=True where"),
        (twice, "AdamW is called on lines 1 and 5"),
    ):
        with pytest.raises(NotMechanical, match=why):
            patch(finding, "train.py", unclear)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = x.to(device)\n", "x = x.to(device, non_blocking=True)\n"),
        ("x = x.cuda( )\n", "x = x.cuda( non_blocking=True)\n"),
        ("x = x.to((device),)\n", "x = x.to((device), non_blocking=True,)\n"),
        ("x = x.to(d, torch.half)\n", "x = x.to(d, torch.half, non_blocking=True)\n"),
        ("x = x.to(d, y.dtype)\n", "x = x.to(d, y.dtype, non_blocking=True)\n"),
        ("x = x.to(d, non_blocking=False)\n", "x = x.to(d, non_blocking=True)\n"),
        (
            "x, y = x.to(d), y.to(d)\n",
            "x, y = x.to(d, non_blocking=True), y.to(d, non_blocking=True)\n",
        ),
    ],
)
def test_a_copy_need_not_block(source: str, expected: str, tmp_path: Path) -> None:
    assert changed(source, {"non_blocking": True}, tmp_path) == expected


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x = x.to(d, torch.half, False)\n", "by position"),
        ("x = x.to(d, kind)\n", "by position"),
        ("x = x.cuda(0, False)\n", "by position"),
        ("x = x.to(*where)\n", "by position"),
        ("x = x.to(**where)\n", "by position"),
        ("x, y = x.to(d), loss.to('cpu')\n", "holds 2 copies"),
        ("x = x.to(d, non_blocking=True)\n", "written so already"),
        ("x = move(x)\n", "holds no call of to or cuda"),
    ],
)
def test_a_copy_that_may_be_another_is_left_alone(source: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(NotMechanical, match=why):
        changed(source, {"non_blocking": True}, tmp_path)


def test_memory_is_pinned_where_the_loader_is_built() -> None:
    source = "a = DataLoader(d, 8)\nfor x in a:\n    x = x.cuda()\n"
    change = {"pin_memory": True, "non_blocking": True}
    finding = summaries.finding(site="train.py:3", change=change)
    diff = patch(finding, "train.py", source, loader_line=1)
    assert "+a = DataLoader(d, 8, pin_memory=True)\n" in diff
    assert "+    x = x.cuda(non_blocking=True)\n" in diff
    with pytest.raises(NotMechanical, match="line 3 holds no call of DataLoader"):
        patch(finding, "train.py", source)


def test_more_batches_ahead_are_the_loaders_to_set(tmp_path: Path) -> None:
    source = "a = DataLoader(d, num_workers=2, prefetch_factor=2)\n"
    found = changed(source, {"prefetch_factor": 8}, tmp_path)
    assert found == "a = DataLoader(d, num_workers=2, prefetch_factor=8)\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("a = DataLoader(d, **options)\n", "passes arguments on"),
        ("a = DataLoader(d, num_workers=args.workers)\n", "args.workers"),
        ("a = Loader(d)\n", "no call of DataLoader"),
        ("a = DataLoader(\n", "does not parse"),
        ("a = DataLoader()\n", "no arguments"),
    ],
)
def test_where_it_takes_a_decision_none_is_offered(source: str, why: str) -> None:
    with pytest.raises(NotMechanical, match=why):
        patch(summaries.finding(site="train.py:1", change=WORKERS), "train.py", source)


def test_what_is_no_matter_of_arguments_has_no_patch() -> None:
    with pytest.raises(NotMechanical, match="no matter of arguments"):
        patch(summaries.finding(change={}), "train.py", "")
