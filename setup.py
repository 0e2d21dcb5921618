"""Builds the hot path in C where there is a compiler; without it its twins in Python are used."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "trainprof.record._hot",
            ["trainprof/record/_hot.c"],
            optional=True,
        )
    ]
)
