"""The settings of a run on Flower: `[tool.flwr.app.config]`, which `flwr run --run-config` overrides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedfi.errors import InputError
from fedfi.experiment import Experiment, load_experiment
from fedfi.validation import validate


class Options(BaseModel):
    """What is Flower's affair rather than the experiment's; in files with dashes, such as `min-clients`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Annotated[str, Field(description="run directory, from where the SuperLink was started")] = "runs/flower"
    set: Annotated[str, Field(description="settings to replace, such as 'rounds=5; train.steps=3'")] = ""
    data: Annotated[str, Field(description="package.module:function that gives a node its own data")] = ""
    clients: Annotated[str, Field(description="names of the clients with own data, with commas; else who is there")] = (
        ""
    )
    min_clients: Annotated[int, Field(ge=0, description="clients to wait for before the first round; 0 = all")] = 0
    wait: Annotated[float, Field(ge=0, description="seconds to wait for them")] = 600.0
    timeout: Annotated[float, Field(ge=0, description="seconds for a round's replies; 0 = no limit")] = 0.0
    absence: Annotated[float, Field(ge=0, description="seconds that a round waits for a client that is away")] = 60.0
    attempts: Annotated[int, Field(ge=1, description="how often a job is sent when processes die of it")] = 3
    lost_memory: Annotated[
        Literal["refuse", "forget"], Field(description="a client whose memory is gone fails, or begins anew")
    ] = "refuse"
    message_mb: Annotated[int, Field(ge=1, description="megabytes of a message at most")] = 4096

    @staticmethod
    def of(run_config: Mapping[str, Any]) -> Options:
        """The options of a Flower context.

        Raises:
            InputError: If a key or value is wrong.
        """
        table = {key.replace("-", "_"): value for key, value in run_config.items()}
        return validate(Options, table, source="run-config")

    def experiment(self, file: Path) -> Experiment:
        """The experiment in a file, with the settings that this run replaces."""
        return load_experiment(file, [item.strip() for item in self.set.split(";") if item.strip()])

    def client_names(self) -> list[str]:
        """The clients that bring their own data, if they are named.

        Raises:
            InputError: If a name is given twice.
        """
        names = [name.strip() for name in self.clients.split(",") if name.strip()]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"run-config: clients: {twice[0]!r} is named twice")
        return names


def defaults(out: str) -> dict[str, Any]:
    """The table `[tool.flwr.app.config]` with every default."""
    table = Options(out=out).model_dump(mode="json")
    return {key.replace("_", "-"): value for key, value in table.items()}
