"""What `fedfi flower` does where Flower is not installed, as on a laptop from which an app is published."""

from __future__ import annotations

import subprocess
import sys


def test_an_app_is_written_without_flower(file, fedfi):
    code, out, _ = fedfi("flower", file, "-o", "app")
    assert code == 0
    assert "flwr run app" in out
    assert (file.parent / "app/exp_app/experiment.toml").exists()


def test_a_wrong_setting_is_named(file, fedfi):
    code, _, err = fedfi("flower", file, "-o", "app", "--set", "train.step=3")
    assert code == 2
    assert "train.step: unknown key; did you mean 'steps'?" in err


def test_help_names_all_commands_and_loads_no_flower():
    code = (
        "import sys\nfrom fedfi.cli import main\nmain(['flower', '--help'])\n"
        "assert not {'flwr', 'cryptography'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("app", "up", "down", "keys"))
