"""The manifest: what was run, where, when, and how it ended."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from trainprof import __version__
from trainprof.launch.options import RunOptions
from trainprof.launch.outcome import Outcome
from trainprof.launch.sources import named_settings, own_sources, settings_next_to
from trainprof.launch.target import SUFFIX, Entry, Target, entry_of
from trainprof.record.files import contents_of
from trainprof.record.masking import masked_argv, masked_text
from trainprof.record.run_directory import MANIFEST_SCHEMA_VERSION

NS: Final = 1_000_000_000
# What people write stays far below.
_LARGEST_SCRIPT_BYTES: Final = 1 << 24

# With less than this share of memory available, an unexplained SIGKILL was probably for memory.
SCARCE_MEMORY_SHARE: Final = 0.05


def opening_manifest(
    target: Target,
    options: RunOptions,
    environ: Mapping[str, str],
    name: str,
    spawned_ns: int,
    spawned_time_ns: int,
) -> dict[str, Any]:
    """Returns the manifest of a run that is about to start, with the environment of trainprof."""
    started = datetime.fromtimestamp(spawned_time_ns / NS, timezone.utc)
    versions = {"trainprof": __version__}
    settings = _settings(target, environ)
    entry = _entry(target)
    if target.is_ours:
        versions["python"] = ".".join(map(str, sys.version_info[:3]))
    return {
        "schema_version": MANIFEST_SCHEMA_VERSION,
        "name": name,
        "command": masked_argv(target.words),
        "script": masked_text(target.name),
        "entry": None if entry is None else masked_text(entry.name),
        "script_sha256": script_sha256(target, environ),
        "sources": _sources(target, environ, settings),
        "settings": settings,
        "cwd": _cwd() if options.cwd is None else str(options.cwd),
        "times": {
            "started_at": started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "spawned_ns": spawned_ns,
            "spawned_time_ns": spawned_time_ns,
            "ended_ns": None,
            "ended_time_ns": None,
        },
        "versions": versions,
        "host": _host(),
        "devices": [],
        "rank": _int_or_none(environ.get("RANK")),
        "world_size": _int_or_none(environ.get("WORLD_SIZE")),
        "local_world_size": _int_or_none(environ.get("LOCAL_WORLD_SIZE")),
        "options": {
            "interval_s": options.interval_s,
            "wait_threshold_s": options.wait_threshold_s,
            "max_steps": options.max_steps,
            "max_time_s": options.max_time_s,
            "lines": options.lines and asdict(options.lines),
            "slow_samples": options.slow_samples,
            "cuda_sync": options.cuda_sync,
            "rules": dict(options.rules),
            "find_syncs": options.find_syncs,
        },
        "exit": {"status": None, "signal": None, "reason": "running", "detail": None},
        "script_pid": None,
        "usage": None,
        "faults": [],
        "stacks": None,
        "not_sampled": {},
    }


def closed_manifest(
    manifest: Mapping[str, Any],
    outcome: Outcome,
    *,
    ended_time_ns: int,
    detail: str | None,
    faults: list[str],
    limit: str | None = None,
    stacks: Mapping[str, Any] | None = None,
    not_sampled: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns `manifest` completed by the script's end.

    Args:
        detail: What more is known of the end, such as "out of memory: ...".
        limit: The option whose limit ended the script, or None.
        stacks: The last stack samples, where a signal ended it; see `Recording`.
        not_sampled: Why a file of samples has no (more) lines, by its stem.
    """
    ended = {"ended_ns": outcome.ended_ns, "ended_time_ns": ended_time_ns}
    return {
        **manifest,
        "times": {**manifest["times"], **ended},
        "exit": {
            "status": outcome.status,
            "signal": outcome.signal,
            "reason": exit_reason(outcome) if limit is None else "limit",
            "detail": detail if limit is None else limit,
        },
        "usage": {
            "max_rss_bytes": outcome.max_rss_bytes,
            "user_s": outcome.user_s,
            "system_s": outcome.system_s,
        },
        "faults": faults,
        "stacks": stacks,
        "not_sampled": dict(not_sampled or {}),
    }


