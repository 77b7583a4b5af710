"""The wheel holds what it should, and works away from the repository."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"gateway", "policies", "backend", "loadtests"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_has_exactly_the_intended_packages(wheel: Path) -> None:
    """Four import packages and the metadata; no tests, no stray modules, data files included."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    assert any(name.startswith("loadtests/scenarios/") and name.endswith(".yaml") for name in names)


def test_wheel_works_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """Unpacked into an environment far from the repository, every package imports from there; the command answers."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    # The dependencies come from this environment; the four packages must not, so its editable hook stays out.
    dependencies = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"import sys; sys.path.append({str(dependencies)!r})\n")
    code = (
        "import sys\n"
        f"sys.path = [p for p in sys.path if p != {str(ROOT)!r}]\n"
        "import backend, gateway, loadtests, policies\n"
        "from gateway.cli import main\n"
        "print(*(module.__file__ for module in (backend, gateway, loadtests, policies)), sep='\\n')\n"
        "sys.argv = ['tailgate', '--help']\n"
        "main()\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV"))}
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(line.startswith(str(site)) for line in lines[: len(PACKAGES)]), lines
    assert any("check" in line for line in lines[len(PACKAGES) :])
