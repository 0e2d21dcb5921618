"""Arrow's ways of writing in a trial: each is seen by the script, none is made to its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.contained import escaped, faults, run_contained, snapshot
from support.session import run_plain

from trainprof.tracee.containment.arrow import refuse_root

pytest.importorskip("pyarrow")

# Prints what it sees of its tree behind each; an error's text may name another path than it gave.
BEGINNING = """
import os, pickle
import pyarrow as pa
from pyarrow import csv, dataset, feather, fs, ipc, orc, parquet
table = pa.table({"a": [1, 2]})
here = os.getcwd()
local = fs.LocalFileSystem()
def seen(path):
    names = ((os.path.join(d, one) for one in (*ds, *fs)) for d, ds, fs in os.walk(path))
    print(path, sorted(name for some in names for name in some))
def tried(function, *arguments):
    try:
        print(function(*arguments))
    except Exception as error:
        print(type(error).__name__)
"""
WAYS = {
    "the local file system": """
with local.open_output_stream("new") as file:
    file.write(b"new")
with local.open_append_stream("log.csv") as file:
    file.write(b"1,2")
local.create_dir("made/deep")
local.copy_file("log.csv", "made/copy")
local.move("data/x.txt", "made/moved")
local.delete_file("latest")
local.delete_dir("gone")
local.delete_dir_contents("emptied")
print(open("new").read(), open("log.csv").read(), local.open_input_file("made/copy").read())
seen("made"), seen("data"), seen("emptied"), seen(".")
for path in ("new", "gone", "made", "log.csv"):
    info = local.get_file_info(path)
    print(info.path, info.type, info.size, info.mtime_ns is None)
print(sorted(x.path for x in local.get_file_info(fs.FileSelector("made", recursive=True))))
for selector in (fs.FileSelector("gone", allow_not_found=True), fs.FileSelector("gone")):
    tried(local.get_file_info, selector)
for path in ("nowhere/x", "gone/x"):
    tried(local.open_output_stream, path)
tried(local.get_file_info, "file:///x")
for path in ("gone/x.txt", "latest"):
    tried(local.open_input_file, path)
    tried(pa.OSFile, path)
""",
    "file systems made of it": """
below = fs.SubTreeFileSystem(here, local)
with below.open_output_stream("below") as file:
    file.write(b"x")
for uri in ("file://" + here + "/by_uri", here + "/by_path"):
    one, path = fs.FileSystem.from_uri(uri)
    print(isinstance(one, fs.LocalFileSystem), one.equals(local))
    with one.open_output_stream(path) as file:
        file.write(b"x")
local.create_dir("copies")
fs.copy_files(here + "/data", here + "/copies")
again = pickle.loads(pickle.dumps(fs.LocalFileSystem(use_mmap=True)))
again.create_dir("by_pickle")
print(again == fs.LocalFileSystem(use_mmap=True), again == local, isinstance(local, fs.FileSystem))
print(local.type_name, isinstance(below, fs.LocalFileSystem), isinstance(again, fs.LocalFileSystem))
seen(".")
""",
    "streams": """
for opened in (pa.output_stream("out"), pa.output_stream("out.gz"), pa.OSFile("os", "wb")):
    with opened as file:
        file.write(b"abc")
with pa.CompressedOutputStream("packed.gz", "gzip") as file:
    file.write(b"abc")
for made in (pa.create_memory_map("mapped", 4), pa.MemoryMappedFile.create("other", 4)):
    made.write(b"abcd")
    made.close()
with pa.memory_map("log.csv", "r+") as file:
    file.write(b"STEP")
    print(isinstance(file, pa.MemoryMappedFile))
print(pa.input_stream("out.gz").read(), open("mapped").read(), open("log.csv").read())
print(pa.input_stream(pa.py_buffer(b"abc")).read())
print(pa.CompressedInputStream("packed.gz", "gzip").read())
seen(".")
""",
    "tables": """
parquet.write_table(table, "p")
parquet.write_table(table, "p.local", filesystem=local)
parquet.write_table(table, "file://" + here + "/p.uri")
parquet.write_metadata(table.schema, "p.metadata")
named = {"basename_template": "part-{i}"}
parquet.write_to_dataset(table, "parts", partition_cols=["a"], **named)
dataset.write_dataset(table, "set", format="parquet")
dataset.write_dataset(table, "set.local", format="parquet", filesystem=local)
csv.write_csv(table, "c")
with csv.CSVWriter("cw", table.schema) as writer:
    writer.write(table)
feather.write_feather(table, "f")
orc.write_table(table, "o")
for kind in (ipc.new_file, ipc.new_stream, pa.RecordBatchFileWriter):
    with kind(kind.__name__, table.schema) as writer:
        writer.write(table)
seen(".")
print(parquet.read_table("p") == parquet.read_table("set") == table)
print(parquet.ParquetFile("p.local").read() == dataset.dataset("set").to_table() == table)
print(parquet.read_table("p", memory_map=True) == csv.read_csv("c") == orc.read_table("o") == table)
print(feather.read_table("f") == ipc.open_file("new_file").read_all() == table)
print(ipc.open_file(open("new_file", "rb").read()).read_all() == table)
""",
}


def plant(tree: Path) -> None:
    for name in ("data", "gone", "emptied"):
        (tree / name).mkdir(parents=True)
        (tree / name / "x.txt").write_text("sample\n")
    (tree / "log.csv").write_text("step,loss\n")
    (tree / "latest").symlink_to("data")


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_writing(tmp_path: Path, way: str) -> None:
    trees = (tmp_path / "plain" / "tree", tmp_path / "ours" / "tree")
    for tree in trees:
        plant(tree)
        (tree / "s.py").write_text(BEGINNING + WAYS[way])
    before = snapshot(trees[1])
    plain = run_plain(["s.py"], trees[0])
    ours = run_contained(["s.py"], trees[1], tmp_path / "run")
    assert snapshot(trees[1]) == before
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert ours.stdout == plain.stdout
    assert faults(tmp_path / "run") == escaped(tmp_path / "run") == []


@pytest.mark.parametrize("path", ["/", "//", "/..", "/tmp/..", "/./"])
def test_the_whole_machine_is_never_emptied(path: str) -> None:
    with pytest.raises(ValueError, match="invalid path"):
        refuse_root(path)


@pytest.mark.parametrize("path", ["/tmp", ".", "data"])
def test_directories_are_another_matter(path: str) -> None:
    refuse_root(path)
