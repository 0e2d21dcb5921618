"""Builds the hot path in C where there is a compiler; without it its twins in Python are used."""

import shutil
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SOURCE = Path("trainprof/record/_hot.c")


class CleanBuild(build_py):
    """Leaves out what an earlier build has left."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class NewExtension(build_ext):
    """Compiles it again, whatever the files' times are."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True


setup(
    cmdclass={"build_py": CleanBuild, "build_ext": NewExtension},
    ext_modules=[
        Extension(
            "trainprof.record._hot",
            [str(SOURCE)],
            define_macros=[("SOURCE", f"{zlib.crc32(SOURCE.read_bytes())}ul")],
            optional=True,
        )
    ],
)
