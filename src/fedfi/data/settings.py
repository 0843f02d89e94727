"""Table `[data]` of an experiment: which data, what their columns mean, and how they are divided."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedfi.data.ratings import Negatives
from fedfi.data.recommendation import is_ratings
from fedfi.data.sources import available
from fedfi.validation import shown

OF_RATINGS = ("kind", "columns", "min_interactions", "negatives", "negatives_per_positive")


class Data(BaseModel):
    """Table `[data]`: which data, and how they are divided among clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(description="a name, a path, or package.module:function")]
    clients: Annotated[int | None, Field(ge=1, description="number of clients")] = None
    partition: Annotated[dict[str, Any], Field(description="who holds what", examples=[{"by": "iid"}])] = Field(
        default_factory=lambda: {"by": "iid"}
    )
    validation: Annotated[int, Field(ge=0, description="examples kept at the server")] = 0
    test_fraction: Annotated[
        float, Field(gt=0, lt=1, description="share held out where there is no official test set")
    ] = 0.2
    augment: Annotated[list[Literal["crop", "flip"]], Field(description="random transforms in training")] = Field(
        default_factory=list
    )
    label: Annotated[str | None, Field(description="column of the labels")] = None
    group: Annotated[str | None, Field(description="column of natural ids")] = None
    columns: Annotated[
        list[str] | dict[str, str] | None,
        Field(description="columns to learn from; ratings: what columns are called, such as { user = 'customer' }"),
    ] = None
    categories: Annotated[
        list[str] | None, Field(description="columns of categories that look like numbers, all or most of them")
    ] = None
    text: Annotated[str | None, Field(description="column of texts")] = None
    test: Annotated[str | None, Field(description="path of the test set")] = None
    vocabulary: Annotated[int | None, Field(ge=1, description="number of token ids")] = None
    length: Annotated[int | None, Field(ge=1, description="token ids an example")] = None
    tokenizer: Annotated[str | None, Field(description="pretrained tokenizer, by name or folder")] = None
    kind: Annotated[
        Literal["examples", "ratings"] | None, Field(description="what a path or function gives; else by its name")
    ] = None
    min_interactions: Annotated[int | None, Field(ge=3, description="ratings: fewest of a user; default 5")] = None
    negatives: Annotated[Negatives | None, Field(description="ratings: what is no negative; default exclude_train")] = (
        None
    )
    negatives_per_positive: Annotated[int | None, Field(ge=1, description="ratings: drawn each epoch; default 4")] = (
        None
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        names = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [None]
        if value is not None and not all(isinstance(name, str) for name in names):
            raise ValueError("must be a list of names, or of ratings a table such as { user = 'customer' }")
        return value

    @property
    def holds(self) -> str:
        """``"ratings"`` or ``"examples"``."""
        return self.kind or ("ratings" if is_ratings(self.name) else "examples")

    @property
    def misplaced(self) -> str | None:
        """A key that was given, yet means nothing for this kind of data."""
        wrong = (
            set(OF_RATINGS) if self.holds == "examples" else set(type(self).model_fields) - {"name"} - set(OF_RATINGS)
        )
        wrong -= {"kind"}
        if isinstance(self.columns, dict if self.holds == "ratings" else list):
            wrong -= {"columns"}
        elif self.columns is not None:
            wrong |= {"columns"}
        plain = type(self)(name=self.name)
        return next((k for k in sorted(wrong) if getattr(self, k) != getattr(plain, k)), None)

    @property
    def why_misplaced(self) -> str:
        """What to say of a misplaced key: what the data hold, and how to say that they do not."""
        other = "ratings" if self.holds == "examples" else "examples"
        named = is_ratings(self.name) or self.name in available()
        hint = "" if named or self.kind else f' (kind = "{other}" says that it holds {other})'
        return f"means nothing for {self.holds}, which {shown(self.name)} holds{hint}"

    @property
    def ratings(self) -> dict[str, Any]:
        """How ratings are split, with defaults."""
        return {
            "min_interactions": self.min_interactions or 5,
            "negatives": self.negatives or "exclude_train",
            "negatives_per_positive": self.negatives_per_positive or 4,
        }

    @property
    def column_names(self) -> dict[str, str] | None:
        """What columns of ratings are called, where that is said."""
        return self.columns if isinstance(self.columns, dict) else None

    @property
    def untold(self) -> bool:
        """Whether neither `kind` nor the name says what the data are."""
        return self.kind is None and not is_ratings(self.name) and self.name not in available()

    def loader_options(self) -> dict[str, Any]:
        """What `fedfi.data.load` is called with besides the name."""
        split = {"name", "clients", "partition", "validation", "test_fraction", *OF_RATINGS} - {"columns"}
        options = {k: v for k, v in self.model_dump(exclude=split).items() if v is not None and v != []}
        if self.partition.get("by") == "natural" and "column" in self.partition:
            options.setdefault("group", self.partition["column"])
        return options

    def given(self, option: str) -> tuple[str, Any]:
        """The key that an option of the loader comes from, and its value."""
        if option == "group" and self.group is None:
            return "partition.column", self.partition.get("column")
        return option, getattr(self, option) if option else None
