"""Ladders, their players, the ledger of their matches, and the computed ratings.

The ledger (`LadderMatch`, `LadderParticipant`) is append-only; a later attempt of a run marks what it plays again as
superseded. Everything else can be computed from it again: ratings, their history (`RatingPoint`) and counts of pairs
(`LadderPair`).
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    func,
    select,
)
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import Mapped, column_property, foreign, mapped_column, relationship

from server.kit.db.base import CLUSTERED, Base, Timestamp, ordered_text, partial_index
from server.kit.db.projects import Owned
from server.runs.models import Run

PENDING_SQL = "rated_through < match_seq"
"""Ladders with matches that are not rated yet. Queries use these words, so that SQLite sees that the index applies."""


class Ladder(Owned, Base):
    """A set of players that are compared with each other."""

    __tablename__ = "ladders"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key: Mapped[str] = mapped_column("local_name", ordered_text(200), server_default="")
    """The name that it was made with, unique in its project; of a run's own ladder the run's id."""
    former_name: Mapped[str] = mapped_column("name", ordered_text(200), unique=True)
    """The name by which the previous release looks, which demands that it is unique in the server: the id."""
    description: Mapped[str] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    """The run whose own ladder this is; None for one that was made to be shared."""
    initial_elo: Mapped[float] = mapped_column(Double)
    """Of players for whom nothing else is said."""
    player_seq: Mapped[int] = mapped_column(Integer)
    """Number of the newest player."""
    match_seq: Mapped[int] = mapped_column(BigInteger)
    """Number of the newest match."""
    rated_through: Mapped[int] = mapped_column(BigInteger)
    """All matches up to this number are in the ratings and in the counts of pairs."""
    generation: Mapped[int] = mapped_column(Integer)
    """Raised whenever ratings are taken back, so that a batch computed before is not added to them."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    name: Mapped[str] = column_property(
        func.coalesce(select(Run.name).where(Run.id == run_id).correlate_except(Run).scalar_subquery(), key)
    )
    """Its name; a run's own ladder has the present name of the run."""

    __table_args__ = (
        Index(None, "created_at", "id"),
        Index(None, "project", "local_name", unique=True),
        partial_index("ix_ladders_pending", "id", where=PENDING_SQL),
    )


class RunLadder(Base):
    """The matches of this run go to this ladder."""

    __tablename__ = "run_ladders"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    ladder_id: Mapped[str] = mapped_column(ForeignKey("ladders.id", ondelete="CASCADE"), index=True)


