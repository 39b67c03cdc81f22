"""Runs migrations on the connection that `server.kit.db.migrate` hands over.

For writing one: `alembic -x url=sqlite:////tmp/ludus.db revision --autogenerate -m "..."` (the database at head).
"""

from alembic import context
from sqlalchemy import Connection

from server.app.models import Base
from server.kit.db.database import Database


def run(connection: Connection) -> None:
    """Bring the database of this connection to the wanted revision, in the connection's transaction."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


handed_over: Connection | None = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
else:
    database = Database(context.get_x_argument(as_dictionary=True)["url"])
    with database.engine.begin() as own:
        run(own)
    database.close()
