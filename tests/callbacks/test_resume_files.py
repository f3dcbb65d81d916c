"""The folder of a `Resume` callback: which folders are taken, and which of their files are the project's."""

import json
import os
import weakref
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from autodist_core.errors import SessionError
from autodist_keras.callbacks import Resume
from autodist_keras.callbacks.resume import state_files
from autodist_keras.callbacks.resume.encoding import Later
from autodist_keras.callbacks.resume.state_files import StateFiles
from tests.support.models import stacked
from tests.support.training import distributed


def resident() -> int:
    """The bytes of this process's memory that no file has."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["RssAnon"].split()[0])


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        (None, r"Resume\(None\): expected the path of a folder"), ("", r"Resume\(''\): expected the path of a folder"),
        ("gs://bucket/states", "expected a folder of a file system. Pass one that the next start finds"),
    ],
)
def test_what_is_no_folder_is_refused_at_once(folder: Any, message: str):
    with pytest.raises(ValueError, match=message):
        Resume(folder)
    with pytest.raises(SessionError, match="states cannot be written there"), StateFiles("nul\0", 1).locked():
        pass


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("gone")], ids=["folder", "dangling link"])
def test_a_state_that_is_no_file_is_a_state_that_cannot_be_read(make: Any, tmp_path: Path, caplog):
    make(tmp_path / "state-00000007.resume")
    with pytest.raises(SessionError, match=r"none of its 1 states can be read \(state-00000007"):
        StateFiles(tmp_path, keep=1).newest()
    StateFiles(tmp_path, keep=1).begin({"step": 3}, [])()
    assert StateFiles(tmp_path, keep=1).newest().name == "state-00000008.resume"
    assert "not saved" not in caplog.text


def test_files_of_others_stay(tmp_path: Path):
    others = [tmp_path / "movie.mp4.partial", tmp_path / "state-best.partial"]
    for path in others:
        path.write_text("of somebody else")
    (tmp_path / "state-1.partial").mkdir()
    for end in ("partial", "part-2.index", "part-2.data-00000-of-00001.tempstate7", "data-00000-of-00002", "index"):
        (tmp_path / f"state-00000003.{end}").write_bytes(b"begun")
    files = StateFiles(tmp_path, keep=1)
    with files.locked():
        files.begin({"step": 3}, [])()
    left = {path.name for path in tmp_path.iterdir()} - {"lock"}
    assert left == {*(path.name for path in others), "state-1.partial", "state-00000001.resume"}


def test_large_values_stay_in_their_file_until_they_are_used(tmp_path: Path):
    files, value = StateFiles(tmp_path, keep=1), np.arange(1 << 25, dtype="float64")
    files.begin({"step": 3}, [np.ones(3), value])()
    before = resident()
    small, large = files.newest().arrays
    assert resident() - before < value.nbytes // 4
    (tmp_path / "state-00000001.resume").unlink()
    assert np.array_equal(large, value) and small.tolist() == [1, 1, 1]
    large[0] = small[0] = 7  # as a callback may, which keeps its best weights


def test_large_values_of_a_state_hold_one_file_open_together(tmp_path: Path, monkeypatch):
    """A process may have few files open, such as 1024, and large models have more weights than that."""
    monkeypatch.setattr(state_files, "_LARGE", 1)
    files, values = StateFiles(tmp_path, keep=1), [np.arange(number) for number in range(64)]
    files.begin({"step": 3}, values)()
    before = len(os.listdir("/proc/self/fd"))
    found = files.newest().arrays
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert all(np.array_equal(one, other) for one, other in zip(values, found, strict=True))


def test_one_value_of_a_state_is_in_memory_at_a_time(tmp_path: Path):
    read: list[Any] = []

    def value() -> np.ndarray:
        assert not any(earlier() is not None for earlier in read)
        array = np.full(3, len(read), "float32")
        read.append(weakref.ref(array))
        return array

    files = StateFiles(tmp_path, keep=1)
    files.begin({"step": 3}, [Later(value) for _ in range(4)])()
    assert [array.tolist() for array in files.newest().arrays] == [[number] * 3 for number in range(4)]


def test_a_state_of_a_higher_number_stays(tmp_path: Path):
    """Numbers are compared, and not names: 100000000 is behind 99999999."""
    files = StateFiles(tmp_path, keep=1)
    (tmp_path / "state-99999999.resume").write_bytes(b"junk")
    files.begin({"step": 3}, [])()
    assert [path.name for path in tmp_path.iterdir()] == ["state-100000000.resume"]


def test_a_child_process_does_not_keep_the_folder(tmp_path: Path):
    """The program is killed, and a process that it has forked lives on: the next start may use the folder."""
    files, (read, write), (there, begun) = StateFiles(tmp_path, keep=1), os.pipe(), os.pipe()
    with files.locked():
        child = os.fork()
        if child == 0:
            os.write(begun, b"x")
            os.read(read, 1)
            os._exit(0)
        os.read(there, 1)
        with pytest.raises(SessionError, match=rf"another fit uses this folder at the moment \(process {os.getpid()} "):
            files.locked().__enter__()
    try:
        with files.locked():
            pass
    finally:
        os.write(write, b"x")
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("content", [[1], {}, {"tree": 3, "arrays": []}, {"tree": {}, "arrays": [3]}], ids=str)
def test_a_file_of_another_package_is_no_state(content: Any, tmp_path: Path, caplog):
    files = StateFiles(tmp_path, keep=2)
    files.begin({"step": 3}, [])()
    with zipfile.ZipFile(tmp_path / "state-00000002.resume", "w") as archive:
        archive.writestr("state.json", json.dumps(content))
    found = files.newest()
    assert found is not None and found.tree == {"step": 3}
    assert "state-00000002.resume is not complete" in caplog.text
    (tmp_path / "state-00000001.resume").unlink()
    with pytest.raises(SessionError, match="none of its 1 states can be read"):
        files.newest()


def test_a_relative_folder_stays_where_it_was_when_the_program_goes_elsewhere(tmp_path: Path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = stacked(keras.Input((3,)), keras.layers.Dense(1))
    leave = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: monkeypatch.chdir(tmp_path / "elsewhere")
    )
    with distributed(model, replicas=1) as front:
        front.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0, callbacks=[Resume("states", 1), leave])
    assert len(list((tmp_path / "states").glob("*.resume"))) == 2 and not list((tmp_path / "elsewhere").iterdir())
