"""Faults of a machine and of an installation, each in a set-up that has it and nothing else."""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reader_edge_runtime.doctor.check_result import CheckResult, Severity, verdict
from reader_edge_runtime.doctor.environment import Environment
from reader_edge_runtime.doctor.machine import (
    check_cache,
    check_cores,
    check_graphics,
    check_huge_pages,
    check_stages,
    check_wheels,
)
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.machine import cache_folder
from reader_edge_runtime.machine.processor import cpu_quota, num_usable_cores
from tests.stages_here import free_address


def described(root: Path, **changes: Any) -> Environment:
    """A machine of eight cores, on which all is well but for the changes."""
    sound = Environment(
        root=root / "machine",
        environ=dict(os.environ),
        search_path=tuple(filter(None, sys.path)),
        system="Linux",
        machine="x86_64",
        num_cores=8,
        num_allowed_cores=8,
        cache=root / "cache",
    )
    return replace(sound, **changes)


def write(root: Path, **files: str) -> None:
    """Write files of the machine; in their names, "__" is the separator of folders."""
    for name, text in files.items():
        path = root / "machine" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="ascii")


def install(site: Path, name: str, version: str, code: str | None = None) -> tuple[str, ...]:
    """A wheel that owns the module onnxruntime, with this code in it if it is given. Returns a search path."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="ascii")
    (info / "RECORD").write_text("onnxruntime/__init__.py,,\n", encoding="ascii")
    if code is not None:
        (site / "onnxruntime").mkdir(exist_ok=True)
        (site / "onnxruntime" / "__init__.py").write_text(code, encoding="ascii")
    return (str(site), *filter(None, sys.path))


def test_a_sound_machine_is_well(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "onnxruntime", "1.31.1")
    environment = described(tmp_path, search_path=(str(site),))
    checks = (check_wheels, check_cores, check_graphics, check_cache, check_huge_pages)
    findings = [finding for check in checks for finding in check(environment)]
    assert {finding.severity for finding in findings} == {Severity.WELL}
    assert not any(finding.remedy for finding in findings)


def test_wheels_are_one_or_named_with_a_remedy(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, version in (("onnxruntime", "1.31.1"), ("onnxruntime-gpu", "1.30.0")):
        install(site, name, version)
    (found,) = check_wheels(described(tmp_path, search_path=(str(site),)))
    assert found.severity == Severity.BROKEN
    assert "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0" in found.sentence
    assert found.remedy.startswith("pip uninstall onnxruntime onnxruntime-gpu, then pip install")
    (found,) = check_wheels(described(tmp_path, search_path=(str(tmp_path),)))
    assert (found.severity, found.sentence) == (Severity.BROKEN, "ONNX Runtime is not installed.")
    assert "reader-edge[cpu]" in found.remedy


def test_a_plugin_beside_a_wheel_is_no_second_wheel(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("onnxruntime", "onnxruntime-qnn"):
        install(site, name, "1.31.1")
    (site / "onnxruntime_qnn-1.31.1.dist-info" / "RECORD").write_text("onnxruntime_qnn/__init__.py,,\n")
    (found,) = check_wheels(described(tmp_path, search_path=(str(site),)))
    assert found.severity == Severity.WELL


@pytest.mark.parametrize(
    "files",
    [
        {"sys__fs__cgroup__cpu.max": "150000 100000"},
        {"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "150000", "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000"},
        {"proc__self__cgroup": "0::/a/b", "sys__fs__cgroup__a__cpu.max": "150000 100000"},
        {
            "proc__self__cgroup": "4:cpu,cpuacct:/jobs",
            "sys__fs__cgroup__cpu__jobs__cpu.cfs_quota_us": "150000",
            "sys__fs__cgroup__cpu__jobs__cpu.cfs_period_us": "100000",
        },
    ],
    ids=["version 2", "version 1", "above", "of its own"],
)
def test_a_quota_below_the_cores_is_noted(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, **files)
    (found,) = check_cores(described(tmp_path))
    assert found.severity == Severity.NOTE
    assert found.sentence == "A quota leaves this process 1.5 of 8 cores' time, so 1 of them computes."
    assert num_usable_cores(described(tmp_path).root) == 1


@pytest.mark.parametrize("text", ["max 100000", "-1 100000", "nonsense", "1 0"])
def test_no_quota_is_no_limit(tmp_path: Path, text: str) -> None:
    write(tmp_path, proc__self__cgroup="0::/../../etc\nnonsense", **{"sys__fs__cgroup__cpu.max": text})
    assert cpu_quota(described(tmp_path).root) is None


@pytest.mark.parametrize(
    "files",
    [
        {"sys__fs__cgroup__cpu.max": f"{'9' * 400} 1"},
        {"sys__fs__cgroup__cpu.max": "100000 -100000"},
        {"sys__fs__cgroup__cpu.max": "100000 0"},
        {"proc__self__cgroup": "0::/a\0b"},
        {"proc__self__cgroup": f"0::/{'a/' * 20_000}"},
        {"proc__self__cgroup": f"0::/{'a' * 5_000}"},
    ],
)
def test_what_no_kernel_writes_is_no_limit_either(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, **files)
    assert cpu_quota(described(tmp_path).root) is None


def test_what_slows_a_machine_is_noted(tmp_path: Path) -> None:
    (found,) = check_cores(described(tmp_path, num_allowed_cores=2))
    assert (found.severity, found.sentence) == (Severity.NOTE, "This process may run on 2 of 8 cores.")
    write(tmp_path, proc__loadavg="31.50 20.00 9.00 3/900 1234")
    _, found = check_cores(described(tmp_path))
    assert found.severity == Severity.SLOWER
    assert "a load of 31.5 on 8 cores" in found.sentence
    write(tmp_path, sys__kernel__mm__transparent_hugepage__enabled="always madvise [never]")
    (found,) = check_huge_pages(described(tmp_path))
    assert found.severity == Severity.NOTE
    (tmp_path / "file").write_text("no folder")
    (found,) = check_cache(described(tmp_path, cache=tmp_path / "file" / "reader-edge"))
    assert found.severity == Severity.SLOWER
    assert "cannot be written (Not a directory): every start measures" in found.sentence


def test_graphics_that_cannot_be_found_are_noted(tmp_path: Path) -> None:
    write(tmp_path, **{"sys__class__drm__card0__device__uevent": "", "sys__class__drm__card0-HDMI-A-1__status": ""})
    (found,) = check_graphics(described(tmp_path))
    assert found.severity == Severity.NOTE
    assert "who made card0, of which" in found.sentence
    write(tmp_path, sys__class__drm__card0__device__vendor="0x10de")
    assert list(check_graphics(described(tmp_path))) == []
    write(tmp_path / "lent", dev__dxg="")
    (found,) = check_graphics(described(tmp_path / "lent"))
    assert "not listed in /sys" in found.sentence


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 300 + "b" * 300])
def test_a_cache_whose_name_is_too_long_is_no_traceback(tmp_path: Path, name: str) -> None:
    (found,) = check_cache(described(tmp_path, cache=tmp_path / name))
    assert found.check == "cache"


def test_a_user_without_a_home_learns_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(cache_folder, "user_cache_path", homeless)
    with pytest.raises(ConfigError, match="no home folder: set XDG_CACHE_HOME"):
        cache_folder.cache_folder()
    assert Environment.here().cache is None
    (found,) = check_cache(described(tmp_path, cache=None))
    assert (found.severity, found.remedy[:18]) == (Severity.BROKEN, "Set XDG_CACHE_HOME")


def test_the_worst_finding_is_the_verdict_and_a_remedy_is_parted_from_its_error() -> None:
    well, note, slower, broken = (CheckResult("check", severity, "Found.") for severity in Severity)
    assert verdict([]) == verdict([well, note]) == Severity.WELL
    assert verdict([well, slower, note]) == Severity.SLOWER
    assert verdict([broken, slower]) == Severity.BROKEN
    error = "The driver finds no GPU (status 3): make one visible."
    assert CheckResult.of_error("cuda", Severity.NOTE, error) == CheckResult(
        "cuda", Severity.NOTE, "The driver finds no GPU (status 3).", "Make one visible."
    )
    assert CheckResult.of_error("cuda", Severity.NOTE, "It fails.").sentence == "It fails."


def test_a_stage_is_found_where_one_of_its_boxes_listens() -> None:
    nobody, unknown = free_address(), "tcp://a..b:5551"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        somebody = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        findings = list(check_stages([f"{nobody} {somebody}", nobody, unknown]))
    assert [finding.severity for finding in findings] == [Severity.WELL, Severity.BROKEN, Severity.BROKEN]
    assert findings[1].sentence.startswith(f"Stage 2 cannot be reached at {nobody} (")
    assert "reader-edge stage" in findings[1].remedy
