"""The wheel, built once, and environments outside the repository that have nothing but it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Environment:
    """A virtual environment with the wheel, and a folder for a user's programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "env" / "bin"
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("CODEQ_", "PYTHON", "OTEL_"))}
        self.variables = {**kept, "PATH": f"{self.bin}{os.pathsep}{kept.get('PATH', '')}", "NO_COLOR": "1"}

    def run(self, *command: str, exit_code: int = 0, within_s: float = 60) -> str:
        """Runs a command of the environment in the folder. Returns what it printed, errors included."""
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=within_s, check=False,
        )  # fmt: skip
        assert done.returncode == exit_code, done.stdout
        return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [built] = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """Makes a new environment, and installs the wheel with this extra, or with none."""

    def installed(extra: str = "") -> Environment:
        folder = tmp_path_factory.mktemp(f"user-{extra or 'base'}")
        assert ROOT not in folder.parents
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        assert uv is not None
        wanted = f"codeq-queue[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", folder / "env" / "bin" / "python", wanted], check=True
        )
        return Environment(folder)

    return installed


@pytest.fixture(scope="session")
def base(install: Callable[[str], Environment]) -> Environment:
    return install("")
