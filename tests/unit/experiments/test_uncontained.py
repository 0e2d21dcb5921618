"""What a trial cannot contain, told from text that is never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainprof.experiments import uncontained
from trainprof.experiments.uncontained import Uncontained, find_uncontained
from trainprof.launch.target import resolve

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "sample_scripts").glob("*.py"))


def found(directory: Path, text: str, *, name: str = "train.py") -> list[Uncontained]:
    (directory / name).write_text(text)
    return find_uncontained(resolve([str(directory / name)]), directory)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_the_sample_scripts_have_nothing(path: Path) -> None:
    assert find_uncontained(resolve([str(path)]), ROOT) == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import wandb as w\nw.init()", "wandb"),
        ("import mlflow\nmlflow.log_metric('a', 1)", "mlflow"),
        ("from lightning.pytorch.loggers import WandbLogger\nWandbLogger()", "wandb"),
        ("from transformers import TrainingArguments as T\nT('o', report_to=['wandb'])", "wandb"),
        (
            "from transformers import TrainingArguments as T\nT('o', push_to_hub=True)",
            "push_to_hub",
        ),
        ("model = make()\nmodel.push_to_hub('me/it')", "push_to_hub"),
        ("from huggingface_hub import upload_file as up\nup('x')", "huggingface_hub.upload_file"),
        ("import boto3\nboto3.client('s3')", "boto3.client"),
        ("from google.cloud import storage\nstorage.Client()", "google.cloud.storage.Client"),
        ("import requests\nrequests.post('u')", "requests.post"),
        ("from urllib import request\nrequest.urlopen('u', b'x')", "urllib.request.urlopen"),
        ("import psycopg2\npsycopg2.connect()", "psycopg2.connect"),
        ("import subprocess as s\ns.run(['rsync', 'a', 'b'])", "subprocess.run"),
        ("import os\nos.system(f'cp {a} {b}')", "os.system"),
        ("from os import system\nsystem('ls > files')", "os.system"),
        ("import subprocess\nsubprocess.run(['git', 'commit', '-a'])", "subprocess.run"),
        ("import h5py\nh5py.File('x', 'w')", "h5py.File"),
        ("import h5py\nh5py.File('x', mode)", "h5py.File"),
        ("import h5py\nh5py.File('x', mode='a')", "h5py.File"),
        ("import cv2\ncv2.imwrite('x.png', y)", "cv2.imwrite"),
        ("import soundfile\nsoundfile.SoundFile('x', 'w')", "soundfile.SoundFile"),
        ("db = make()\ndb.execute(\"attach 'x' as y\")", "SQLite's ATTACH"),
        ("db = make()\ndb.execute(\"VACUUM main INTO 'x'\")", "SQLite's VACUUM"),
        ("footer = make()\nfooter.write_metadata_file('x')", "write_metadata_file"),
        ("import ctypes\nctypes.CDLL(None).rename(a, b)", "the C library's rename"),
        ("import ctypes\nc, d = ctypes.CDLL('libc.so.6').fopen, 1", "the C library's fopen"),
        (
            "import ctypes\nc = ctypes.CDLL(name); c['open']",
            "the C library's open",
        ),
        ("import ctypes as t\nc = t.cdll.LoadLibrary(None); c.unlink(p)", "the C library's unlink"),
        (
            "from ctypes import CDLL, util; self.c = CDLL(util.find_library('c'))\n"
            "getattr(self.c, 'remove')",
            "the C library's remove",
        ),
        ("import cffi; lib = cffi.FFI().dlopen(None)\nlib.open(p, 1)", "the C library's open"),
        ("import lmdb\nlmdb.open('x')", "lmdb.open"),
        (
            "import tensorflow as tf\ntf.summary.create_file_writer('x')",
            "tensorflow.summary.create_file_writer",
        ),
        ("frame = make()\nframe.write_parquet('x')", "write_parquet"),
        (
            "import gymnasium as gym\ngym.wrappers.RecordVideo(env, f'videos/{name}')",
            "gymnasium.wrappers.RecordVideo",
        ),
        ("from gym.wrappers import Monitor\nMonitor(env, 'videos')", "gym.wrappers.Monitor"),
        (
            "from stable_baselines3.common.vec_env import VecVideoRecorder as V\nV(env, 'videos')",
            "stable_baselines3.common.vec_env.VecVideoRecorder",
        ),
        ("import imageio.v2 as i\ni.mimsave(f'{place}/x.mp4', images)", "imageio.v2.mimsave"),
        ("import imageio\nimageio.get_writer(path)", "imageio.get_writer"),
    ],
)
def test_each_kind_is_found_with_its_line(tmp_path: Path, code: str, name: str) -> None:
    [one] = found(tmp_path, f"# a script\n{code}\n")
    assert (one.name, one.site) == (name, "train.py:3")
    assert one.sentence


@pytest.mark.parametrize(
    "code",
    [
        "import h5py\nh5py.File('x')\nh5py.File('x', 'r')\nh5py.File('x', mode='r')",
        "import lmdb\nlmdb.open('x', readonly=True, lock=False)",
        "import requests\nrequests.get('u')",
        "from urllib.request import urlopen\nurlopen('u')",
        "import subprocess\nsubprocess.check_output(['git', 'rev-parse', 'HEAD'])",
        "import subprocess\nsubprocess.run('nvidia-smi -L', shell=True)",
        "import subprocess, sys\nsubprocess.run([sys.executable, 'eval.py'])",
        "import os\nos.system('nvidia-smi')",
        "import cv2\ncv2.imread('x')",
        "import soundfile\nsoundfile.SoundFile('x')",
        "db = make()\ndb.execute(\"attach ':memory:' as y\")\ndb.execute('vacuum')",
        "db = make()\ndb.execute('insert into attachments values (1)')\ndb.execute(text)",
        "import pyarrow.csv as pc\npc.write_csv(t, 'x')",
        "import ctypes\nctypes.CDLL(None).malloc_trim(0)",
        "import ctypes\nlibc = ctypes.CDLL('libc.so.6')\nlibc.prctl(1)",
        "import ctypes\ncuda = ctypes.CDLL('libcudart.so')\ncuda.open()",
        "import ctypes\nctypes.CDLL('./own.so').remove(x)",
        "import ctypes\nm = ctypes.CDLL(ctypes.util.find_library('gomp'))\nm.open()",
        "import os\nc = os.open\nc.open = 1\nlibc = make()\nlibc.rename(a, b)",
        "import pyarrow.parquet as pq\npq.write_table(pq.read_table('x'), 'y')",
        "class wandb: init = print\nwandb.init()",
        "def run(): pass\nrun()",
        "import wandb",
        "import wandb\nif wandb.run:\n    wandb.finish()",
        "import imageio\nimageio.mimsave(f'{place}/x.GIF', images)\nimageio.imread('x.mp4')",
        "import imageio, os\nimageio.get_writer(os.path.join(place, f'{n}.' + 'x.tiff'))",
        "import gymnasium as gym\ngym.wrappers.RecordEpisodeStatistics(env)",
        "import moviepy.editor as m\nm.VideoFileClip('x.mp4').iter_frames()",
        "from PIL import Image\nImage.new('L', (1, 1)).save('x.png')",
        "from transformers import TrainingArguments as T\nT('o', report_to='none')",
    ],
)
def test_what_reads_or_is_contained_is_not_listed(tmp_path: Path, code: str) -> None:
    assert found(tmp_path, code) == []


def test_modules_beside_the_script_are_read_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "src" / "package" / "inner").mkdir(parents=True)
    source = tmp_path / "src"
    (source / "package" / "__init__.py").write_text("from .inner import deep\n")
    (source / "package" / "inner" / "__init__.py").write_text("")
    (source / "package" / "inner" / "deep.py").write_text("from ... import nothing\nimport far\n")
    (source / "far.py").write_text("import os\n\n\ndef f():\n    os.system('make')\n")
    (source / "stranger.py").write_text("import wandb\nwandb.init()\n")
    (source / "train.py").write_text("import package, numpy, far\nraise SystemExit('ran')\n")
    [one] = find_uncontained(resolve([str(source / "train.py")]), tmp_path)
    assert (one.name, one.site) == ("os.system", "src/far.py:5")


def test_a_name_is_told_once_a_file(tmp_path: Path) -> None:
    code = "import wandb, os\nos.system('a')\nwandb.init()\nos.system('b')\nwandb.log({})\n"
    assert [(one.name, one.site) for one in found(tmp_path, code)] == [
        ("os.system", "train.py:2"),
        ("wandb", "train.py:3"),
    ]


def test_a_module_and_what_torchrun_starts_are_read(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text("import wandb\nwandb.init()\n")
    target = resolve(["--lr", "1"], "package.train")
    assert [one.site for one in find_uncontained(target, tmp_path)] == ["package/train.py:2"]
    (tmp_path / "torchrun").write_bytes(b"\x7fELF")
    (tmp_path / "torchrun").chmod(0o755)
    words = [str(tmp_path / "torchrun"), "--nproc=2", "package/train.py"]
    assert [one.name for one in find_uncontained(resolve(words), tmp_path)] == ["wandb"]


@pytest.mark.parametrize("text", ["def f(:\n", "\0", "x = " + "(" * 5000, ""])
def test_what_cannot_be_parsed_tells_nothing(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_a_command_that_is_no_python_is_told_before_what_its_words_lead_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import wandb\nwandb.init()\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\nrm -rf runs\npython train.py\n")
    (tmp_path / "train.sh").chmod(0o755)
    shell, wandb = find_uncontained(resolve([str(tmp_path / "train.sh"), "train.py"]), tmp_path)
    assert (shell.name, shell.site) == (str(tmp_path / "train.sh"), uncontained.COMMAND)
    assert shell.sentence == uncontained.NO_PYTHON
    assert (wandb.name, wandb.site) == ("wandb", "train.py:2")


def test_a_package_that_is_found_by_the_path_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src" / "package").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "src" / "package" / "__init__.py").write_text("")
    (tmp_path / "src" / "package" / "training.py").write_text("import wandb\nwandb.init()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    code = "from package.training import main\nmain()\n"
    assert [one.site for one in found(tmp_path, code, name="scripts/train.py")] == [
        "src/package/training.py:2"
    ]


def told_of_settings(directory: Path, text: str, *words: str) -> list[tuple[str, str]]:
    (directory / "train.py").write_text("print(1)\n")
    (directory / "conf.yaml").write_text(text)
    target = resolve([str(directory / "train.py"), *words])
    return [(one.name, one.site) for one in find_uncontained(target, directory)]


@pytest.mark.parametrize("words", [("--config", "conf.yaml"), ("--config=conf.yaml",)])
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# one\na:\n  _target_: lightning.pytorch.loggers.wandb.WandbLogger\n", ["wandb"]),
        ("\ntrainer:\n  logger: {class_path: MLFlowLogger}\n", ["mlflow"]),
        ("\n\nreport_to: [wandb, 'mlflow']\n", ["wandb", "mlflow"]),
        ('{\n\n"report_to": "wandb"}', ["wandb"]),
        ("\n\nlog_with:\n  - tensorboard\n  - wandb\nlr: 1\n", ["wandb"]),
        ("\n\n_target_: boto3.client\n", ["boto3.client"]),
    ],
)
def test_what_settings_name_is_told(
    tmp_path: Path, words: tuple[str, ...], text: str, names: list[str]
) -> None:
    told = told_of_settings(tmp_path, text, *words)
    assert told == [(name, "conf.yaml:3") for name in names]


@pytest.mark.parametrize(
    "text",
    [
        "report_to: none\nlr: wandb\n",
        "# report_to: wandb\nreport_to: [tensorboard]  # wandb\n",
        "report_to:\nwandb: true\n",
        "a:\n  _target_: torch.optim.Adam\n",
        "not_report_to: wandb\nmy._target_: wandb.init\n",
    ],
)
def test_settings_that_name_nothing_are_no_alarm(tmp_path: Path, text: str) -> None:
    assert told_of_settings(tmp_path, text, "--config", "conf.yaml") == []


def test_settings_that_nobody_names_are_not_read(tmp_path: Path) -> None:
    assert told_of_settings(tmp_path, "report_to: wandb\n") == []


def test_a_logger_that_the_command_names_is_told(tmp_path: Path) -> None:
    [one] = told_of_settings(tmp_path, "", "fit", "--trainer.logger=lightning.WandbLogger")
    assert one == ("wandb", uncontained.COMMAND)
    assert told_of_settings(tmp_path, "", "fit", "--trainer.logger=CSVLogger") == []


def test_modules_of_classes_that_settings_name_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import wandb\n\ndef make():\n    wandb.init()\n")
    told = told_of_settings(tmp_path, "_target_: mine.make\n", "--config", "conf.yaml")
    assert told == [("wandb", "mine.py:4")]