def exit_reason(outcome: Outcome) -> str:
    """Returns the reason as the parent process sees it; the event log may know better."""
    if outcome.signal == signal.SIGKILL:
        return "killed"
    if outcome.signal is not None and outcome.signal != signal.SIGINT:
        return "signal"
    if outcome.interrupted:
        return "interrupted"
    return "completed" if outcome.status == 0 else "exception"


def kill_detail(*, oom_kills: int, available_share: float | None) -> str | None:
    """Returns why a script probably got SIGKILL, None where nothing points to memory."""
    if oom_kills > 0:
        return "out of memory: the kernel ended a process of this control group"
    if available_share is not None and available_share < SCARCE_MEMORY_SHARE:
        return f"probably out of memory: {available_share:.1%} of it was available before the end"
    return None


def script_sha256(target: Target, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the digest of the text of `script_of`, None where it is not a plain file."""
    script = script_of(target, environ)
    text = None if script is None else contents_of(script, _LARGEST_SCRIPT_BYTES)
    return None if text is None else hashlib.sha256(text).hexdigest()


def script_of(target: Target, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the file that runs in the end, also behind a launcher, or None."""
    entry = _entry(target)
    if entry is None:
        return None
    return _module_file(entry.name, environ) if entry.is_module else entry.name


def _entry(target: Target) -> Entry | None:
    return entry_of(target.words, is_script=target.is_ours)


def _module_file(name: str, environ: Mapping[str, str]) -> str | None:
    """Returns the file that `python -m` would run, without importing; None if it is installed."""
    within = name.split(".")
    for folder in ("", *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))):
        for path in (os.path.join(*within) + ".py", os.path.join(*within, "__main__.py")):
            if os.path.isfile(os.path.join(folder, path)):
                return os.path.join(folder, path)
    return None


def _sources(
    target: Target, environ: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """Returns digests of Python files and settings next to the script, without those named."""
    script = script_of(target, environ)
    if script is None or not script.endswith(SUFFIX):
        return {}
    place, named = os.path.dirname(script), {os.path.abspath(name) for name in settings}
    digests = own_sources(Path(script)) | settings_next_to(Path(script))
    return {
        masked_text(name): digest
        for name, digest in digests.items()
        if os.path.abspath(os.path.join(place, name)) not in named
    }


def _settings(target: Target, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns digests of the settings files that the command names, secrets left out."""
    script = script_of(target, environ)
    digests = named_settings(masked_argv(target.words))
    return {name: digest for name, digest in digests.items() if name != script}


def host_now() -> dict[str, Any]:
    """Returns the machine as in a manifest, with the cores and memory usable now."""
    from trainprof.sampling import host, machine, procfs

    return {
        **_host(),
        **host.memory(procfs.read_bytes("/proc/meminfo") or b""),
        "usable_cores": machine.usable_cores(),
        "memory_limit_bytes": machine.memory_limit_bytes(),
    }


def _host() -> dict[str, Any]:
    page_bytes, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    return {
        "name": os.uname().nodename,
        "platform": f"{sys.platform} {os.uname().release} {os.uname().machine}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": None,
        "physical_cores": None,
        "core_numbers": None,
        "core_of": None,
        "memory_bytes": page_bytes * pages if pages > 0 else None,
        "memory_limit_bytes": None,
        "is_virtual": None,
    }


def _cpu_model() -> str | None:
    """Returns the processor's name as the kernel reports it, None where it does not."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, model = line.partition(":")
                if name.strip() in ("model name", "Model", "cpu model", "uarch"):
                    return " ".join(model.split()) or None
    except OSError:
        pass
    return None


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed; a script with an absolute path still runs
        return None


def _int_or_none(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
