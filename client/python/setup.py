"""Generates switchyard/v1/*_pb2*.py from proto/ beside the package; see README.md."""
import pathlib
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"


def generate(target):
    from grpc_tools import protoc
    files = sorted((PROTO / "switchyard" / "v1").glob("*.proto"))
    if not files:
        sys.exit(f"no protos in {PROTO}: build from a checkout of the project")
    status = protoc.main(["protoc", f"-I{PROTO}", f"--python_out={target}", f"--grpc_python_out={target}", *map(str, files)])
    if status != 0:
        sys.exit(f"protoc ended with {status}")
    (pathlib.Path(target) / "switchyard" / "v1" / "__init__.py").touch()


class Build(build_py):
    def run(self):
        super().run()
        generate(self.build_lib)


setup(packages=["switchyard"], cmdclass={"build_py": Build})
