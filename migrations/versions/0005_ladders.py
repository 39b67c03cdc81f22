"""Ladders: players, the ledger of their matches, and the ratings that are computed from it.

Why: the ledger keeps every match between policies. Ratings, their history and payoffs are computed from it, and can be
computed again. The previous release ignores these tables.

Revision: 0005, after 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def ordered_text(length: int) -> sa.String:
    """Compare by code points in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def of_ladder(table: str) -> sa.ForeignKeyConstraint:
    """Rows of a ladder are deleted with it."""
    name = op.f(f"fk_{table}_ladder_id_ladders")
    return sa.ForeignKeyConstraint(["ladder_id"], ["ladders.id"], name=name, ondelete="CASCADE")


def of_run(table: str) -> sa.ForeignKeyConstraint:
    """Rows of a run are deleted with it."""
    return sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f(f"fk_{table}_run_id_runs"), ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "ladders",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", ordered_text(200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=True),
        sa.Column("initial_elo", sa.Double(), nullable=False),
        sa.Column("player_seq", sa.Integer(), nullable=False),
        sa.Column("match_seq", sa.BigInteger(), nullable=False),
        sa.Column("rated_through", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        of_run("ladders"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ladders")),
        sa.UniqueConstraint("name", name=op.f("uq_ladders_name")),
    )
    op.create_index(op.f("ix_ladders_run_id"), "ladders", ["run_id"])
    op.create_index(op.f("ix_ladders_created_at_id"), "ladders", ["created_at", "id"])
    pending = sa.text("rated_through < match_seq")
    op.create_index("ix_ladders_pending", "ladders", ["id"], sqlite_where=pending, postgresql_where=pending)
    op.create_table(
        "run_ladders",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("ladder_id", sa.String(40), nullable=False),
        of_run("run_ladders"),
        of_ladder("run_ladders"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_ladders")),
    )
    op.create_index(op.f("ix_run_ladders_ladder_id"), "run_ladders", ["ladder_id"])
    _create_players()
    _create_ledger()
    _create_computed()


def _create_players() -> None:
    op.create_table(
        "ladder_players",
        sa.Column("ladder_id", sa.String(40), nullable=False),
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", ordered_text(400), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=True),
        sa.Column("behavior", ordered_text(200), nullable=True),
        sa.Column("snapshot", sa.Integer(), nullable=True),
        sa.Column("checkpoint_id", sa.String(40), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("fixed", sa.Boolean(), nullable=False),
        sa.Column("initial_elo", sa.Double(), nullable=False),
        sa.Column("initial_mu", sa.Double(), nullable=False),
        sa.Column("initial_sigma", sa.Double(), nullable=False),
        sa.Column("elo", sa.Double(), nullable=False),
        sa.Column("mu", sa.Double(), nullable=False),
        sa.Column("sigma", sa.Double(), nullable=False),
        sa.Column("games", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        of_ladder("ladder_players"),
        sa.PrimaryKeyConstraint("ladder_id", "id", name=op.f("pk_ladder_players")),
        sa.UniqueConstraint("ladder_id", "name", name=op.f("uq_ladder_players_ladder_id_name")),
    )


def _create_ledger() -> None:
    op.create_table(
        "ladder_matches",
        sa.Column("ladder_id", sa.String(40), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(8), nullable=False),
        sa.Column("scored", sa.Boolean(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("rated", sa.Boolean(), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("behavior", ordered_text(200), nullable=True),
        sa.Column("number", sa.BigInteger(), nullable=True),
        sa.Column("simulator", sa.Integer(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("elo", sa.Double(), nullable=True),
        sa.Column("superseded_by", sa.Integer(), nullable=True),
        of_ladder("ladder_matches"),
        sa.PrimaryKeyConstraint("ladder_id", "seq", name=op.f("pk_ladder_matches")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_ladder_matches_run_id_behavior_epoch_number"),
        "ladder_matches",
        ["run_id", "behavior", "epoch", "number"],
        unique=True,
    )
    op.create_table(
        "ladder_seats",
        sa.Column("ladder_id", sa.String(40), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("seat", sa.Integer(), nullable=False),
        sa.Column("player", sa.Integer(), nullable=False),
        sa.Column("team", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["ladder_id", "seq"],
            ["ladder_matches.ladder_id", "ladder_matches.seq"],
            name=op.f("fk_ladder_seats_ladder_id_seq_ladder_matches"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("ladder_id", "seq", "seat", name=op.f("pk_ladder_seats")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_ladder_seats_ladder_id_player_seq"), "ladder_seats", ["ladder_id", "player", "seq"])


def _create_computed() -> None:
    op.create_table(
        "ladder_rating_points",
        sa.Column("ladder_id", sa.String(40), nullable=False),
        sa.Column("player", sa.Integer(), nullable=False),
        sa.Column("game", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("elo", sa.Double(), nullable=False),
        sa.Column("mu", sa.Double(), nullable=False),
        sa.Column("sigma", sa.Double(), nullable=False),
        of_ladder("ladder_rating_points"),
        sa.PrimaryKeyConstraint("ladder_id", "player", "game", name=op.f("pk_ladder_rating_points")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ladder_pairs",
        sa.Column("ladder_id", sa.String(40), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("second", sa.Integer(), nullable=False),
        sa.Column("wins", sa.BigInteger(), nullable=False),
        sa.Column("draws", sa.BigInteger(), nullable=False),
        sa.Column("losses", sa.BigInteger(), nullable=False),
        of_ladder("ladder_pairs"),
        sa.PrimaryKeyConstraint("ladder_id", "first", "second", name=op.f("pk_ladder_pairs")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for table in ("pairs", "rating_points", "seats", "matches", "players"):
        op.drop_table(f"ladder_{table}")
    op.drop_table("run_ladders")
    op.drop_table("ladders")
