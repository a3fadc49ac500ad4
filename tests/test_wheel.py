"""What an installed wheel has that a checkout has elsewhere; tests/integrations/studio opens its page in a browser."""

import subprocess
import sys

import pytest

from tests.support.wheel import environment, unpack_wheel

PROGRAM = """
import tempfile
from pathlib import Path
import vlprune
from vlprune.studio.examples import draw_examples
from vlprune.studio.fragments import ASSETS, method_text

print(Path(vlprune.__file__).parents[1])
print(*sorted(path.name for path in ASSETS.iterdir()))
print(method_text().count('id="method-'))
with tempfile.TemporaryDirectory() as folder:
    print(len(draw_examples(Path(folder))))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return unpack_wheel(tmp_path_factory.mktemp("wheel"))


def test_a_wheel_has_the_studios_files(package, tmp_path):
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment(package), capture_output=True, text=True
    )
    assert said.stdout.splitlines() == [str(package), "canvas.js method.md page.css", "4", "4"], said.stderr


def test_a_wheel_has_the_models_and_studies_files(package):
    names = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    wanted = {"vlprune/py.typed", "vlprune/studies/paper.json", "vlprune/pocket/weights/clip.safetensors"}
    assert wanted <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]