class LadderPlayer(Base):
    """A player of one ladder, with its present ratings."""

    __tablename__ = "ladder_players"

    ladder_id: Mapped[str] = mapped_column(ForeignKey("ladders.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    """Counts 1, 2, 3, ... in the ladder."""
    kind: Mapped[str] = mapped_column(String(16))
    """`server.ladders.refs.PlayerKind`."""
    key: Mapped[str] = mapped_column("name", ordered_text(400))
    """Of a run's policy `RUN/BEHAVIOR`, of a snapshot `RUN/BEHAVIOR#NUMBER`, where RUN is the run's id; of others the
    name that they were registered with."""
    run_id: Mapped[str | None] = mapped_column(String(40))
    behavior: Mapped[str | None] = mapped_column(ordered_text(200))
    snapshot: Mapped[int | None] = mapped_column(Integer)
    checkpoint_id: Mapped[str | None] = mapped_column(String(40))
    step: Mapped[int | None] = mapped_column(BigInteger)
    """Steps for which the policy had learned: a snapshot's when it was taken, a learning one's in its newest match."""
    fixed: Mapped[bool] = mapped_column(Boolean)
    """Its ratings are given and never change, however it plays."""
    initial_elo: Mapped[float] = mapped_column(Double)
    initial_mu: Mapped[float] = mapped_column(Double)
    initial_sigma: Mapped[float] = mapped_column(Double)
    elo: Mapped[float] = mapped_column(Double)
    mu: Mapped[float] = mapped_column(Double)
    sigma: Mapped[float] = mapped_column(Double)
    ordinal: Mapped[float] = column_property(mu - 3 * sigma)
    """Lower bound of the player's strength: mu - 3 sigma."""
    games: Mapped[int] = mapped_column(BigInteger)
    """Rated matches."""
    created_at: Mapped[float] = mapped_column(Timestamp)
    name: Mapped[str] = column_property(
        func.coalesce(
            select(Run.name + func.substr(key, func.length(run_id) + 1))
            .where(Run.id == run_id)
            .correlate_except(Run)
            .scalar_subquery(),
            key,
        )
    )
    """Its name: the key with the run's present name in place of its id."""

    __table_args__ = (UniqueConstraint("ladder_id", "name"),)


class LadderMatch(Base):
    """One finished match. `seq` counts 1, 2, 3, ... per ladder; it is the order in which matches are rated."""

    __tablename__ = "ladder_matches"

    ladder_id: Mapped[str] = mapped_column(ForeignKey("ladders.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    at: Mapped[float] = mapped_column(Timestamp)
    outcome: Mapped[str] = mapped_column(String(8))
    """Of the first participant: `win` (better than all others), `draw` (equal to the best other one) or `loss`."""
    scored: Mapped[bool] = mapped_column(Boolean)
    """Every participant has a score, so that any two of them compare; else only the first one compares with the
    others."""
    truncated: Mapped[bool] = mapped_column(Boolean)
    rated: Mapped[bool] = mapped_column(Boolean)
    """Whether it counts."""
    run_id: Mapped[str | None] = mapped_column(String(40))
    """The run that played it; None if it was reported over the API, as are the next five."""
    attempt: Mapped[int | None] = mapped_column(Integer)
    behavior: Mapped[str | None] = mapped_column(ordered_text(200))
    """The behavior of the learning team."""
    number: Mapped[int | None] = mapped_column(BigInteger)
    """Counts the matches of that behavior in the run."""
    simulator: Mapped[int | None] = mapped_column(Integer)
    step: Mapped[int | None] = mapped_column(BigInteger)
    elo: Mapped[float | None] = mapped_column(Double)
    """Of the learning policy after it, by the trainer's own reckoning."""
    superseded_by: Mapped[int | None] = mapped_column(Integer)
    """Number of the attempt that played this number again, or had resumed before it; such a match does not count."""

    participants: Mapped[list["LadderParticipant"]] = relationship(
        lazy="raise", viewonly=True, order_by="LadderParticipant.position"
    )

    __table_args__ = (Index(None, "run_id", "behavior", "attempt", "number", unique=True), CLUSTERED)


class LadderParticipant(Base):
    """One side of a match."""

    __tablename__ = "ladder_participants"

    ladder_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    """0, 1, 2, ... as they were reported; the learning side first."""
    player: Mapped[int] = mapped_column(Integer)
    team: Mapped[int] = mapped_column(Integer)
    rank: Mapped[int] = mapped_column(Integer)
    """1 is best; equal ones drew."""
    score: Mapped[float | None] = mapped_column(Double)
    step: Mapped[int | None] = mapped_column(BigInteger)
    """Steps for which the policy had learned."""
    profile: Mapped[LadderPlayer] = relationship(
        lazy="raise",
        viewonly=True,
        primaryjoin=(foreign(ladder_id) == LadderPlayer.ladder_id) & (foreign(player) == LadderPlayer.id),
    )
    name: AssociationProxy[str] = association_proxy("profile", "name")
    """The player's name."""

    __table_args__ = (
        ForeignKeyConstraint(
            ["ladder_id", "seq"], ["ladder_matches.ladder_id", "ladder_matches.seq"], ondelete="CASCADE"
        ),
        Index(None, "ladder_id", "player", "seq"),
        CLUSTERED,
    )


class RatingPoint(Base):
    """A player's ratings after one of its matches."""

    __tablename__ = "ladder_rating_points"

    ladder_id: Mapped[str] = mapped_column(ForeignKey("ladders.id", ondelete="CASCADE"), primary_key=True)
    player: Mapped[int] = mapped_column(Integer, primary_key=True)
    game: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Counts the player's rated matches, from 1 without gaps: a history is thinned by reading every n-th."""
    seq: Mapped[int] = mapped_column(BigInteger)
    """The match."""
    step: Mapped[int | None] = mapped_column(BigInteger)
    at: Mapped[float] = mapped_column(Timestamp)
    elo: Mapped[float] = mapped_column(Double)
    mu: Mapped[float] = mapped_column(Double)
    sigma: Mapped[float] = mapped_column(Double)
    ordinal: Mapped[float] = column_property(mu - 3 * sigma)

    __table_args__ = CLUSTERED


class LadderPair(Base):
    """Results of two players against each other in rated matches. `first` is below `second`."""

    __tablename__ = "ladder_pairs"

    ladder_id: Mapped[str] = mapped_column(ForeignKey("ladders.id", ondelete="CASCADE"), primary_key=True)
    first: Mapped[int] = mapped_column(Integer, primary_key=True)
    second: Mapped[int] = mapped_column(Integer, primary_key=True)
    wins: Mapped[int] = mapped_column(BigInteger)
    """Of `first`."""
    draws: Mapped[int] = mapped_column(BigInteger)
    losses: Mapped[int] = mapped_column(BigInteger)

    __table_args__ = CLUSTERED
