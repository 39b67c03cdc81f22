"""What the API says of simulators."""

from pydantic import Field

from server.kit.http.fields import Read, Time
from server.kit.http.listing import ListPage


class SimulatorRead(Read):
    """One connection of a game process."""

    incarnation: str = Field(description="Id of the connection.")
    number: int = Field(description="Its seed is the run's seed + number.")
    label: str
    client: str
    peer: str
    state: str = Field(description="`joined` (has a ticket), `connected` or `left`.")
    epoch: int = Field(description="Attempt that it belongs to.")
    collector: int | None
    relayed: bool
    behaviors: list[str]
    agents: int
    steps: int = Field(description="Agent steps in its current session.")
    joined_at: Time
    connected_at: Time | None
    left_at: Time | None
    leave_code: str | None = Field(description="Stable name of why it left.")
    leave_reason: str | None = Field(description="The same as a sentence.")


class SimulatorPage(ListPage):
    """Simulators, connected and past."""

    simulators: list[SimulatorRead]
