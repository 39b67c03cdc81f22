"""Columns and tables have the names that the code has: attempt, session id, participant.

Why: the number of an attempt was called `epoch`, which is a pass over data everywhere else in this field; the id of a
simulator's session was called `incarnation`, and a participant of a match `seat`; the value by
which the best checkpoint is chosen was its `merit`. Nothing was released with the former
names, so this migration renames in place: stop all processes, upgrade the schema, then start the new ones.

Revision: 0015, after 0014
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COLUMNS = (
    ("runs", "epoch", "attempt"),
    ("attempts", "epoch", "number"),
    ("checkpoints", "epoch", "attempt"),
    ("events", "epoch", "attempt"),
    ("logs", "epoch", "attempt"),
    ("metric_chunks", "epoch", "attempt"),
    ("simulators", "epoch", "attempt"),
    ("simulators", "incarnation", "session_id"),
    ("ladder_matches", "epoch", "attempt"),
    ("run_assessments", "epoch", "attempt"),
    ("ladder_seats", "seat", "position"),
    ("checkpoints", "merit", "score"),
)
"""Table, former name, present name. SQLite and PostgreSQL change keys, foreign keys and indexes with a column."""


def upgrade() -> None:
    for table, former, present in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {former} TO {present}")
    op.execute("ALTER TABLE ladder_seats RENAME TO ladder_participants")
    _name_indexes("epoch", "attempt", "ladder_seats", "ladder_participants")


def downgrade() -> None:
    op.execute("ALTER TABLE ladder_participants RENAME TO ladder_seats")
    for table, former, present in reversed(COLUMNS):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {present} TO {former}")
    _name_indexes("attempt", "epoch", "ladder_participants", "ladder_seats")


def _name_indexes(old_number: str, number: str, old_participants: str, participants: str) -> None:
    """Create the two indexes with a changed word in their name again: SQLite cannot rename an index."""
    op.drop_index(f"ix_ladder_matches_run_id_behavior_{old_number}_number", "ladder_matches")
    op.create_index(
        f"ix_ladder_matches_run_id_behavior_{number}_number",
        "ladder_matches",
        ["run_id", "behavior", number, "number"],
        unique=True,
    )
    op.drop_index(f"ix_{old_participants}_ladder_id_player_seq", participants)
    op.create_index(f"ix_{participants}_ladder_id_player_seq", participants, ["ladder_id", "player", "seq"])
