"""`reader-edge list` and `reader-edge rm`: what is stored is shown and removed, and nothing else."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from filelock import FileLock

from reader_edge.cli import main
from reader_edge.models.pull import pulled
from reader_edge.models.store import StoredModel, folder_bytes, stored_models
from reader_edge_runtime.errors import CatalogueError
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from tests.reader_edge.package_copy import PackageCopy


@pytest.fixture
def model(demo_folder: Path) -> StoredModel:
    """A model that was fetched and exported."""
    stored = StoredModel("owner/model")
    with stored.locked():
        partial = stored.partial("hub")
        (partial / "model").mkdir(parents=True)
        (partial / "model" / "config.json").write_bytes(bytes(1500))
        stored.finish(partial)
        PackageCopy(demo_folder, stored.package("int8", "key"))
    return stored


def test_sources_and_packages_are_listed_with_their_sizes_and_times(runner: CliRunner, model: StoredModel) -> None:
    for name in ("source", model.package("int8", "key").name):
        os.utime(model.folder / name, (1_700_000_000, 1_700_000_000))
    result = runner.invoke(main, ["list"])
    assert result.exit_code == 0
    head, package, source = [line.split("  ") for line in result.stdout.splitlines()]
    assert head[0] == "NAME"
    assert [cell.strip() for cell in source if cell][:3] == ["owner/model", "source", "1.5 kB"]
    assert [cell.strip() for cell in package if cell][:2] == ["owner/model", "package, int8, not tuned"]
    assert all(line[-1].strip().startswith("2023-11-1") for line in (source, package))
    model.package("int8", "key").rename(model.package("int8-a16", "key"))
    assert "  package, int8-a16, not tuned  " in runner.invoke(main, ["list"]).stdout
    model.package("int8-a16", "key").rename(model.package("int8-a16-adapters", "key"))
    assert "  package, int8-a16, takes adapters, not tuned  " in runner.invoke(main, ["list"]).stdout


def test_programs_get_the_list_as_one_json_object(runner: CliRunner, model: StoredModel) -> None:
    os.utime(model.folder / "source", (1_700_000_000, 1_700_000_000))
    package, source = json.loads(runner.invoke(main, ["list", "--json"]).stdout)["models"]
    assert source == {
        **{"name": "owner/model", "what": "source", "num_bytes": 1500, "is_untuned": False, "is_readable": True},
        **{"time": "2023-11-14T22:13:20+00:00", "path": str(model.folder / "source")},
    }
    assert (package["what"], package["is_untuned"], package["is_readable"]) == ("package, int8", True, True)
    (Path(package["path"]) / MANIFEST_NAME).write_text('{"format_version": 1}')
    package = json.loads(runner.invoke(main, ["list", "--json"]).stdout)["models"][0]
    assert (package["is_untuned"], package["is_readable"]) == (False, False)
    assert "package, int8, not for this version  " in runner.invoke(main, ["list"]).stdout
    model.remove()
    assert json.loads(runner.invoke(main, ["list", "--json"]).stdout) == {"models": []}


def test_where_nothing_is_stored_it_says_how_to_begin(runner: CliRunner) -> None:
    result = runner.invoke(main, ["list"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "`reader-edge pull smollm2:135m`" in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_a_killed_download_left_is_listed_as_unfinished_and_removed(runner: CliRunner) -> None:
    stored = StoredModel("owner/model")
    with stored.locked():
        stored.partial("hub").mkdir()
        (stored.partial("hub") / "half").write_bytes(bytes(100_000))
    assert stored.source() is None
    assert "unfinished download  100.0 kB" in runner.invoke(main, ["list"]).stdout
    assert runner.invoke(main, ["rm", "owner/model"]).stdout == "Removed owner/model: unfinished download; 100.0 kB.\n"
    assert not stored.folder.exists()


def test_rm_says_what_it_removed(runner: CliRunner, model: StoredModel) -> None:
    num_bytes = sum(part.num_bytes for part in model.parts())
    result = runner.invoke(main, ["rm", "owner/model"])
    assert result.exit_code == 0
    assert result.stdout == f"Removed owner/model: package, int8, source; {num_bytes / 1e6:.1f} MB.\n"
    assert list(model.folder.parent.iterdir()) == []
    again = runner.invoke(main, ["rm", "owner/model"])
    assert again.exit_code == 2
    assert again.stderr == "Error: No model 'owner/model' is stored here: `reader-edge list` names those that are.\n"


def test_a_disk_that_has_no_room_for_the_name_keeps_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("reader_edge.models.store.write_file", fail)
    with pytest.raises(OSError, match="No space"), StoredModel("owner/model").locked():
        pass
    assert list(cache.iterdir()) == []


def test_of_a_model_that_lies_elsewhere_only_the_package_is_removed(
    runner: CliRunner, demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    stored = StoredModel(str(tmp_path / "model"))
    with stored.locked():
        PackageCopy(demo_folder, stored.package("int8", "key"))
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(main, ["rm", "model"]).stdout.startswith(f"Removed {tmp_path / 'model'}: package, int8; ")
    assert (tmp_path / "model" / "config.json").is_file()
    assert not stored.folder.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "/", "models", "owner/model/../.."])
def test_no_name_leads_out_of_the_store(runner: CliRunner, model: StoredModel, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = runner.invoke(main, ["rm", name])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert sorted(tmp_path.rglob("*")) == before


def test_folders_that_are_not_ours_are_neither_listed_nor_removed(cache: Path, model: StoredModel) -> None:
    foreign = StoredModel("owner/foreign").folder
    foreign.mkdir()
    (foreign / "name").write_text("owner/other")  # not the name that this folder is called by
    (cache / "thesis").mkdir()
    (cache / "thesis" / "text").write_text("All is well.")
    StoredModel("owner/link").folder.symlink_to(model.folder)
    assert [stored.name for stored in stored_models()] == ["owner/model"]
    for name in ("owner/foreign", "thesis", "owner/link"):
        with pytest.raises(CatalogueError, match="is stored here"):
            StoredModel(name).remove()
    assert model.source()


def test_links_in_a_removed_model_are_not_followed(model: StoredModel, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("All is well.")
    (model.folder / "source" / "link").symlink_to(tmp_path / "thesis")
    model.remove()
    assert (tmp_path / "thesis" / "text").read_text() == "All is well."


def test_a_model_that_is_being_fetched_is_not_removed(model: StoredModel) -> None:
    with (
        FileLock(model.folder.with_name(f"{model.folder.name}.lock")),
        pytest.raises(CatalogueError, match="is being fetched, exported or tuned by another process"),
    ):
        StoredModel("owner/model").remove()
    assert model.source()


def test_who_waits_for_another_process_says_so(model: StoredModel, capsys: pytest.CaptureFixture[str]) -> None:
    is_held = threading.Event()

    def hold() -> None:
        with FileLock(model.folder.with_name(f"{model.folder.name}.lock")):
            is_held.set()
            time.sleep(0.1)

    other = threading.Thread(target=hold)
    other.start()
    is_held.wait()
    with StoredModel("owner/model").locked():
        other.join()
    assert capsys.readouterr().err == "Another process fetches, exports or tunes 'owner/model': waiting for it.\n"


def test_a_broken_off_removal_leaves_nothing_whole(model: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("reader_edge.models.store.shutil.rmtree", fail)
        with pytest.raises(KeyboardInterrupt):
            model.remove()
    assert model.source() is None
    assert stored_models() == []
    with model.locked():  # who comes next clears the rest
        pass
    assert not [path for path in model.folder.parent.iterdir() if path.is_dir()]


def test_control_characters_of_names_do_not_reach_the_terminal(runner: CliRunner, demo_folder: Path) -> None:
    stored = StoredModel("/models/\x1b[2Jmodel")
    with stored.locked():
        PackageCopy(demo_folder, stored.package("int8", "key"))
    for arguments in (["list"], ["rm", stored.name], ["rm", stored.name]):
        result = runner.invoke(main, arguments)
        assert r"/models/\x1b[2Jmodel" in result.output
        assert "\x1b" not in result.output


def test_list_and_rm_need_no_exporter(model: StoredModel) -> None:
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('torch', 'transformers', 'huggingface_hub', 'onnx', 'optimum'))\n"
        "from reader_edge.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for arguments in (["list"], ["rm", "owner/model"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True
        )
        assert "owner/model" in ran.stdout
    assert not model.folder.exists()


def test_a_download_that_ends_meanwhile_spoils_no_list(model: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = model.partial("hub")
    partial.mkdir()

    def measured(folder: Path) -> int:
        if folder == partial:
            partial.rmdir()
        return 1

    monkeypatch.setattr("reader_edge.models.store.folder_bytes", measured)
    assert [part.what for part in model.parts()] == ["package, int8", "source"]


def test_a_link_that_leads_nowhere_is_listed_and_removed(runner: CliRunner, model: StoredModel) -> None:
    model.partial("hub").symlink_to("nowhere")
    assert "unfinished download" in runner.invoke(main, ["list"]).stdout
    assert runner.invoke(main, ["rm", "owner/model"]).exit_code == 0
    assert not model.folder.exists()


def test_a_link_in_what_was_fetched_is_refused(model: StoredModel, tmp_path: Path) -> None:
    source = model.source()
    assert source is not None
    assert pulled("owner/model") == source
    (source / "other.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CatalogueError, match=r"other\.json' is a link, which no download brings: `reader-edge rm"):
        pulled("owner/model")


def test_the_cache_shows_what_lies_there_and_frees_what_this_version_does_not_use(
    runner: CliRunner, model: StoredModel, demo_folder: Path
) -> None:
    outdated = PackageCopy(demo_folder, model.package("int8", "of another version"))
    (outdated.folder / MANIFEST_NAME).write_text('{"format_version": 1}')
    (model.folder / "hub.partial").mkdir()
    (model.folder / "hub.partial" / "half").write_bytes(bytes(700))
    killed = model.folder / ".int8-0.partial-0123456789abcdef"
    killed.mkdir()
    (killed / "half").write_bytes(bytes(500))
    unused = 1200 + folder_bytes(outdated.folder)
    kept = folder_bytes(model.folder) - unused
    shown = runner.invoke(main, ["cache"])
    assert "unfinished, or of other versions" in shown.stdout
    assert "`reader-edge cache --free` frees" in shown.stderr
    found = json.loads(runner.invoke(main, ["cache", "--free", "--json"]).stdout)
    assert found["freed"] == unused
    assert (found["num_bytes"]["models"], found["num_bytes"]["unused"]) == (kept, 0)
    assert [part.what for part in model.parts()] == ["package, int8", "source"]
    assert not killed.exists()


def test_what_another_process_works_on_is_not_freed(runner: CliRunner, model: StoredModel) -> None:
    (model.folder / "hub.partial").mkdir()
    other = StoredModel("owner/other")
    with other.locked():
        other.partial("hub").mkdir()
    with FileLock(model.folder.with_name(f"{model.folder.name}.lock")):
        result = runner.invoke(main, ["cache", "--free"])
    assert result.exit_code == 1
    assert not other.partial("hub").exists()
    assert result.stderr.startswith("Error: 'owner/model' is being fetched, exported or tuned by another process")
    assert (model.folder / "hub.partial").exists()


def test_freeing_follows_no_link_and_takes_files_where_folders_were_expected(
    runner: CliRunner, model: StoredModel, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / MANIFEST_NAME).write_text('{"format_version": 1}')
    for name in ("hub.partial", "int8-0123456789abcdef", ".int8-0.partial-0123456789abcdef"):
        (model.folder / name).symlink_to(outside)
    for name in ("wheel.partial", ".name.partial-0123456789abcdef"):
        (model.folder / name).write_bytes(b"half")
    half_removed = model.folder.with_name(".owner-model-01234567.partial-0123456789abcdef")
    half_removed.mkdir()
    (half_removed / "half").write_bytes(bytes(900))
    model.folder.with_name("linked").symlink_to(outside)
    (costs := model.folder.parent.with_name("costs")).symlink_to(costs)
    found = json.loads(runner.invoke(main, ["cache", "--free", "--json"]).stdout)
    assert (found["freed"], found["num_bytes"]["unused"]) == (900, 0)
    assert [path.name for path in outside.iterdir()] == [MANIFEST_NAME]
    assert {path.name for path in model.folder.iterdir()} == {"name", "source", model.package("int8", "key").name}
    assert not half_removed.exists()


def test_what_cannot_be_freed_is_named_and_can_be_freed_later(
    runner: CliRunner, model: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = model.partial("hub")
    place.mkdir()

    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "half")

    with monkeypatch.context() as context:
        context.setattr("shutil.rmtree", refused)
        result = runner.invoke(main, ["cache", "--free"])
    assert (result.exit_code, result.stderr) == (1, f"Error: '{place}' cannot be used: Permission denied.\n")
    assert runner.invoke(main, ["cache", "--free"]).exit_code == 0
    assert [path.name for path in model.folder.glob(".*")] == []


def test_nothing_is_stored_through_a_link(model: StoredModel, tmp_path: Path) -> None:
    linked = StoredModel("owner/linked")
    linked.folder.symlink_to(tmp_path)
    with pytest.raises(CatalogueError, match="is a link, through which nothing is fetched"), linked.locked():
        pass
    assert not (tmp_path / "name").exists()
