"""What the API says of aliases, and what it is told."""

from pydantic import Field

from server.kit.http.fields import Name, Read, Time, Write
from server.kit.http.listing import ListPage


class AliasRead(Read):
    """A name that stands for a checkpoint."""

    name: str = Field(description="Unique in its project.")
    project: str
    checkpoint_id: str
    version: int = Field(description="Counts how often it was moved, from 1.")
    created_at: Time
    moved_at: Time


class AliasPage(ListPage):
    """Aliases."""

    aliases: list[AliasRead]


class AliasPut(Write):
    """What a name shall stand for."""

    checkpoint_id: Name = Field(description="A checkpoint of a run.")
    expected: Name | None = Field(
        default=None,
        description="Move it only if it stands for this checkpoint now; null: only if there is no such alias yet. Left "
        "out, it is moved whatever it stands for.",
    )
